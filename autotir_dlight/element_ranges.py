# SPDX-License-Identifier: Apache-2.0
"""The ranges of the elements of integer inputs in which a correct program stays within its buffers.

An element may reach an index directly, by way of other buffers, of a ``let``, of the extent of a loop, or
through other operators of a Relax function. One that divides must not be zero, as that ends the process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm_ffi import structural_map

from ._tvm import SBlock, SBlockRealize, TensorLoad, ir, relax, structural_walk, sym, tirx

Env = dict[Any, int]
"""Symbolic extent -> its value."""

Span = tuple[int, int]
"""Smallest and largest value."""

# Divisors and shift amounts: not zero, and few bits, so that results differ.
DIVISOR_SPAN: Span = (1, 6)
# Elements are looked for no further from zero.
_FAR = 1 << 24
# What an extent gets that cannot be told from the parameters.
_UNKNOWN_EXTENT = 1

_INTEGERS = ("int", "uint")


def symbols(func: Any) -> list[Any]:
    """The variables in the extents of the parameters, in the order in which they appear."""
    found: dict[Any, None] = {}

    def visit(ty: Any) -> None:
        if isinstance(ty, ir.TupleType):
            for item in ty.fields:
                visit(item)
        shape = ty.values if isinstance(ty, relax.ShapeType) else getattr(ty, "shape", None)
        for dim in shape or ():
            structural_walk(dim, [(ir.Var, lambda var: found.setdefault(var))])

    for param in func.params:
        visit(param.ty)
    return list(found)


def analyzer_at(env: Env) -> Any:
    """An analyzer that knows the extents."""
    analyzer = sym.Analyzer()
    for var, value in env.items():
        analyzer.bind(var, tirx.IntImm(str(var.ty), value))
    return analyzer


def evaluate(expr: Any, env: Env) -> int:
    """The value of an extent. Raises ``ValueError`` where it depends on more than the parameters' extents."""
    value = expr if isinstance(expr, int) else analyzer_at(env).simplify(expr)
    if isinstance(value, int):
        return value
    if not isinstance(value, tirx.IntImm):
        raise ValueError(f"the extent {expr} cannot be computed from the extents of the parameters")
    return int(value.value)


@dataclass
class Facts:
    """What a TensorIR body says about the values of its integers.

    Attributes
    ----------
    scalars : integer parameters that are no buffers
    indices : (index, extent of what it indexes)
    iterations : (value, domain) of the iterators of blocks
    stores : (buffer, value)
    divisors : integer expressions that divide or shift
    loops : loop or block variable -> (start, extent)
    lets : variable -> its value
    aliases : buffer -> the one that it is another name for
    allocated : the buffers of the function's own
    reduced : for each block the extents that it reduces over
    reads_integers : whether any buffer of integers is read
    """

    scalars: frozenset[Any] = frozenset()
    indices: list[tuple[Any, Any]] = field(default_factory=list)
    iterations: list[tuple[Any, Any]] = field(default_factory=list)
    stores: list[tuple[Any, Any]] = field(default_factory=list)
    divisors: list[Any] = field(default_factory=list)
    loops: dict[Any, tuple[Any, Any]] = field(default_factory=dict)
    lets: dict[Any, Any] = field(default_factory=dict)
    aliases: dict[Any, Any] = field(default_factory=dict)
    allocated: list[Any] = field(default_factory=list)
    reduced: list[Any] = field(default_factory=list)
    reads_integers: bool = False

    def root(self, buffer: Any) -> Any:
        """The buffer behind one that a block only gave another name."""
        while buffer in self.aliases:
            buffer = self.aliases[buffer]
        return buffer

    def _access(self, buffer: Any, indices: Any) -> None:
        self.indices.extend(zip(indices, buffer.shape, strict=False))

    def _load(self, load: Any) -> None:
        self._access(load.source, load.indices)
        self.reads_integers |= str(load.ty).startswith(_INTEGERS)

    def _store(self, store: Any) -> None:
        self._access(store.buffer, store.indices)
        self.stores.append((store.buffer, store.value))

    def _block(self, block: Any) -> None:
        self.aliases.update({region.buffer: region.source.source for region in block.match_buffers})
        self.allocated.extend(block.alloc_buffers)
        self.loops.update({it.var: (it.dom.min, it.dom.extent) for it in block.iter_vars})
        domains = [it.dom.extent for it in block.iter_vars if int(it.iter_type) == _REDUCTION_ITER]
        self.reduced.append(domains)

    def _realize(self, realize: Any) -> None:
        pairs = zip(realize.iter_values, realize.block.iter_vars, strict=True)
        self.iterations.extend((value, it.dom) for value, it in pairs)

    def _divide(self, node: Any) -> None:
        if str(node.b.ty).startswith(_INTEGERS) and not isinstance(node.b, tirx.IntImm):
            self.divisors.append(node.b)


_REDUCTION_ITER = 2
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.LShift, tirx.RShift)


