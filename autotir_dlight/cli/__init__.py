# SPDX-License-Identifier: Apache-2.0
"""The command line: ``autotir-dlight compile | run | explain | bench``."""

from .main import main

__all__ = ["main"]
