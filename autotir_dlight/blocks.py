# SPDX-License-Identifier: Apache-2.0
"""A read-only view of a TensorIR function: its blocks, their iterators and how each buffer is accessed.

Rules look at functions through this view only. Names of blocks and buffers are kept for messages and never
used for a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ._tvm import SBlock, SBlockRealize, TensorLoad, ir, structural_equal, structural_walk, sym, tirx
from .expressions import ExprStats, branch_conditions, expr_stats, uses_any

# Why a block that is a program of its own is opaque; the loops around it can still be parallel.
NESTED = "the block holds loops or blocks of its own"

Kind = Literal["S", "R", "O"]
SPATIAL: Kind = "S"
REDUCE: Kind = "R"


def as_int(expr: Any) -> int | None:
    """The value of a constant integer expression, else ``None``."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def _equal(a: Any, b: Any) -> bool:
    known = as_int(a)
    return known == as_int(b) if known is not None else bool(structural_equal(a, b))


@dataclass(frozen=True)
class Iter:
    """One block iterator: ``extent`` is ``None`` where it is symbolic; ``loop`` is its loop's position."""

    kind: Kind
    var: Any
    extent: int | None
    extent_expr: Any
    loop: int


@dataclass(frozen=True)
class Access:
    """A read or a write of ``buffer`` at ``indices``.

    ``coefficients[d][i]`` is the factor of iterator ``i`` in index ``d``; a row is ``None`` where the index
    is not affine in the iterators; ``used[d]`` are the iterators in index ``d``, ``arity`` is how many the
    block has. ``strides[d]`` is the buffer's stride in elements (``None``: symbolic).
    """

    buffer: Any
    indices: tuple[Any, ...]
    coefficients: tuple[tuple[int, ...] | None, ...]
    offsets: tuple[Any, ...]
    strides: tuple[int | None, ...]
    used: tuple[frozenset[int], ...]
    arity: int

    @property
    def dtype(self) -> str:
        return str(self.buffer.dtype)

    @property
    def affine(self) -> bool:
        return all(row is not None for row in self.coefficients)

    @property
    def shape(self) -> tuple[int | None, ...]:
        return tuple(as_int(d) for d in self.buffer.shape)

    def same(self, other: Access) -> bool:
        """Whether both read the same elements of the same buffer."""
        return (
            self.buffer.same_as(other.buffer)
            and self.coefficients == other.coefficients
            and all(_equal(a, b) for a, b in zip(self.offsets, other.offsets))
        )

    def uses(self, i: int) -> bool:
        """Whether iterator ``i`` may move this access."""
        return any(
            row[i] != 0 if row is not None else i in used for row, used in zip(self.coefficients, self.used)
        )

    def stride(self, i: int) -> int | None:
        """Elements between neighbours along iterator ``i``; ``None`` where it can't be known."""
        total = 0
        for row, step in zip(self.coefficients, self.strides):
            if row is None:
                return None
            if row[i]:
                if step is None:
                    return None
                total += row[i] * step
        return total

    def is_identity(self, iters: Sequence[int]) -> bool:
        """Whether index ``d`` is exactly iterator ``iters[d]``, with no offset."""
        if len(iters) != len(self.coefficients):
            return False
        for row, offset, i in zip(self.coefficients, self.offsets, iters):
            if row is None or as_int(offset) != 0:
                return False
            if any(c != (1 if j == i else 0) for j, c in enumerate(row)):
                return False
        return True


