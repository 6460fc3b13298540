# SPDX-License-Identifier: Apache-2.0
"""Optional dependencies: imported where they are used, and named with their extra when missing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from .errors import MissingExtraError


def require(module: str, extra: str, what: str) -> Any:
    """Import ``module`` for ``what`` it is needed for, a phrase such as ``"reading an ONNX file"``.

    Raises ``MissingExtraError`` naming the ``extra`` to install where it is not there.
    """
    try:
        return importlib.import_module(module)
    except ImportError as err:
        raise MissingExtraError(
            f"{what} needs the Python package {module.split('.')[0]!r}: "
            f"install it with pip install 'autotir-dlight[{extra}]'"
        ) from err


def installed(module: str) -> bool:
    """Whether ``module`` can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
