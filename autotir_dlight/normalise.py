# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a function before any rule looks at it, which say the same in a form that rules can take.

``Select`` on loop positions: TVM's simplifier rewrites each branch of
``Select(i // 14 == 0, X[i % 14], ...)`` under its condition, here to ``X[i]``, yet both branches of a
``Select`` are evaluated: once loops are fused the load runs out of bounds. ``if_then_else`` evaluates one
branch.

Quotients that are always zero: a convolution written for any number of groups reads
``X[..., c // (C // groups) * I + k]``; with one group that is ``X[..., k]``, a plain matrix product.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

from ._tvm import SBlock, TensorLoad, structural_walk, sym, tirx
from .blocks import as_int


def _loads(expr: Any) -> bool:
    found: list[bool] = []
    structural_walk(expr, [(TensorLoad, lambda _: found.append(True))])
    return bool(found)


def _conditional(select: Any) -> Any:
    on_data = _loads(select.condition)
    if on_data or not (_loads(select.true_value) or _loads(select.false_value)):
        return select
    return tirx.if_then_else(select.condition, select.true_value, select.false_value)


def _bounded(func: Any) -> Any:
    """An analyser that knows the range of every block's iterators."""
    analyzer = sym.Analyzer()

    def on_block(block: Any) -> None:
        for it in block.iter_vars:
            if (as_int(it.dom.extent) or 0) > 0:
                analyzer.bind(it.var, it.dom)

    structural_walk(func.body, [(SBlock, on_block)])
    return analyzer


def normalise(func: Any) -> Any:
    """``func`` with ``Select(position, load, load)`` as ``if_then_else`` and quotients within one block
    iterator's range simplified; ``func`` itself where it has neither.

    A ``Select`` on data is left: its condition bounds no index.
    """
    selects: list[bool] = []
    quotients: list[bool] = []
    handlers = [
        (tirx.Select, lambda _: selects.append(True)),
        (tirx.FloorDiv, lambda _: quotients.append(True)),
        (tirx.FloorMod, lambda _: quotients.append(True)),
    ]
    structural_walk(func.body, handlers)
    if selects:
        func = tvm_ffi.structural_map(func, (tirx.Select, _conditional))
    if quotients:
        simplify = _bounded(func).simplify
        func = tvm_ffi.structural_map(func, (tirx.FloorDiv, simplify), (tirx.FloorMod, simplify))
    return func
