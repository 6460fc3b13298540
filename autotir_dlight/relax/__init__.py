# SPDX-License-Identifier: Apache-2.0
"""Passes over Relax functions, and the whole pipeline."""
