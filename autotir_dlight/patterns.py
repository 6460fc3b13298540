# SPDX-License-Identifier: Apache-2.0
"""What a function computes: its stages, and the roles of the iterators in each.

A function is cut into *stages*: an anchor block that keeps a loop nest of its own, with the cheap injective
blocks that are inlined and, after a reduction, the elementwise *epilogue* that runs on each finished tile.
The kind of a stage follows from index sets alone, as in MLIR's linalg: for operands A and B and result C,
``batch = A∩B∩C``, ``m = A∩C−B``, ``n = B∩C−A``, ``k = A∩B−C``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ._tvm import TensorLoad, structural_equal, structural_walk, tirx
from .blocks import Access, Block, FuncView, as_int
from .expressions import COSTLY_WORK

StageKind = Literal["contraction", "reduction", "map", "serial"]

# Above this many expression nodes a group of inlined blocks is kept apart: code size and compile time.
MAX_INLINED_SIZE = 400
# A producer that is evaluated at most this many times an element may be inlined although it costs something.
MAX_RECOMPUTE = 2
# Work (see ExprStats.work) under which evaluating again is cheaper than a trip through memory.
CHEAP_WORK = 6


@dataclass(frozen=True)
class Contraction:
    """A sum of products. ``left`` and ``right`` are positions in the stage's reads.

    ``rows`` are the spatial iterators of the operand that does not own the innermost axis of the result,
    ``columns`` those of the one that does (the operand that is read in vectors), ``batch`` those in both.
    """

    vector_read: int
    row_read: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    reduce: tuple[int, ...]
    window: bool


@dataclass(frozen=True)
class Stage:
    """One loop nest of the function that will come out.

    ``reads`` are the anchor's accesses with inlined producers looked through, in terms of its iterators;
    ``branch_iters`` the iterators that some inlined condition depends on; ``scalar_only`` says that some call
    cannot be vectorised.
    """

    kind: StageKind
    anchor: Block
    inlined: tuple[int, ...]
    reads: tuple[Access, ...]
    branch_iters: frozenset[int]
    work: int
    costly: int
    scalar_only: bool
    epilogue: Stage | None = None
    contraction: Contraction | None = None
    note: str = ""

    def cycles(self, lanes: int) -> int | None:
        """About how long one core takes with ``lanes`` elements a vector; ``None`` where an extent is
        symbolic.

        Two vector operations a cycle; calls of the mathematics library are made one element at a time.
        """
        volume = self.anchor.volume()
        if volume is None:
            return None
        simple = max(1, self.work - COSTLY_WORK * self.costly)
        return volume * simple // (2 * lanes) + volume * COSTLY_WORK * self.costly


@dataclass(frozen=True)
class Staging:
    """The blocks to inline, in program order, and the stages that stay."""

    inline: tuple[int, ...]
    stages: tuple[Stage, ...]


def stage_function(view: FuncView) -> Staging:
    """Cut a readable function into stages; the view remembers the answer, which every rule asks for."""
    memo = view.__dict__
    if "staging" not in memo:
        memo["staging"] = _stage_function(view)
    return memo["staging"]


NO_ELEMENTS = "an extent is zero: nothing to compute"


def _stage_function(view: FuncView) -> Staging:
    if any(it.extent == 0 for block in view.blocks for it in block.iters):
        # TVM's proofs about regions fail on empty ones, and there is nothing to gain.
        whole = [replace(_stage(view, b, set(), None), kind="serial") for b in view.blocks]
        return Staging((), tuple(replace(s, note=s.note or NO_ELEMENTS) for s in whole))
    inlined = _choose_inlined(view)
    owner = _epilogues(view, inlined)
    taken = {e.index for e in owner.values()}
    stages = []
    for block in view.blocks:
        if block.index in inlined or block.index in taken:
            continue
        stages.append(_stage(view, block, inlined, owner.get(block.index)))
    return Staging(tuple(sorted(inlined)), tuple(stages))


# --- inlining -------------------------------------------------------------------------------------------


def is_copy(block: Block) -> bool:
    """Whether the block only moves elements, each index affine, nothing conditional."""
    return (
        isinstance(block.value, TensorLoad) and all(r.affine for r in block.reads) and len(block.reads) == 1
    )


def _may_inline(view: FuncView, block: Block) -> bool:
    if not block.is_injective or block.value is None or not block.writes_identity():
        return False
    buffer = block.writes[0].buffer
    if view.is_param(buffer) or len(view.writers(buffer)) != 1 or block.annotations:
        return False
    if any(r.buffer.same_as(buffer) for r in block.reads):
        return False
    readers = view.readers(buffer)
    if not readers or any(c.opaque for c in readers):
        return False
    # What the block reads must not change between it and its consumers.
    last = max(c.index for c in readers)
    return all(not any(block.index < w.index <= last for w in view.writers(r.buffer)) for r in block.reads)


def _reads_of(block: Block, buffer: object) -> list[Access]:
    return [r for r in block.reads if r.buffer.same_as(buffer)]


def _recompute(producer: Block, consumer: Block) -> float:
    """How often one element of ``producer`` is evaluated when it is inlined into ``consumer``."""
    reads = len(_reads_of(consumer, producer.writes[0].buffer))
    ours, theirs = producer.volume(), consumer.volume()
    if ours is None or theirs is None:
        same = len(producer.iters) == len(consumer.iters)
        return reads if same else reads * (MAX_RECOMPUTE + 1)
    return reads * theirs / max(1, ours)


def _loads(block: Block, buffer: object) -> int:
    """How many loads of ``buffer`` the block's expression holds."""
    found: list[TensorLoad] = []

    def on_load(load: TensorLoad) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    structural_walk(block.value if block.value is not None else (), [(TensorLoad, on_load)])
    return max(1, len(found))


