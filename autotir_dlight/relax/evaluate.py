# SPDX-License-Identifier: Apache-2.0
"""Evaluate injective TensorIR functions with NumPy.

Folding a model's constants needs hundreds of small copies, reshapes and scalings once each. Compiling them
costs about 20 ms a function, most of it in the code around the loop; evaluating their expressions on whole
index grids costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from .._tvm import TensorLoad, ir, tirx
from ..blocks import Block, FuncView, as_int

# Above this many elements the index grids take more memory than a build is worth.
MAX_ELEMENTS = 1 << 24
_NATIVE = frozenset("float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split())
Array = np.ndarray


class _Unsupported(Exception):
    """The expression has a node that is not in the tables below."""


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}
_UNARY_CALLS: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "fabs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}


def evaluate(func: Any, args: Sequence[Array], shape: Sequence[int], dtype: str) -> Array | None:
    """The result of ``func`` on ``args``, or ``None`` where it is beyond this evaluator.

    ``func`` is a ``PrimFunc`` whose last parameter is the result, of ``shape`` and ``dtype``. Taken are
    functions of injective blocks over static extents with native dtypes and simple arithmetic.
    """
    view = FuncView.of(func)
    if view.unreadable or len(view.params) != len(args) + 1 or prod(shape) > MAX_ELEMENTS:
        return None
    result: Array = np.empty(tuple(shape), dtype) if dtype in _NATIVE else np.empty(0)
    buffers = list(zip(view.params, [*args, result]))
    try:
        for block in view.blocks:
            _run(block, buffers)
    except _Unsupported:
        return None
    return result


def _run(block: Block, buffers: list[tuple[Any, Array]]) -> None:
    if not block.is_injective or block.value is None or len(block.writes) != 1:
        raise _Unsupported
    extents = [it.extent for it in block.iters]
    if any(e is None for e in extents) or prod(e or 0 for e in extents) > MAX_ELEMENTS:
        raise _Unsupported
    grid = np.ogrid[tuple(slice(0, e) for e in extents)] if extents else []
    env = [(it.var, axis) for it, axis in zip(block.iters, grid)]
    write = block.writes[0]
    target = _storage(write.buffer, buffers)
    with np.errstate(all="ignore"):
        value = _value(block.value, env, buffers)
        index = tuple(_value(i, env, buffers) for i in write.indices)
    full = tuple(e or 0 for e in extents)
    if not index:
        target[()] = np.ravel(value)[-1]
        return
    target[tuple(np.broadcast_to(i, full) for i in index)] = np.broadcast_to(value, full)


def _storage(buffer: Any, buffers: list[tuple[Any, Array]]) -> Array:
    if str(buffer.dtype) not in _NATIVE or len(buffer.strides):
        raise _Unsupported
    for known, array in buffers:
        if buffer.same_as(known):
            return array
    dims = [as_int(d) for d in buffer.shape]
    if any(d is None for d in dims):
        raise _Unsupported
    array = np.empty(tuple(d or 0 for d in dims), str(buffer.dtype))
    buffers.append((buffer, array))
    return array


def _value(expr: Any, env: list[tuple[Any, Array]], buffers: list[tuple[Any, Array]]) -> Any:
    """The value of an expression over the whole grid."""

    def value(e: Any) -> Any:
        return _value(e, env, buffers)

    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return np.asarray(expr.value, str(expr.ty))
    if isinstance(expr, ir.Var):
        return _lookup(expr, env)
    if isinstance(expr, TensorLoad):
        return _load(expr, value, buffers)
    if isinstance(expr, tirx.Cast):
        return np.asarray(value(expr.value)).astype(_native(str(expr.ty)))
    if isinstance(expr, tirx.Select):
        return np.where(value(expr.condition), value(expr.true_value), value(expr.false_value))
    if isinstance(expr, ir.Call) and isinstance(expr.op, ir.Op):
        return _call(expr, value)
    return _arithmetic(expr, value)


def _lookup(variable: Any, env: list[tuple[Any, Array]]) -> Array:
    for known, axis in env:
        if known.same_as(variable):
            return axis
    raise _Unsupported


def _native(dtype: str) -> str:
    if dtype not in _NATIVE:
        raise _Unsupported
    return dtype


def _load(load: Any, value: Callable[[Any], Any], buffers: list[tuple[Any, Array]]) -> Any:
    source = _storage(load.source, buffers)
    # Under a condition an index may lie outside; what it reads there is thrown away.
    index = tuple(np.clip(value(i), 0, max(0, n - 1)) for i, n in zip(load.indices, source.shape))
    if source.size == 0:
        raise _Unsupported
    return source[index]


def _call(call: Any, value: Callable[[Any], Any]) -> Any:
    name = call.op.name.rpartition(".")[2]
    if name == "if_then_else":
        return np.where(*(value(a) for a in call.args))
    if name in _UNARY_CALLS:
        return _UNARY_CALLS[name](value(call.args[0]))
    if name == "rsqrt":
        x = value(call.args[0])
        return np.asarray(1, x.dtype) / np.sqrt(x)
    raise _Unsupported


def _arithmetic(expr: Any, value: Callable[[Any], Any]) -> Any:
    if isinstance(expr, tirx.Not):
        return np.logical_not(value(expr.a))
    if isinstance(expr, tirx.Div) and str(expr.ty).startswith("float"):
        return np.divide(value(expr.a), value(expr.b))
    if isinstance(expr, (tirx.Max, tirx.Min)) and not str(expr.ty).startswith("float"):
        return (np.maximum if isinstance(expr, tirx.Max) else np.minimum)(value(expr.a), value(expr.b))
    operator = _BINARY.get(type(expr))
    if operator is None:
        raise _Unsupported
    return operator(value(expr.a), value(expr.b))