@dataclass(frozen=True)
class Block:
    """One computation block of a function, directly under the root.

    ``opaque`` says why the block must stay as it is; ``touches`` are the buffers that an opaque block names
    in any way, also by their address.
    """

    index: int
    name: str
    iters: tuple[Iter, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    value: Any
    init: Any
    loop_count: int
    opaque: str
    stats: ExprStats
    branch_iters: frozenset[int] = frozenset()
    touches: tuple[Any, ...] = ()
    annotations: dict[str, Any] = field(default_factory=dict)

    @property
    def is_reduction(self) -> bool:
        return any(it.kind == REDUCE for it in self.iters)

    @property
    def is_injective(self) -> bool:
        return not self.opaque and all(it.kind == SPATIAL for it in self.iters)

    @cached_property
    def spatial(self) -> tuple[int, ...]:
        return tuple(i for i, it in enumerate(self.iters) if it.kind == SPATIAL)

    @cached_property
    def reduce(self) -> tuple[int, ...]:
        return tuple(i for i, it in enumerate(self.iters) if it.kind == REDUCE)

    def extent(self, i: int) -> int | None:
        return self.iters[i].extent

    def volume(self, iters: Sequence[int] | None = None) -> int | None:
        """The number of iterations over ``iters`` (default: all); ``None`` where one is symbolic."""
        total = 1
        for i in range(len(self.iters)) if iters is None else iters:
            extent = self.iters[i].extent
            if extent is None:
                return None
            total *= extent
        return total

    @cached_property
    def mixed_indices(self) -> bool:
        """Whether some iterators are int32 and some int64, which TVM's layout primitives refuse."""
        return len({str(it.var.ty) for it in self.iters}) > 1

    def writes_identity(self) -> bool:
        """Whether the block writes one buffer at exactly its spatial iterators, in their order."""
        return len(self.writes) == 1 and self.writes[0].is_identity(self.spatial)


@dataclass(frozen=True)
class FuncView:
    """A whole function: its blocks in program order, or the reason why it has none that can be seen."""

    func: Any
    blocks: tuple[Block, ...]
    unreadable: str
    params: tuple[Any, ...]
    layout_free: frozenset[int]

    def is_param(self, buffer: Any) -> bool:
        return any(buffer.same_as(p) for p in self.params)

    def writers(self, buffer: Any) -> list[Block]:
        return [b for b in self.blocks if any(w.buffer.same_as(buffer) for w in b.writes)]

    def readers(self, buffer: Any) -> list[Block]:
        return [
            b
            for b in self.blocks
            if any(r.buffer.same_as(buffer) for r in b.reads) or any(t.same_as(buffer) for t in b.touches)
        ]

    def is_constant_weight(self, buffer: Any) -> bool:
        """Whether the caller allows this parameter's layout to change (``layout_free_buffers``)."""
        return any(buffer.same_as(self.params[i]) for i in self.layout_free)

    @classmethod
    def of(cls, func: Any) -> FuncView:
        """View ``func`` (a ``PrimFunc``); never raises on a function that TVM accepts."""
        params = tuple(p for p in func.params if hasattr(p, "shape") and hasattr(p, "dtype"))
        attrs = func.attrs or {}
        free = frozenset(
            i for i in (int(v) for v in attrs.get("layout_free_buffers", [])) if i < len(func.params)
        )
        positions = frozenset(k for k, p in enumerate(params) if any(p.same_as(func.params[i]) for i in free))
        root = func.body
        if not isinstance(root, SBlockRealize) or root.block.iter_vars:
            return cls(func, (), "the function has no root block", params, positions)
        if root.block.init is not None or root.block.match_buffers:
            return cls(func, (), "the root block holds more than a list of nests", params, positions)
        body = root.block.body
        nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
        blocks: list[Block] = []
        for nest in nests:
            found = _block_of(nest, len(blocks))
            if isinstance(found, str):
                return cls(func, (), found, params, positions)
            blocks.append(found)
        return cls(func, tuple(blocks), "", params, positions)


def _strides(buffer: Any) -> tuple[int | None, ...]:
    if len(buffer.strides):
        return tuple(as_int(s) for s in buffer.strides)
    strides: list[int | None] = []
    step: int | None = 1
    for dim in reversed(list(buffer.shape)):
        strides.append(step)
        extent = as_int(dim)
        step = None if step is None or extent is None else step * extent
    return tuple(reversed(strides))


def _access(buffer: Any, indices: Sequence[Any], variables: list[Any]) -> Access:
    rows: list[tuple[int, ...] | None] = []
    offsets: list[Any] = []
    used: list[frozenset[int]] = []
    for index in indices:
        present = uses_any(index, variables) if variables else []
        used.append(frozenset(i for i, hit in enumerate(present) if hit))
        terms = sym.detect_linear_equation(index, variables) if variables else []
        numbers = [as_int(t) for t in terms[:-1]] if terms else [None]
        if variables and (not terms or any(n is None for n in numbers)):
            rows.append(None)
            offsets.append(index)
        else:
            rows.append(tuple(n for n in numbers if n is not None) if variables else ())
            offsets.append(terms[-1] if variables else index)
    return Access(
        buffer, tuple(indices), tuple(rows), tuple(offsets), _strides(buffer), tuple(used), len(variables)
    )


def _kind(iter_var: Any) -> Kind:
    if iter_var.iter_type == tirx.IterVar.DataPar:
        return SPATIAL
    return REDUCE if iter_var.iter_type == tirx.IterVar.CommReduce else "O"


def _bind(loops: list[Any], realize: Any) -> list[int] | str:
    """For each iterator the position of its loop, or why the binding is not one loop an iterator."""
    taken: dict[int, int] = {}
    for position, value in enumerate(realize.iter_values):
        if isinstance(value, tirx.IntImm) and as_int(value) == 0:
            continue
        for depth, loop in enumerate(loops):
            if loop.loop_var.same_as(value) and depth not in taken.values():
                taken[position] = depth
                break
        else:
            return "an iterator is bound to an expression of several loops"
    if len(taken) != len(loops):
        return "a loop is bound to no iterator"
    return [taken.get(i, -1) for i in range(len(realize.iter_values))]


def _block_of(nest: Any, index: int) -> Block | str:
    """The block at the bottom of a loop nest, or why the nest can't be seen as one."""
    loops: list[Any] = []
    while isinstance(nest, tirx.For):
        loops.append(nest)
        nest = nest.body
    if not isinstance(nest, SBlockRealize):
        return "a statement stands outside of every block"
    if any(int(loop.kind) != int(tirx.ForKind.SERIAL) for loop in loops):
        return "a loop is already parallel, vectorised, unrolled or bound"
    block = nest.block
    binding = _bind(loops, nest)
    where = [-1] * len(block.iter_vars) if isinstance(binding, str) else binding
    variables = [iv.var for iv in block.iter_vars]
    reads, writes = _accesses(block, variables)
    stats = expr_stats(block.body)
    opaque = _opaque(nest, stats) or (binding if isinstance(binding, str) else "")
    return Block(
        index=index,
        name=str(block.name_hint),
        iters=tuple(
            Iter(_kind(iv), iv.var, as_int(iv.dom.extent), iv.dom.extent, loop)
            for iv, loop in zip(block.iter_vars, where)
        ),
        reads=reads,
        writes=writes,
        value=block.body.value if isinstance(block.body, tirx.BufferStore) else None,
        init=block.init,
        loop_count=len(loops),
        opaque=opaque,
        stats=stats,
        branch_iters=_branch_iters(block.body, variables),
        touches=_buffers_in(block) if opaque else (),
        annotations={str(k): v for k, v in dict(block.annotations).items()},
    )


def _buffers_in(block: Any) -> tuple[Any, ...]:
    """Every buffer that the block's regions or statements name."""
    found: list[Any] = [region.source for region in (*block.reads, *block.writes)]

    def on_var(var: Any) -> None:
        if hasattr(var, "shape") and not any(var.same_as(f) for f in found):
            found.append(var)

    structural_walk(block.body, [(ir.Var, on_var)])
    return tuple(found)


def _opaque(realize: Any, stats: ExprStats) -> str:
    """Why a block must be left as it is; ``""`` where it need not."""
    block = realize.block
    checks = {
        "the block has a predicate": as_int(realize.predicate) != 1,
        "an iterator is neither parallel nor a commutative reduction": any(
            _kind(iv) == "O" for iv in block.iter_vars
        ),
        "an iterator does not start at zero": any(as_int(iv.dom.min) != 0 for iv in block.iter_vars),
        "the block allocates or matches buffers": bool(block.alloc_buffers or block.match_buffers),
        f"the block calls {stats.opaque_call}": bool(stats.opaque_call),
        NESTED: stats.nested_blocks > 0 or stats.statements > 0,
    }
    return next((reason for reason, holds in checks.items() if holds), "")


def _branch_iters(body: Any, variables: list[Any]) -> frozenset[int]:
    """The iterators that some ``if_then_else`` condition depends on."""
    used: set[int] = set()
    for condition in branch_conditions(body):
        used.update(i for i, hit in enumerate(uses_any(condition, variables)) if hit)
    return frozenset(used)


def _accesses(block: Any, variables: list[Any]) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """The accesses in the body itself: the declared regions may be wider than what is touched."""
    reads: list[Access] = []
    writes: list[Access] = []

    def on_load(load: Any) -> None:
        access = _access(load.source, list(load.indices), variables)
        if not any(access.same(r) for r in reads):
            reads.append(access)

    def on_store(store: Any) -> None:
        writes.append(_access(store.buffer, list(store.indices), variables))

    structural_walk(block.body, [(TensorLoad, on_load), (tirx.BufferStore, on_store)])
    written = [w.buffer for w in writes]
    if any(iv.iter_type == tirx.IterVar.CommReduce for iv in block.iter_vars):
        reads = [r for r in reads if not any(r.buffer.same_as(w) for w in written)]
    return tuple(reads), tuple(writes)


def rebuilt_block(block: Any, body: Any, iter_vars: Any = None, annotations: Any = None) -> Any:
    """``block`` with another body, and other iterators or annotations where given."""
    return SBlock(
        block.iter_vars if iter_vars is None else iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations if annotations is None else annotations,
    )
