# SPDX-License-Identifier: Apache-2.0
"""Random arguments for TensorIR and Relax functions that keep a correct function within its buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ._tvm import ir, relax, tirx
from .element_ranges import Env, Span, element_spans, evaluate, facts_of, symbols

# Values of extents that the caller leaves open: one, a small prime, and one more than a multiple of 16.
DEFAULT_EXTENTS = (1, 7, 33)
# Scalar parameters that nothing is asked of.
_SCALAR_SPAN: Span = (1, 4)


def random_args(
    func: Any, shapes: Mapping[str, int] | None = None, rng: np.random.Generator | None = None
) -> list[Any]:
    """Random arguments for a PrimFunc: a NumPy array for each buffer, a number for each scalar.

    ``shapes`` gives symbolic extents by name; one that is left out is about 7. Elements are in [-1, 1) for
    floating point, over the whole range for 8-bit integers, small for wider ones, and in range where they are
    used as indices.

    Raises ``ValueError`` for a parameter that is neither a buffer nor a number.
    """
    rng = rng if rng is not None else np.random.default_rng(0)
    choices = environments(func, shapes)
    return draw(func, choices[len(choices) // 2], rng)


def environments(func: Any, shapes: Mapping[str, int] | None) -> list[Env]:
    """The choices of extents to run at; extents left open differ from each other above 1."""
    variables, given = symbols(func), shapes or {}
    left_open = [name for name in dict.fromkeys(var.name for var in variables) if name not in given]
    environments = []
    for base in DEFAULT_EXTENTS if left_open else DEFAULT_EXTENTS[:1]:
        values = {name: base + (k if base > 1 else 0) for k, name in enumerate(left_open)} | dict(given)
        environments.append({var: int(values[var.name]) for var in variables})
    return environments


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401  makes NumPy know bfloat16 and the 8-bit floats

    return np.dtype(dtype)


def _random(rng: np.random.Generator, shape: Sequence[int], dtype: str, span: Span | None) -> Any:
    """Elements of ``dtype``; those of an integer in ``span`` where that is given."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    kind = _numpy_dtype(dtype)
    if not dtype.startswith(("int", "uint")):
        return rng.uniform(-1.0, 1.0, shape).astype(kind)
    limits = np.iinfo(kind)
    small = 128 if kind.itemsize == 1 else 16
    low, high = span or (-small, 2 * small)
    low, high = max(int(limits.min), low), min(int(limits.max), high)
    return rng.integers(low, max(low, high), shape, dtype=kind, endpoint=True)


def draw(func: Any, env: Env, rng: np.random.Generator) -> list[Any]:
    """Random arguments of a PrimFunc at the extents ``env``."""
    spans = element_spans(facts_of(func), env, {})
    args: list[Any] = []
    for param in func.params:
        if tirx.is_buffer_var(param):
            shape = [evaluate(dim, env) for dim in param.shape]
            args.append(_random(rng, shape, str(param.dtype), spans.get(param)))
        elif isinstance(param.ty, ir.PrimType):
            args.append(_scalar(param, env, rng, spans.get(param)))
        else:
            raise ValueError(
                f"the parameter {param.name} is neither a buffer nor a number: verify cannot make one"
            )
    return args


def _scalar(param: Any, env: Env, rng: np.random.Generator, span: Span | None) -> Any:
    """A number for a parameter; one that is an extent as well has that value."""
    return env[param] if param in env else _random(rng, (), str(param.ty), span or _SCALAR_SPAN).item()


def relax_argument(param: Any, env: Env, rng: np.random.Generator, span: Span | None) -> Any:
    """A random argument for a parameter of a Relax function; a tuple for one of a tuple type."""
    if isinstance(param.ty, ir.PrimType):
        return _scalar(param, env, rng, span)
    return _of_type(param.ty, env, rng, span)


def _of_type(ty: Any, env: Env, rng: np.random.Generator, span: Span | None) -> Any:
    import tvm

    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        return _random(rng, [evaluate(dim, env) for dim in ty.shape], str(ty.dtype), span)
    if isinstance(ty, relax.ShapeType) and ty.values is not None:
        return tvm.runtime.ShapeTuple([evaluate(dim, env) for dim in ty.values])
    if isinstance(ty, relax.TupleType | ir.TupleType):
        return tuple(_of_type(item, env, rng, span) for item in ty.fields)
    raise ValueError(f"verify cannot make an argument of type {ty}: give the parameter a shape")