def _choose_inlined(view: FuncView) -> set[int]:
    """The blocks to inline, consumers decided before producers.

    ``copies[b]`` is how often b's expression stands in those of its roots, ``size[r]`` how large r's becomes.
    """
    inlined: set[int] = set()
    roots: dict[int, set[int]] = {}
    copies: dict[int, int] = {}
    size = {b.index: b.stats.size for b in view.blocks}
    for block in reversed(view.blocks):
        roots[block.index], copies[block.index] = {block.index}, 1
        if not _may_inline(view, block):
            continue
        buffer = block.writes[0].buffer
        readers = view.readers(buffer)
        union = set().union(*(roots[c.index] for c in readers))
        if not all(_worth(view, block, c, len(union) > 1) for c in readers):
            continue
        times = sum(copies[c.index] * _loads(c, buffer) for c in readers)
        added = block.stats.size * times
        if not is_copy(block) and any(size[r] + added > MAX_INLINED_SIZE for r in union):
            continue
        inlined.add(block.index)
        roots[block.index], copies[block.index] = union, times
        for root in union:
            size[root] += added
    return inlined


def _worth(view: FuncView, producer: Block, consumer: Block, several: bool) -> bool:
    """Whether evaluating ``producer`` inside ``consumer`` beats a buffer between them."""
    if is_copy(producer):
        return True
    if consumer.is_reduction and _product(consumer) is not None:
        return False
    recompute = _recompute(producer, consumer)
    stats = producer.stats
    if consumer.is_reduction and stats.branches and recompute > 1:
        return False
    if stats.costly or stats.divisions:
        return recompute <= 1 and not several
    return recompute <= MAX_RECOMPUTE or stats.work <= CHEAP_WORK


def _through(view: FuncView, reads: Sequence[Access], inlined: set[int]) -> tuple[Access, ...]:
    """``reads`` with the inlined producers replaced by what these read."""
    found: list[Access] = []
    for read in reads:
        producer = next((b for b in view.writers(read.buffer) if b.index in inlined), None)
        if producer is None:
            found.append(read)
            continue
        inner = _through(view, producer.reads, inlined)
        found.extend(_compose(read, access) for access in inner)
    unique: list[Access] = []
    for access in found:
        if not any(a.same(access) for a in unique):
            unique.append(access)
    return tuple(unique)