def facts_of(func: Any) -> Facts:
    """Walk the body of a PrimFunc once."""
    scalars = (p for p in func.params if not tirx.is_buffer_var(p) and str(p.ty).startswith(_INTEGERS))
    facts = Facts(frozenset(scalars))
    structural_walk(
        func.body,
        [
            (TensorLoad, facts._load),
            (tirx.BufferStore, facts._store),
            (SBlock, facts._block),
            (SBlockRealize, facts._realize),
            (_DIVISIONS, facts._divide),
            ((tirx.Bind, tirx.Let), lambda let: facts.lets.__setitem__(let.var, let.value)),
            (tirx.For, lambda loop: facts.loops.__setitem__(loop.loop_var, (loop.min, loop.extent))),
        ],
    )
    return facts


class _Demand:
    """That an expression stays in a span, as a question about the integer elements in it.

    Every load of an integer and every scalar parameter becomes a variable of its own, also in the extents of
    the loops that the expression depends on.
    """

    def __init__(self, expr: Any, facts: Facts, env: Env) -> None:
        self._facts, self._env = facts, env
        self._elements: dict[Any, Any] = {}
        self._loops: dict[Any, tuple[Any, Any]] = {}
        self._seen: set[Any] = set()
        self._expr = self._open(expr)

    @property
    def sources(self) -> set[Any]:
        """The buffers and scalars that the elements come from."""
        return set(self._elements.values())

    def _open(self, expr: Any) -> Any:
        return structural_map(expr, [(TensorLoad, self._on_load), (ir.Var, self._on_var)], order="pre")

    def _on_load(self, load: Any) -> Any:
        if not str(load.ty).startswith(_INTEGERS):
            return tirx.Var("other", str(load.ty))
        return self._element(self._facts.root(load.source), str(load.ty))

    def _element(self, source: Any, dtype: str) -> Any:
        """A variable for an element; wide enough for every bound that is tried."""
        wide = dtype if dtype in ("int32", "int64", "uint32", "uint64") else "int32"
        var = tirx.Var(f"x{len(self._elements)}", wide)
        self._elements[var] = source
        return var if wide == dtype else tirx.Cast(dtype, var)

    def _on_var(self, var: Any) -> Any:
        facts = self._facts
        if var in facts.lets:
            return self._open(facts.lets[var])
        if var in facts.scalars and var not in self._env:
            return self._element(var, str(var.ty))
        if var in facts.loops and var not in self._seen:
            self._seen.add(var)
            start, extent = map(self._open, facts.loops[var])
            self._loops[var] = start, extent
        return var

    def _bounds(self, low: int, high: int) -> Span | None:
        """The span of the expression while every element is in [low, high]; ``None`` if never computed."""
        analyzer = analyzer_at(self._env)
        for var in self._elements:
            dtype = str(var.ty)
            analyzer.bind(var, ir.Range(tirx.IntImm(dtype, low), tirx.IntImm(dtype, high + 1)))
        for var, (start, extent) in self._loops.items():
            extent = analyzer.simplify(extent)
            if isinstance(extent, tirx.IntImm) and extent.value <= 0:
                return None
            analyzer.bind(var, ir.Range.from_min_extent(analyzer.simplify(start), extent))
        bound = analyzer.const_int_bound(analyzer.simplify(self._expr))
        return int(bound.min_value), int(bound.max_value)

    def solve(self, low: int, high: int) -> Span:
        """A wide span of the elements that keeps the expression in [low, high].

        Where none can be proven, as for an access behind a condition, all elements are the same.
        """

        def fits(smallest: int, largest: int) -> bool:
            bounds = self._bounds(smallest, largest)
            return bounds is None or (low <= bounds[0] and bounds[1] <= high)

        smallest = -_FAR if all(str(var.ty).startswith("int") for var in self._elements) else 0
        shifted = low - (self._bounds(0, 0) or (low, low))[0]
        starts = (start for start in (0, low, shifted) if smallest <= start <= _FAR)
        start = next((start for start in starts if fits(start, start)), None)
        if start is None:
            return max(low, 0), max(low, 0)
        # The extent of a loop may be one more than its last index.
        below, beyond = start, start + max(high - low, 0) + 2
        while beyond - below > 1:
            middle = (below + beyond) // 2
            below, beyond = (middle, beyond) if fits(start, middle) else (below, middle)
        return start, below


def _narrow(found: dict[Any, Span], key: Any, span: Span) -> bool:
    """Intersect; says whether that changed something. The smallest value wins where nothing is left."""
    if key not in found:
        found[key] = span
        return True
    low, high = max(found[key][0], span[0]), min(found[key][1], span[1])
    before, found[key] = found[key], (low, max(low, high))
    return found[key] != before


