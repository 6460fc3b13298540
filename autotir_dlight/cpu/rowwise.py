# SPDX-License-Identifier: Apache-2.0
"""Chains of reductions and maps over the same rows (softmax, norms) in one nest, a row at a time.

::

    parallel i in rows:
        for k0: vectorised: acc[width] = max(acc, X[i, k])      # a row comes from memory once
        m = the maximum of acc                                  # first to a vector, then to a scalar
        for k0: vectorised: E[k] = exp(X[i, k] - m)             # E holds one row: L1 or L2
        for k0: vectorised: acc[width] += E[k]
        s = the sum of acc
        for k0: vectorised: Y[i, k] = E[k] / s

Stage by stage over the whole tensor, each would stream it from memory again. Buffers between the stages
shrink to one row; those under a kibibyte are on the stack and in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .._tvm import TensorLoad, ir, structural_equal, tirx
from ..blocks import Access, Block, FuncView
from ..knobs import Knob, knob
from ..machine import CpuMachine, dtype_bits
from ..patterns import Stage, Staging
from .blocking import widest_dividing, worth_parallel
from .map import contiguous, flat
from .nest import StageMatch, lanes_of
from .rows import MAX_PARTIAL_VECTORS, MIN_EXACT_LANES, MIN_STEPS

# The share of the L2 cache that a row, with the buffers between its stages, may take.
L2_SHARE = 2


@dataclass(frozen=True)
class RowStep:
    """What one block does on a row: ``reduce`` it to a number, ``map`` it to a row, or a ``number``.

    ``combine`` adds the vectors of partial results to one before the scalars.
    """

    kind: str
    combine: bool
    width: Knob | None


@dataclass(frozen=True)
class RowwisePlan:
    """``rows`` leading iterators of every block are the rows.

    ``lanes`` divide a row: ``compute_at`` loses the condition of a reduction's ragged end (TVM 0.27), and
    where rows start off a cache line, wider vectors in the maps were measured slower.
    """

    kind: str
    rows: int
    lanes: int
    parallel: bool
    reciprocal: bool
    steps: tuple[RowStep, ...]


def chain_of(staging: Staging) -> list[Stage]:
    """The stages and their epilogues, in program order."""
    every = [*staging.stages, *(s.epilogue for s in staging.stages if s.epilogue is not None)]
    return sorted(every, key=lambda s: s.anchor.index)


def plan_rowwise(view: FuncView, staging: Staging, machine: CpuMachine) -> RowwisePlan | None:
    """The plan of a function that is one chain over rows, ``None`` where it is not or would not pay."""
    chain = chain_of(staging)
    if len(chain) < 2 or chain[-1].kind != "map" or not any(s.kind == "reduction" for s in chain):
        return None
    if not all(_is_step(view, s, s is chain[-1]) for s in chain):
        return None
    rows = _common_rows(chain)
    columns = None if rows is None else _columns(chain, rows)
    if rows is None or columns is None or columns == 1:
        return None
    if not all(_fits(chain, s, rows, columns) for s in chain):
        return None
    lanes = widest_dividing(columns, _lanes(view, chain, machine, columns))
    last = chain[-1].anchor
    count = last.volume(last.spatial[:rows])
    if (
        lanes < MIN_EXACT_LANES
        or lanes == columns
        or _row_bytes(chain, columns) * L2_SHARE > machine.l2_bytes
    ):
        return None
    cycles = [s.cycles(lanes) for s in chain]
    known = [c for c in cycles if c is not None]
    parallel = worth_parallel(sum(known) if len(known) == len(cycles) else None, machine)
    if parallel and count is not None and count < machine.cores:
        return None
    reciprocal = _divides_by_softmax_sum(view, last)
    made = tuple(_step(s, rows, columns, lanes) for s in chain)
    return RowwisePlan("rowwise", rows, lanes, parallel, reciprocal, made)


def _is_step(view: FuncView, stage: Stage, last: bool) -> bool:
    """Whether the block is a map or a reduction over vectors, and writes where a row-wise nest can."""
    block = stage.anchor
    if stage.kind not in ("map", "reduction") or stage.scalar_only or block.annotations.keys() - {"axis"}:
        return False
    if not block.writes or any(not w.is_identity(block.spatial) or w.dtype == "bool" for w in block.writes):
        return False
    if stage.kind == "map" and block.value is None:
        return False
    if any(view.is_param(w.buffer) != last or len(view.writers(w.buffer)) != 1 for w in block.writes):
        return False
    return not block.mixed_indices and not stage.branch_iters


def _common_rows(chain: Sequence[Stage]) -> int | None:
    """How many leading iterators every block shares as rows, each reduction having no others."""
    last = chain[-1].anchor
    rows = len(last.spatial) - 1
    for block in (s.anchor for s in chain):
        rows = min(rows, len(block.spatial))
        same = 0
        while same < rows and _same_extent(block, last, same):
            same += 1
        rows = same
    for block in (s.anchor for s in chain if s.kind == "reduction"):
        if any(block.extent(i) != 1 for i in block.spatial[rows:]):
            return None
    return rows or None


def _same_extent(block: Block, other: Block, position: int) -> bool:
    a, b = block.iters[block.spatial[position]], other.iters[other.spatial[position]]
    if a.extent is None or b.extent is None:
        # Only the outermost loop may be symbolic where loops are fused.
        return position == 0 and bool(structural_equal(a.extent_expr, b.extent_expr))
    return a.extent == b.extent


def _columns(chain: Sequence[Stage], rows: int) -> int | None:
    last = chain[-1].anchor
    return last.volume(last.spatial[rows:])


def _inner(stage: Stage, rows: int) -> tuple[int, ...]:
    """The iterators that run along a row."""
    block = stage.anchor
    return block.reduce if stage.kind == "reduction" else block.spatial[rows:]


def _fits(chain: Sequence[Stage], stage: Stage, rows: int, columns: int) -> bool:
    """Whether the block stays on its row: all of it or a number of it, contiguous, row by row."""
    block, inner = stage.anchor, _inner(stage, rows)
    if block.volume(inner) not in (columns, 1):
        return False
    made = [w.buffer for s in chain for w in s.anchor.writes]
    for access in (*stage.reads, *block.writes):
        if any(access.buffer.same_as(m) for m in made) and not _by_row(access, block, rows):
            return False
        if block.volume(inner) == columns and not _is_run(access, block, inner):
            return False
    return True


def _by_row(access: Access, block: Block, rows: int) -> bool:
    """Whether the leading indices are the row's iterators."""
    for d in range(rows):
        row = access.coefficients[d]
        wanted = tuple(int(i == block.spatial[d]) for i in range(access.arity))
        if row != wanted or getattr(access.offsets[d], "value", None) != 0:
            return False
    return True