def _compose(outer: Access, inner: Access) -> Access:
    """``inner`` is in terms of the iterators that ``outer`` indexes; rewrite it in terms of outer's."""
    width = outer.arity
    rows: list[tuple[int, ...] | None] = []
    used: list[frozenset[int]] = []
    for row, touched in zip(inner.coefficients, inner.used):
        used.append(frozenset().union(*(outer.used[j] for j in touched if j < len(outer.used))))
        if row is None:
            rows.append(None)
            continue
        total: list[int] | None = [0] * width
        for factor, inner_row in zip(row, outer.coefficients):
            if factor and inner_row is None:
                total = None
                break
            if factor and inner_row is not None and total is not None:
                total = [t + factor * c for t, c in zip(total, inner_row)]
        rows.append(None if total is None else tuple(total))
    return replace(inner, coefficients=tuple(rows), used=tuple(used), arity=width)


def _inside(view: FuncView, block: Block, inlined: set[int]) -> dict[int, list[Access]]:
    """The blocks inlined (transitively) into ``block``, each with the accesses that reach it in its terms."""
    reached: dict[int, list[Access]] = {}

    def visit(reads: Sequence[Access]) -> None:
        for read in reads:
            for producer in view.writers(read.buffer):
                if producer.index in inlined:
                    reached.setdefault(producer.index, []).append(read)
                    visit([_compose(read, r) for r in producer.reads])

    visit(block.reads)
    return reached


def _branches(view: FuncView, block: Block, reached: dict[int, list[Access]]) -> frozenset[int]:
    used = set(block.branch_iters)
    for index, accesses in reached.items():
        producer = view.blocks[index]
        for access in accesses:
            for j in producer.branch_iters:
                row = access.coefficients[j] if j < len(access.coefficients) else None
                used.update(i for i in range(len(block.iters)) if row is None or row[i] != 0)
    return frozenset(used)


# --- epilogues ------------------------------------------------------------------------------------------


def _epilogues(view: FuncView, inlined: set[int]) -> dict[int, Block]:
    """For each reduction with a fusible elementwise consumer, that consumer; one serves one anchor."""
    owner: dict[int, Block] = {}
    taken: set[int] = set()
    for anchor in view.blocks:
        if not anchor.is_reduction or anchor.opaque or not anchor.writes_identity():
            continue
        root = _epilogue_of(view, anchor, inlined)
        if root is not None and root.index not in taken:
            owner[anchor.index] = root
            taken.add(root.index)
    return owner


def _same_space(anchor: Block, other: Block) -> bool:
    ours = [anchor.iters[i] for i in anchor.spatial]
    theirs = [other.iters[i] for i in other.spatial]
    return len(ours) == len(theirs) and all(
        a.extent == b.extent and (a.extent is not None or _equal(a.extent_expr, b.extent_expr))
        for a, b in zip(ours, theirs)
    )


def _equal(a: object, b: object) -> bool:
    return bool(structural_equal(a, b))


def _epilogue_of(view: FuncView, anchor: Block, inlined: set[int]) -> Block | None:
    """The one injective block that the anchor's result flows into, element by element, or ``None``."""
    buffer = anchor.writes[0].buffer
    if view.is_param(buffer) or len(view.writers(buffer)) != 1:
        return None
    aligned, frontier, roots = [buffer], [buffer], set()
    while frontier:
        current = frontier.pop()
        for reader in view.readers(current):
            if not _aligned_reader(anchor, reader, current):
                return None
            if reader.index not in inlined:
                roots.add(reader.index)
            elif not any(reader.writes[0].buffer.same_as(a) for a in aligned):
                aligned.append(reader.writes[0].buffer)
                frontier.append(reader.writes[0].buffer)
    if len(roots) != 1:
        return None
    root = view.blocks[roots.pop()]
    if root.value is None or len(view.writers(root.writes[0].buffer)) != 1:
        return None
    if any(b.stats.scalar_only for b in (root, *(view.blocks[i] for i in _inside(view, root, inlined)))):
        return None
    return root if _reads_only(view, anchor, root, inlined) else None


def _aligned_reader(anchor: Block, reader: Block, buffer: object) -> bool:
    return (
        reader.is_injective
        and reader.writes_identity()
        and _same_space(anchor, reader)
        and all(r.is_identity(reader.spatial) for r in _reads_of(reader, buffer))
    )


