# SPDX-License-Identifier: Apache-2.0
"""Random arguments for TensorIR and Relax functions that keep a correct function within its buffers.

An integer buffer whose elements are used as indices gets elements in the range of what they index, also
where they reach the index by way of other buffers; elements that divide or shift are positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm_ffi import structural_map

from ._tvm import SBlock, TensorLoad, ir, relax, structural_walk, sym, tirx

Env = dict[Any, int]
"""Symbolic extent -> its value."""

# Values of extents that the caller leaves open: one, a small prime, and one more than a multiple of 16.
DEFAULT_EXTENTS = (1, 7, 33)


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


def symbols(func: Any) -> list[Any]:
    """The variables in the extents of the parameters, in the order in which they appear."""
    found: dict[Any, None] = {}

    def visit(ty: Any) -> None:
        if isinstance(ty, relax.TupleType | ir.TupleType):
            for item in ty.fields:
                visit(item)
        shape = ty.values if isinstance(ty, relax.ShapeType) else getattr(ty, "shape", None)
        for dim in shape or ():
            structural_walk(dim, [(ir.Var, lambda var: found.setdefault(var))])

    for param in func.params:
        visit(param.ty)
    return list(found)


def environments(func: Any, shapes: Mapping[str, int] | None) -> list[Env]:
    """The choices of extents to run at; extents left open differ from each other above 1."""
    variables, given = symbols(func), shapes or {}
    left_open = [name for name in dict.fromkeys(var.name for var in variables) if name not in given]
    environments = []
    for base in DEFAULT_EXTENTS if left_open else DEFAULT_EXTENTS[:1]:
        values = {name: base + (k if base > 1 else 0) for k, name in enumerate(left_open)} | dict(given)
        environments.append({var: int(values[var.name]) for var in variables})
    return environments


def analyzer_at(env: Env, ranges: Mapping[Any, Any] | None = None) -> Any:
    """An analyzer that knows the extents and the ranges ``variable -> (start, extent)``."""
    analyzer = sym.Analyzer()
    for var, value in env.items():
        analyzer.bind(var, tirx.IntImm(str(var.ty), value))
    for var, (start, extent) in (ranges or {}).items():
        extent = analyzer.simplify(extent)
        if not isinstance(extent, tirx.IntImm) or extent.value > 0:
            analyzer.bind(var, ir.Range.from_min_extent(analyzer.simplify(start), extent))
    return analyzer


def evaluate(expr: Any, env: Env) -> int:
    """The value of an extent. Raises ``ValueError`` where it depends on more than the parameters' extents."""
    value = analyzer_at(env).simplify(expr)
    if not isinstance(value, tirx.IntImm):
        raise ValueError(f"the extent {expr} cannot be computed from the extents of the parameters")
    return int(value.value)


@dataclass
class Facts:
    """What a TensorIR body says about the values of its integer buffers."""

    indices: list[tuple[Any, Any]] = field(default_factory=list)
    stores: list[tuple[Any, Any]] = field(default_factory=list)
    divisors: list[Any] = field(default_factory=list)
    ranges: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    aliases: dict[Any, Any] = field(default_factory=dict)
    allocated: list[Any] = field(default_factory=list)
    reduced: list[Any] = field(default_factory=list)

    def root(self, buffer: Any) -> Any:
        """The buffer behind one that a block only gave another name."""
        while buffer in self.aliases:
            buffer = self.aliases[buffer]
        return buffer


_REDUCTION_ITER = 2
_SHIFTS = ("tirx.shift_left", "tirx.shift_right")


