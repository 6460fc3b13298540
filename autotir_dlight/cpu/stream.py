# SPDX-License-Identifier: Apache-2.0
"""A vector times a matrix of contiguous rows (K×N weights) that no cache holds.

::

    parallel s in strips:
        acc[strip] = 0                            # stays in the L1 cache
        for k0 in K / steps:
            for j0 in strip / lanes:
                unrolled k1 in steps, vectorised j1 in lanes:
                    acc[j0, j1] += x[k0, k1] * W[k0, k1, s, j0, j1]
        y[s] = epilogue(acc)

Every weight is read once, so that memory decides. A narrow tile of columns would read a few lines of each
row, a page apart; here a core reads whole strips, of several rows at once: one stream does not fill the
memory's bandwidth (64 MB on 2 cores: 29 GB/s from one place a core, 43 from eight).
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import steps
from .._tvm import LoopRV
from ..knobs import Knob, knob
from ..machine import dtype_bits
from .blocking import divisors, powers_of_two
from .nest import Nest, StageMatch, is_parallel, result_lanes

# Rows that are read at once.
MAX_STEPS = 8
# The part of the L1 cache that a strip's partial sums may take.
STRIP_SHARE = 0.25


@dataclass(frozen=True)
class StreamPlan:
    """Strips of ``strip`` columns in vectors of ``lanes``; ``steps`` rows at once."""

    kind: str
    column: int
    strip: int
    lanes: int
    steps: Knob


def plan_stream(match: StageMatch) -> StreamPlan | None:
    """The plan of a vector times a large matrix of contiguous rows; ``None`` for all else."""
    stage, block, machine = match.stage, match.stage.anchor, match.machine
    roles, lanes = stage.contraction, result_lanes(match)
    if roles is None or roles.window or roles.batch or block.volume(roles.rows) != 1 or lanes == 1:
        return None
    columns = [i for i in roles.columns if block.extent(i) != 1]
    reduce = [i for i in roles.reduce if block.extent(i) != 1]
    if len(columns) != 1 or len(reduce) != 1 or stage.branch_iters or stage.scalar_only:
        return None
    read, n, k = stage.reads[roles.vector_read], block.extent(columns[0]), block.extent(reduce[0])
    if n is None or k is None or read.stride(columns[0]) != 1 or not is_parallel(match, lanes):
        return None
    if n * k * dtype_bits(read.dtype) // 8 <= machine.l2_bytes * machine.cores:
        return None
    item = max(1, dtype_bits(block.writes[0].dtype) // 8)
    limit = min(int(machine.l1_bytes * STRIP_SHARE) // item, n // machine.cores)
    strips = [d for d in divisors(n) if d <= limit and d % lanes == 0]
    counts = [w for w in powers_of_two(MAX_STEPS) if k % w == 0]
    # Narrower strips than a page bring back what the plan is to avoid.
    if not strips or strips[-1] * item < steps.PAGE_BYTES // 2 or counts[-1] == 1:
        return None
    why = "rows read at once that fill the memory's bandwidth"
    return StreamPlan("stream", columns[0], strips[-1], lanes, knob(counts[-1], counts, why))


def schedule_stream(nest: Nest, plan: StreamPlan) -> LoopRV | None:
    """Apply ``plan`` to the anchor and its epilogue; returns the parallel loop."""
    sch, block = nest.sch, nest.stage.anchor
    final = sch.cache_write(nest.anchor, 0, "global") if nest.epilogue is None else nest.epilogue
    live = [i for i, it in enumerate(block.iters) if it.loop >= 0]
    loops = dict(zip(live, steps.iter_loops(sch, nest.anchor, block)))
    column = loops.pop(plan.column)
    reduce = [loops.pop(i) for i in block.reduce if i in loops]
    strips, vectors, lane = sch.split(column, [None, plan.strip // plan.lanes, plan.lanes])
    outer, inner = sch.split(steps.fuse(sch, reduce), [None, nest.draw(plan.steps)])
    sch.reorder(*loops.values(), strips, outer, vectors, inner, lane)
    sch.reverse_compute_at(final, strips)
    _, last = sch.split(list(sch.get_loops(final))[-1], [None, plan.lanes])
    sch.vectorize(last)
    sch.vectorize(lane)
    sch.unroll(inner)
    tasks = steps.parallelise(sch, [*loops.values(), strips])
    init = sch.decompose_reduction(nest.anchor, outer)
    sch.vectorize(list(sch.get_loops(init))[-1])
    return tasks