def _reads_only(view: FuncView, anchor: Block, root: Block, inlined: set[int]) -> bool:
    """Whether all else that the epilogue reads are parameters.

    ``reverse_compute_at`` wants every producer of the block that it moves under the loop it moves it to.
    """
    return all(
        writer.index == anchor.index
        for read in _through(view, root.reads, inlined)
        for writer in view.writers(read.buffer)
    )


# --- kinds ----------------------------------------------------------------------------------------------


def _stage(view: FuncView, block: Block, inlined: set[int], epilogue: Block | None) -> Stage:
    reached = _inside(view, block, inlined)
    reads = _through(view, block.reads, inlined)
    work = block.stats.work + sum(view.blocks[i].stats.work for i in reached)
    costly = block.stats.library + sum(view.blocks[i].stats.library for i in reached)
    scalar_only = any(b.stats.scalar_only for b in (block, *(view.blocks[i] for i in reached)))
    kind: StageKind = "serial" if block.opaque else "map" if block.is_injective else "reduction"
    stage = Stage(
        kind,
        block,
        tuple(sorted(reached)),
        reads,
        _branches(view, block, reached),
        work,
        costly,
        scalar_only,
        None if epilogue is None else _stage(view, epilogue, inlined, None),
        note=block.opaque,
    )
    if kind != "reduction":
        return stage
    contraction = _contraction(stage)
    return stage if contraction is None else replace(stage, kind="contraction", contraction=contraction)


def _strip_casts(expr: object) -> object:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _product(block: Block) -> tuple[TensorLoad, TensorLoad] | None:
    """The two factors of ``C[...] = C[...] + A[...] * B[...]`` (casts allowed), or ``None``."""
    value = block.value
    if value is None or not isinstance(value, tirx.Add) or not block.writes:
        return None
    result = block.writes[0].buffer
    for mine, term in ((value.a, value.b), (value.b, value.a)):
        if not isinstance(mine, TensorLoad) or not mine.source.same_as(result):
            continue
        term = _strip_casts(term)
        if isinstance(term, tirx.Mul):
            a, b = _strip_casts(term.a), _strip_casts(term.b)
            if isinstance(a, TensorLoad) and isinstance(b, TensorLoad):
                return a, b
    return None


def _is_zero(init: object) -> bool:
    value = getattr(init, "value", None)
    if isinstance(value, tirx.FloatImm):
        return float(value.value) == 0.0
    return as_int(value) == 0


def _contraction(stage: Stage) -> Contraction | None:
    block = stage.anchor
    if _product(block) is None or not block.writes_identity() or not _is_zero(block.init):
        return None
    if len(stage.reads) != 2 or stage.reads[0].buffer.same_as(stage.reads[1].buffer):
        return None
    left, right = ([r.uses(i) for i in range(len(block.iters))] for r in stage.reads)
    inner = [i for i in block.spatial if block.extent(i) != 1]
    vector_read = 1
    if inner and left[inner[-1]] and not right[inner[-1]]:
        vector_read = 0
    elif inner and left[inner[-1]] and right[inner[-1]]:
        others = [i for i in inner if left[i] != right[i]]
        vector_read = 0 if others and left[others[-1]] else 1
    vec, row = (left, right) if vector_read == 0 else (right, left)
    spatial = block.spatial
    if any(not vec[i] and not row[i] and block.extent(i) != 1 for i in spatial):
        return None
    return Contraction(
        vector_read,
        1 - vector_read,
        batch=tuple(i for i in spatial if vec[i] and row[i]),
        rows=tuple(i for i in spatial if row[i] and not vec[i]),
        columns=tuple(i for i in spatial if vec[i] and not row[i]),
        reduce=block.reduce,
        window=any(windowed(r, block) for r in stage.reads),
    )


def windowed(access: Access, block: Block) -> bool:
    """Whether some index mixes a spatial with a reduction iterator that has more than one position."""
    for row in access.coefficients:
        if row is None:
            continue
        spatial = any(row[i] and block.extent(i) != 1 for i in block.spatial)
        if spatial and any(row[i] for i in block.reduce if block.extent(i) != 1):
            return True
    return False