def facts_of(func: Any) -> Facts:
    """Walk the body of a PrimFunc once."""
    facts = Facts()

    def on_access(buffer: Any, indices: Any) -> None:
        facts.indices.extend(zip(indices, buffer.shape, strict=False))

    def on_store(store: Any) -> None:
        on_access(store.buffer, store.indices)
        facts.stores.append((store.buffer, store.value))

    def on_block(block: Any) -> None:
        facts.aliases.update({region.buffer: region.source.source for region in block.match_buffers})
        facts.allocated.extend(block.alloc_buffers)
        facts.ranges.update({it.var: (it.dom.min, it.dom.extent) for it in block.iter_vars})
        domains = [it.dom.extent for it in block.iter_vars if int(it.iter_type) == _REDUCTION_ITER]
        facts.reduced.append(domains)

    def on_call(call: Any) -> None:
        if isinstance(call.op, ir.Op) and call.op.name in _SHIFTS:
            facts.divisors.append(call.args[1])

    structural_walk(
        func.body,
        [
            (TensorLoad, lambda load: on_access(load.source, load.indices)),
            (tirx.BufferStore, on_store),
            (SBlock, on_block),
            (tirx.For, lambda loop: facts.ranges.__setitem__(loop.loop_var, (loop.min, loop.extent))),
            ((tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod), lambda node: facts.divisors.append(node.b)),
            (ir.Call, on_call),
        ],
    )
    return facts


def _integer_loads(expr: Any) -> list[Any]:
    found: list[Any] = []
    structural_walk(expr, [(TensorLoad, found.append)])
    return [load for load in found if str(load.source.dtype).startswith(("int", "uint"))]


def _largest_element(expr: Any, limit: int, env: Env, facts: Facts) -> int:
    """The largest ``x`` such that ``expr`` is in [0, limit] while every buffer element in it is in [0, x]."""
    elements: list[Any] = []

    def replace(load: Any) -> Any:
        if not str(load.ty).startswith(("int", "uint")):
            return load
        elements.append(tirx.Var(f"x{len(elements)}", str(load.ty)))
        return elements[-1]

    expr = structural_map(expr, [(TensorLoad, replace)])

    def fits(largest: int) -> bool:
        analyzer = analyzer_at(env, facts.ranges)
        for element in elements:
            dtype = str(element.ty)
            analyzer.bind(element, ir.Range(tirx.IntImm(dtype, 0), tirx.IntImm(dtype, largest + 1)))
        bound = analyzer.const_int_bound(analyzer.simplify(expr))
        return bool(bound.min_value >= 0 and bound.max_value <= limit)

    low, high = 0, max(limit, 0)
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_elements(facts: Facts, env: Env, wanted: Mapping[Any, int]) -> dict[Any, int]:
    """Integer buffer -> the largest element that keeps every index in range.

    ``wanted`` are bounds from elsewhere. A bound on a buffer that the function itself fills is one on the
    buffers that it is filled from.
    """
    found: dict[Any, int] = {}

    def limit(expr: Any, largest: int) -> bool:
        loads = {facts.root(load.source) for load in _integer_loads(expr)}
        if not loads:
            return False
        bound = _largest_element(expr, largest, env, facts)
        lower = [buffer for buffer in loads if bound < found.get(buffer, bound + 1)]
        found.update(dict.fromkeys(lower, bound))
        return bool(lower)

    found.update(wanted)
    for index, extent in facts.indices:
        if _integer_loads(index):
            limit(index, evaluate(extent, env) - 1)
    for _ in facts.stores:
        targets = [(facts.root(buffer), value) for buffer, value in facts.stores]
        lowered = [limit(value, found[buffer]) for buffer, value in targets if buffer in found]
        if not any(lowered):
            break
    return found


def _divisors(facts: Facts) -> set[Any]:
    """The integer buffers whose elements divide or shift, also by way of another buffer."""
    found = {facts.root(load.source) for expr in facts.divisors for load in _integer_loads(expr)}
    for _ in facts.stores:
        more = {
            facts.root(load.source)
            for buffer, value in facts.stores
            if facts.root(buffer) in found
            for load in _integer_loads(value)
        }
        if more <= found:
            break
        found |= more
    return found


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401  makes NumPy know bfloat16 and the 8-bit floats

    return np.dtype(dtype)