def element_spans(facts: Facts, env: Env, wanted: Mapping[Any, Span]) -> dict[Any, Span]:
    """Integer buffer or scalar parameter -> the span in which its elements keep a function in its buffers.

    ``wanted`` are spans demanded from elsewhere. A demand on a buffer that the function itself fills is one
    on what it is filled from.
    """
    found: dict[Any, Span] = dict(wanted)
    if not facts.reads_integers and not facts.scalars:
        return found

    def demand(expr: Any, low: Any, high: Any) -> bool:
        asked = _Demand(expr, facts, env)
        if not asked.sources:
            return False
        solved = asked.solve(evaluate(low, env), evaluate(high, env))
        changed = [_narrow(found, source, solved) for source in asked.sources]
        return any(changed)

    for index, extent in facts.indices:
        demand(index, 0, extent - 1)
    for value, domain in facts.iterations:
        if not _Demand(domain.min + domain.extent, facts, env).sources:
            demand(value, domain.min, domain.min + domain.extent - 1)
    for expr in facts.divisors:
        demand(expr, *DIVISOR_SPAN)
    stores = [(facts.root(buffer), value) for buffer, value in facts.stores]
    for _ in stores:
        changed = [demand(value, *found[buffer]) for buffer, value in stores if buffer in found]
        if not any(changed):
            break
    return found


# Relax


def relax_spans(module: Any, name: str, env: Env) -> dict[Any, Span]:
    """Parameter of a Relax function -> the span of its elements.

    The function is legalised, and its calls are followed from the last to the first: what an operator asks of
    its input is asked of the output of the operator before. The items of a tuple share one span.
    """
    if not any(kind in str(param.ty) for param in module[name].params for kind in _INTEGERS):
        return {}
    legal = relax.transform.LegalizeOps()(module)
    legal_env = dict(zip(symbols(legal[name]), env.values(), strict=True))
    spans = _parameter_spans(legal, legal[name], legal_env, {})
    return {param: span for param, span in zip(module[name].params, spans, strict=True) if span}


def _parameter_spans(module: Any, func: Any, env: Env, wanted: Mapping[int, Span]) -> list[Span | None]:
    """The span that a Relax function asks of each parameter; ``wanted`` is asked of its outputs."""
    values = {b.var: getattr(b, "value", None) for block in func.body.blocks for b in block.bindings}
    found: dict[Any, Span] = {}

    def ask(tensor: Any, span: Span, item: int = 0) -> None:
        origin = _origin(tensor, values, item)
        if origin is not None:
            _narrow(found, origin, span)

    for item, span in wanted.items():
        ask(func.body.body, span, item)
    for var in reversed(list(values)):
        for arg, span in _demands_of_call(module, var, values[var], env, found):
            ask(arg, span)
    merged: dict[Any, Span] = {}
    for (var, _), span in found.items():
        _narrow(merged, var, span)
    return [merged.get(param) for param in func.params]


def _origin(expr: Any, values: Mapping[Any, Any], item: int) -> tuple[Any, int] | None:
    """The variable that made output ``item`` of an expression, and which of its outputs that is.

    ``None`` for a constant and other expressions that are no variable.
    """
    while True:
        value = values.get(expr) if isinstance(expr, ir.Var) else expr
        if isinstance(value, relax.TupleGetItem):
            item, expr = int(value.index), value.tuple_value
        elif isinstance(value, relax.Tuple):
            item, expr = 0, value.fields[item]
        elif isinstance(value, ir.Var):
            expr = value
        else:
            return (expr, item) if isinstance(expr, ir.Var) else None


def _demands_of_call(
    module: Any, var: Any, value: Any, env: Env, found: Mapping[Any, Span]
) -> Iterator[tuple[Any, Span]]:
    """What a call asks of its arguments: pairs of argument and span."""
    wanted = {k: span for (made, k), span in found.items() if made.same_as(var)}
    if not isinstance(value, ir.Call):
        return
    if isinstance(value.op, ir.GlobalVar):
        callee, args = module[value.op], list(value.args)
        if not isinstance(callee, relax.Function):
            return
        inner = _callee_env(callee, [arg.ty for arg in args], env)
        spans = _parameter_spans(module, callee, inner, wanted)
    elif isinstance(value.op, ir.Op) and value.op.name in ("relax.call_tir", "relax.call_tir_inplace"):
        callee, args = module[value.args[0]], list(value.args[1].fields)
        inner = _callee_env(callee, [arg.ty for arg in args] + _tensor_types(var.ty), env)
        outputs = dict(enumerate(callee.params[len(args) :]))
        inside = {outputs[k]: span for k, span in wanted.items() if k in outputs}
        by_param = element_spans(facts_of(callee), inner, inside)
        spans = [by_param.get(param) for param in callee.params[: len(args)]]
    else:
        return
    yield from ((arg, span) for arg, span in zip(args, spans, strict=True) if span)


def _tensor_types(ty: Any) -> list[Any]:
    return list(ty.fields) if isinstance(ty, ir.TupleType) else [ty]


def _callee_env(callee: Any, types: Sequence[Any], env: Env) -> Env:
    """The values of a callee's symbolic extents, from the types that it is called with."""
    found: Env = dict.fromkeys(symbols(callee), _UNKNOWN_EXTENT)
    for param, ty in zip(callee.params, types, strict=False):
        inside = param.shape if tirx.is_buffer_var(param) else getattr(param.ty, "shape", None)
        outside = getattr(ty, "shape", None)
        for dim, given in zip(inside or (), outside or (), strict=False):
            if isinstance(dim, ir.Var) and dim in found:
                value = analyzer_at(env).simplify(given)
                found[dim] = int(value.value) if isinstance(value, tirx.IntImm) else _UNKNOWN_EXTENT
    return found