def _is_run(access: Access, block: Block, inner: Sequence[int]) -> bool:
    live = [i for i in inner if block.extent(i) != 1]
    return contiguous(access, live[-1]) and all(flat(access, block, i, j) for i, j in pairwise(live))


def _lanes(view: FuncView, chain: Sequence[Stage], machine: CpuMachine, columns: int) -> int:
    """Lanes of the widest vector that a row fills a few times."""
    widest = min(
        lanes_of(StageMatch(view, s, machine), a.dtype) for s in chain for a in (*s.reads, *s.anchor.writes)
    )
    while widest > MIN_EXACT_LANES and columns < widest * MIN_STEPS:
        widest //= 2
    return widest


def _row_bytes(chain: Sequence[Stage], columns: int) -> int:
    """Bytes of one row of everything that the chain touches, each buffer once."""
    seen: list[Any] = []
    total = 0
    for access in (a for s in chain for a in (*s.reads, *s.anchor.writes)):
        if not any(access.buffer.same_as(b) for b in seen):
            seen.append(access.buffer)
            total += columns * dtype_bits(access.dtype) // 8
    return total


def _step(stage: Stage, rows: int, columns: int, lanes: int) -> RowStep:
    if stage.kind == "map":
        alone = stage.anchor.volume(stage.anchor.spatial[rows:]) == 1
        return RowStep("number" if alone else "map", False, None)
    # compute_at drops a loop of one step: a row is longer than the partial results.
    choices = [v for v in range(1, MAX_PARTIAL_VECTORS + 2) if columns % (lanes * v) == 0]
    choices = [v for v in choices if columns > lanes * v]
    vectors = max([v for v in choices if columns >= lanes * v * MIN_STEPS], default=1)
    choices = [v for v in choices if (v > 1) == (vectors > 1)]
    why = "partial results that hide the latency of an addition"
    return RowStep("reduce", vectors > 1, knob(lanes * vectors, [lanes * v for v in choices], why))


def _divides_by_softmax_sum(view: FuncView, last: Block) -> bool:
    """Whether the value is ``e / s``, ``s`` the sum of ``exp(x - max(x))``: at least 1, with a reciprocal."""
    value = last.value
    if not isinstance(value, tirx.Div) or not isinstance(value.b, TensorLoad):
        return False
    total = _made_by(view, value.b)
    if not isinstance(total, tirx.Add) or not isinstance(total.b, TensorLoad):
        return False
    term = _made_by(view, total.b)
    if not isinstance(term, ir.Call) or not isinstance(term.op, ir.Op) or not term.op.name.endswith(".exp"):
        return False
    shifted = term.args[0]
    if not isinstance(shifted, tirx.Sub) or not isinstance(shifted.b, TensorLoad):
        return False
    return isinstance(_made_by(view, shifted.b), tirx.Max)


def _made_by(view: FuncView, load: Any) -> Any:
    """The expression that computes the buffer that ``load`` reads, or ``None``."""
    writers = view.writers(load.source)
    return writers[0].value if len(writers) == 1 else None


# --- schedule -------------------------------------------------------------------------------------------
