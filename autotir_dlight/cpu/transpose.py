# SPDX-License-Identifier: Apache-2.0
"""Transposes: copies whose source is contiguous along another axis than the result.

::

    parallel outer axes, i0, j0:                       # tiles of the result
        T[j in 256, i in 256] = X[j, i]                # a copy in long runs, into the L2 cache
        for i1, j1:
            unrolled: t[8][8] = T[...]                 # rows as vectors, on the stack
            unrolled: Y[i1 + 8, j1 + 8] = t            # columns as vectors: shuffles between registers

Without the copy every line of a tile comes from memory alone, which no prefetcher foresees: half the speed on
64 MB. What fits the L2 cache does without.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import steps
from ..machine import dtype_bits
from ..patterns import is_copy
from .nest import Nest, StageMatch, is_parallel, result_lanes

# Rows and columns of the block that is transposed in registers.
MICRO = 8
# Rows and columns of a tile: its float32 take an eighth of a 2 MiB L2 cache; 64 leaves runs too short.
TILE = 256


@dataclass(frozen=True)
class TransposePlan:
    """``row`` is the iterator along which the source is contiguous; tiles are ``rows`` × ``columns``.

    ``staged`` copies a tile of the source first.
    """

    kind: str
    row: int
    rows: int
    columns: int
    staged: bool
    parallel: bool


def plan_transpose(match: StageMatch) -> TransposePlan | None:
    """The plan of a map that only moves elements across, ``None`` for every other."""
    stage, block = match.stage, match.stage.anchor
    if stage.inlined or not is_copy(block) or not block.writes_identity() or block.mixed_indices:
        return None
    volume, read = block.volume(), stage.reads[0]
    live = [i for i in range(len(block.iters)) if block.iters[i].loop >= 0 and block.extent(i) != 1]
    if volume is None or len(live) < 2 or result_lanes(match) < 4 or read.dtype == "bool":
        return None
    if not read.coefficients:
        return None
    column, last = live[-1], read.coefficients[-1]
    rows = [i for i in live[:-1] if read.stride(i) == 1]
    if len(rows) != 1 or read.stride(column) in (0, 1, None) or last is None or not last[rows[0]]:
        return None
    if any(factor for i, factor in enumerate(last) if i != rows[0]):
        return None
    row = rows[0]
    tiles = [_tile(block.extent(i) or 1) for i in (row, column)]
    if 0 in tiles:
        return None
    staged = 2 * volume * dtype_bits(read.dtype) // 8 > match.machine.l2_bytes
    return TransposePlan("transpose", row, tiles[0], tiles[1], staged, is_parallel(match, 1))


def _tile(extent: int) -> int:
    """The largest multiple of ``MICRO`` up to ``TILE`` that divides ``extent``; 0 where none does."""
    return max((t for t in range(MICRO, TILE + 1, MICRO) if extent % t == 0), default=0)


def schedule_transpose(nest: Nest, plan: TransposePlan) -> None:
    """Apply ``plan`` to the anchor."""
    sch, block = nest.sch, nest.stage.anchor
    live = [i for i, it in enumerate(block.iters) if it.loop >= 0]
    loops = dict(zip(live, steps.iter_loops(sch, nest.anchor, block)))
    column = max(i for i in live if block.extent(i) != 1)
    tile = sch.cache_read(nest.anchor, 0, "global") if plan.staged else None
    micro = sch.cache_read(nest.anchor, 0, "global")
    i0, i1, i2 = sch.split(loops[plan.row], [None, plan.rows // MICRO, MICRO])
    j0, j1, j2 = sch.split(loops[column], [None, plan.columns // MICRO, MICRO])
    outer = [*(loops[i] for i in live if i not in (plan.row, column)), i0, j0]
    sch.reorder(*outer, i1, j1, i2, j2)
    sch.compute_at(micro, j1)
    for handle in (micro, nest.anchor):
        step, lane = list(sch.get_loops(handle))[-2:]
        sch.unroll(step)
        sch.vectorize(lane)
    if tile is not None:
        sch.compute_at(tile, j0)
        _, lane = sch.split(list(sch.get_loops(tile))[-1], [None, MICRO])
        sch.vectorize(lane)
    if plan.parallel:
        steps.parallelise(sch, outer)
