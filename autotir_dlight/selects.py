# SPDX-License-Identifier: Apache-2.0
"""Loads under a ``Select`` on loop positions, made conditional before loops are fused.

TVM's simplifier rewrites each branch of ``Select(i // 14 == 0, X[i % 14], ...)`` under its condition, here to
``X[i]``, yet both branches of a ``Select`` are evaluated: once loops are fused the load runs out of bounds.
``if_then_else`` evaluates one branch, and says the same.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from ._tvm import TensorLoad, structural_walk, tirx


def _loads(expr: Any) -> bool:
    found: list[bool] = []
    structural_walk(expr, [(TensorLoad, lambda _: found.append(True))])
    return bool(found)


def _conditional(select: Any) -> Any:
    on_data = _loads(select.condition)
    if on_data or not (_loads(select.true_value) or _loads(select.false_value)):
        return select
    return tirx.if_then_else(select.condition, select.true_value, select.false_value)


def guard_loads(func: Any) -> Any:
    """``func`` with ``Select(position, load, load)`` as ``if_then_else``; itself where it has none.

    A ``Select`` on data is left: its condition bounds no index.
    """
    found: list[bool] = []
    structural_walk(func.body, [(tirx.Select, lambda _: found.append(True))])
    return tvm_ffi.structural_map(func, (tirx.Select, _conditional)) if found else func