def _random(
    rng: np.random.Generator, shape: Sequence[int], dtype: str, low: int | None, high: int | None
) -> Any:
    """Elements of ``dtype``; those of an integer in [low, high] where these are given."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    kind = _numpy_dtype(dtype)
    if not dtype.startswith(("int", "uint")):
        return rng.uniform(-1.0, 1.0, shape).astype(kind)
    limits = np.iinfo(kind)
    small = 128 if kind.itemsize == 1 else 16
    low = max(limits.min, -small) if low is None else low
    high = min(limits.max, 2 * small) if high is None else min(limits.max, high)
    return rng.integers(low, max(low, high), shape, dtype=kind, endpoint=True)


def draw(func: Any, env: Env, rng: np.random.Generator, wanted: Mapping[Any, int] | None = None) -> list[Any]:
    """Random arguments of a PrimFunc at the extents ``env``; ``wanted`` as in :func:`largest_elements`."""
    facts = facts_of(func)
    largest, divisors = largest_elements(facts, env, wanted or {}), _divisors(facts)
    args: list[Any] = []
    for param in func.params:
        low = 1 if param in divisors else 0 if param in largest else None
        high = min(largest.get(param, 6), 6) if param in divisors else largest.get(param)
        if tirx.is_buffer_var(param):
            shape = [evaluate(dim, env) for dim in param.shape]
            args.append(_random(rng, shape, str(param.dtype), low, high))
        elif isinstance(param.ty, ir.PrimType):
            dtype = str(param.ty)
            args.append(env[param] if param in env else _random(rng, (), dtype, 1, 4).item())
        else:
            raise ValueError(
                f"the parameter {param.name} is neither a buffer nor a number: verify cannot make one"
            )
    return args


# Relax


def relax_argument(ty: Any, env: Env, rng: np.random.Generator, largest: int | None) -> Any:
    """A random argument of a Relax type; tuples of types give tuples."""
    import tvm

    if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr):
        low = None if largest is None else 0
        return _random(rng, [evaluate(dim, env) for dim in ty.shape], str(ty.dtype), low, largest)
    if isinstance(ty, relax.ShapeType) and ty.values is not None:
        return tvm.runtime.ShapeTuple([evaluate(dim, env) for dim in ty.values])
    if isinstance(ty, relax.TupleType | ir.TupleType):
        return tuple(relax_argument(item, env, rng, largest) for item in ty.fields)
    if isinstance(ty, ir.PrimType):
        return _random(rng, (), str(ty), 1, 4).item()
    raise ValueError(f"verify cannot make an argument of type {ty}: give the parameter a shape")


def relax_largest(module: Any, name: str, env: Env) -> dict[Any, int]:
    """Variable of a Relax function -> the largest element that keeps every index in range.

    The function is legalised, and its calls are followed from the last to the first: what an operator asks of
    its input is asked of the output of the operator before.
    """
    if not any("int" in str(param.ty) for param in module[name].params):
        return {}
    legal = relax.transform.LegalizeOps()(module)
    func = legal[name]
    bindings = [b for block in func.body.blocks for b in block.bindings]
    by_name = {var.name: value for var, value in env.items()}
    found: dict[Any, int] = {}
    for binding in reversed(bindings):
        value: Any = getattr(binding, "value", None)
        if isinstance(value, ir.Var) and binding.var in found:
            found[value] = min(found[binding.var], found.get(value, found[binding.var]))
        callee = _called_primfunc(legal, value)
        if callee is None:
            continue
        args = list(value.args[1].fields)
        inputs, outputs = callee.params[: len(args)], callee.params[len(args) :]
        inner = {var: by_name.get(var.name, DEFAULT_EXTENTS[0]) for var in symbols(callee)}
        wanted = {outputs[0]: found[binding.var]} if binding.var in found and outputs else {}
        for param, bound in largest_elements(facts_of(callee), inner, wanted).items():
            position = next((k for k, item in enumerate(inputs) if item.same_as(param)), None)
            if position is not None and isinstance(args[position], ir.Var):
                var = args[position]
                found[var] = min(bound, found.get(var, bound))
    params = zip(module[name].params, func.params, strict=True)
    return {param: found[legal_param] for param, legal_param in params if legal_param in found}


def _called_primfunc(module: Any, value: Any) -> Any:
    """The TensorIR function that a ``call_tir`` calls, else ``None``."""
    if not isinstance(value, ir.Call) or not isinstance(value.op, ir.Op):
        return None
    if value.op.name not in ("relax.call_tir", "relax.call_tir_inplace"):
        return None
    callee = module[value.args[0]]
    return callee if isinstance(callee, tirx.PrimFunc) else None
