# SPDX-License-Identifier: Apache-2.0
"""Reductions along the contiguous axis: sums, maxima and dot products of rows.

::

    parallel i in rows:
        acc[lanes] = identity                     # registers
        for k0 in K / lanes:                      # partitioned: full vectors, then a scalar tail
            vectorised k1 in lanes:
                acc[k1] = combine(acc[k1], X[i, k0, k1])
        for k1 in lanes: Y[i] = combine(Y[i], acc[k1])

Floating-point addition may not be reordered by LLVM, so a plain loop adds one element every four cycles;
the explicit lanes (``rfactor``) are what makes it run at load speed. With too few rows for the cores, the
reduction is cut into chunks first, each a row of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from ..blocks import Block
from ..knobs import Knob, knob
from ..machine import CpuMachine, dtype_bits
from ..patterns import windowed
from .blocking import TASKS_PER_CORE, ceil_div, nearest_divisor, parallel_prefix, widest_dividing
from .map import SerialPlan, flat
from .nest import Nest, StageMatch, is_parallel, lanes_of, result_lanes

# Vectors of partial results that hide the latency of an addition (4 cycles, 2 ports leave 8 in flight; four
# already reach the load ports' pace).
MAX_PARTIAL_VECTORS = 4
# Steps along k that a vector of partials must get before its final scalar combine is paid back.
MIN_STEPS = 4
# Rows that are read at once where they come from memory.
ROWS_AT_ONCE = 4
# Fewer lanes than this are not worth the final combine.
MIN_EXACT_LANES = 4


@dataclass(frozen=True)
class RowPlan:
    """``chunks`` > 1 cuts the reduction for more threads; ``lanes`` 1 keeps the plain reduction loop.

    ``width`` is the number of partial results in flight, a multiple of ``lanes``, for each of ``rows`` rows.
    """

    kind: str
    suffix: int
    chunks: int
    lanes: int
    parallel: int
    ragged: bool
    width: Knob | None
    rows: int = 1


def reduce_suffix(match: StageMatch) -> int:
    """How many trailing reduction iterators are one contiguous run of every read that uses them."""
    block = match.stage.anchor
    live = [i for i in block.reduce if block.iters[i].loop >= 0]
    suffix = 1
    while suffix < len(live):
        i, j = live[-suffix - 1], live[-suffix]
        if block.extent(j) is None or not all(flat(r, block, i, j) for r in match.stage.reads):
            break
        suffix += 1
    return suffix


def is_row_reduction(match: StageMatch) -> bool:
    """Whether the fastest axis of the largest read is reduced."""
    block = match.stage.anchor
    live = [i for i in block.reduce if block.iters[i].loop >= 0 and block.extent(i) != 1]
    if not live or block.value is None or len(block.writes) != 1:
        return False
    if not match.stage.reads or block.opaque or not block.writes_identity():
        return False
    last = live[-1]
    if not all(r.stride(last) in (0, 1) for r in match.stage.reads):
        return False
    if not any(r.stride(last) == 1 for r in match.stage.reads):
        return False
    # A window's columns overlap: its spatial axis is as contiguous as the reduced one, and longer.
    return not any(windowed(r, block) for r in match.stage.reads)


def plan_rows(match: StageMatch) -> RowPlan | SerialPlan:
    """The plan of a reduction whose reads are contiguous along the reduced axis."""
    stage, block, machine = match.stage, match.stage.anchor, match.machine
    suffix = reduce_suffix(match)
    live = [i for i in block.reduce if block.iters[i].loop >= 0]
    run = live[len(live) - suffix :]
    length = block.volume(run)
    parallel = is_parallel(match, result_lanes(match))
    # rfactor cannot make the identity of a logical reduction.
    logical = block.writes[0].dtype == "bool"
    chunks = _chunks(block.volume(block.spatial), length, machine) if parallel and not logical else 1
    lanes = min(lanes_of(match, a.dtype) for a in (*stage.reads, block.writes[0]))
    if logical or stage.scalar_only or any(i in stage.branch_iters for i in run):
        lanes = 1
    lanes, vectors = _vectors(lanes, None if length is None else length // chunks)
    if length is not None and block.volume(block.spatial) is None:
        lanes, vectors = _exact_vectors(lanes, length)
    ragged = length is None or length % (chunks * lanes * vectors) != 0
    prefix = _row_prefix(match, chunks) if parallel else 0
    why = "partial sums that hide the add's latency"
    width = None if lanes == 1 else knob(lanes * vectors, [lanes, 2 * lanes, 4 * lanes], why)
    plan = RowPlan("rows", suffix, chunks, lanes, prefix, ragged, width)
    return _several_rows(match, plan, lanes) if chunks == 1 and prefix and width is not None else plan


def _several_rows(match: StageMatch, plan: RowPlan, lanes: int) -> RowPlan:
    """The plan with several rows at once where they come from memory, not from a cache.

    One stream does not fill the memory's bandwidth: 64 MB on 2 cores came at 29 GB/s from one place a core,
    at 43 from four to eight.
    """
    stage, block, machine = match.stage, match.stage.anchor, match.machine
    live = [i for i in block.spatial if block.iters[i].loop >= 0]
    extents, volume = [block.extent(i) for i in live], block.volume()
    item = max(dtype_bits(r.dtype) // 8 for r in stage.reads)
    if not live or volume is None or volume * item <= machine.l2_bytes * machine.cores:
        return plan
    last = extents[-1] or 1
    tasks = (block.volume(live) or 1) // ROWS_AT_ONCE
    if last % ROWS_AT_ONCE or tasks < machine.cores * TASKS_PER_CORE:
        return plan
    parallel = parallel_prefix([*extents[:-1], last // ROWS_AT_ONCE], machine)
    why = "partial sums of several rows that hide the add's latency"
    return replace(
        plan, rows=ROWS_AT_ONCE, parallel=parallel, width=knob(lanes, [lanes, 2 * lanes, 4 * lanes], why)
    )


def _chunks(rows: int | None, length: int | None, machine: CpuMachine) -> int:
    """Into how many parts to cut a reduction of few rows, so that every core has some."""
    if rows is None or length is None or rows >= machine.cores:
        return 1
    wanted = ceil_div(machine.cores, max(1, rows))
    chunks = nearest_divisor(length, wanted)
    return chunks if wanted <= chunks <= wanted * TASKS_PER_CORE * 2 else wanted


def _vectors(lanes: int, length: int | None) -> tuple[int, int]:
    """Lanes and vectors of partial results for a row of ``length``."""
    if lanes == 1 or (length is not None and length < lanes * MIN_STEPS):
        return 1, 1
    vectors = MAX_PARTIAL_VECTORS
    while vectors > 1 and length is not None and length < lanes * vectors * vectors * MIN_STEPS:
        vectors //= 2
    return lanes, vectors


def _exact_vectors(lanes: int, length: int) -> tuple[int, int]:
    """Lanes that divide the row: inside a symbolic loop TVM cannot cut off the ragged end (mixed types)."""
    exact = widest_dividing(length, lanes)
    return (exact, 1) if exact >= MIN_EXACT_LANES else (1, 1)


def _row_prefix(match: StageMatch, chunks: int) -> int:
    block = match.stage.anchor
    live = [i for i in block.spatial if block.iters[i].loop >= 0]
    extents = [block.extent(i) for i in live] + ([chunks] if chunks > 1 else [])
    return parallel_prefix(extents, match.machine)


def schedule_rows(nest: Nest, plan: RowPlan) -> None:
    """Apply ``plan`` to the anchor."""
    sch, block, handle = nest.sch, nest.stage.anchor, nest.anchor
    inner = _fuse_run(sch, handle, block, plan.suffix)
    depth = sum(1 for i in block.spatial if block.iters[i].loop >= 0)
    if plan.chunks > 1:
        chunk, _ = sch.split(inner, [plan.chunks, None])
        loops = list(sch.get_loops(handle))
        sch.reorder(*loops[:depth], chunk, *loops[depth:-2], loops[-1])
        handle = sch.rfactor(chunk, factor_axis=len(block.spatial))
        inner = sch.get_loops(handle)[-1]
        depth += 1
    if plan.width is not None:
        _partial_lanes(nest, plan, plan.width, handle, inner, depth)
    else:
        if plan.ragged and plan.chunks > 1:
            sch.annotate(inner, steps.PARTITION_HINT, 1)
        loops = list(sch.get_loops(handle))
        steps.parallelise(sch, loops[:depth][: plan.parallel])
        sch.decompose_reduction(handle, loops[depth])


def _fuse_run(sch: Schedule, handle: SBlockRV, block: Block, suffix: int) -> LoopRV:
    """``for k, i, h, w`` → ``for i, k, hw`` with the contiguous run innermost; returns its loop."""
    loops = steps.iter_loops(sch, handle, block)
    live = [it for it in block.iters if it.loop >= 0]
    spatial = [loop for loop, it in zip(loops, live) if it.kind == "S"]
    reduce = [loop for loop, it in zip(loops, live) if it.kind == "R"]
    if spatial:
        sch.reorder(*spatial, *reduce)
    return steps.fuse(sch, reduce[len(reduce) - suffix :])


def _partial_lanes(
    nest: Nest, plan: RowPlan, width: Knob, handle: SBlockRV, inner: LoopRV, depth: int
) -> None:
    """``for k: y += x`` → ``for k0: for k1 in lanes: acc[k1] += x``, then ``for k1: y += acc[k1]``."""
    sch = nest.sch
    _, lanes = sch.split(inner, [None, nest.draw(width)])
    rank = len(sch.get(handle).writes[0].region)
    # Its scope stays global: TVM puts such a buffer under a kibibyte on the stack, a local one on the heap.
    partial = sch.rfactor(lanes, factor_axis=rank)
    loops = list(sch.get_loops(partial))
    first, step = loops[depth], loops[-2]
    if plan.rows > 1:
        loops[depth - 1], several = sch.split(loops[depth - 1], [None, plan.rows])
        sch.reorder(step, several, loops[-1])
        sch.unroll(several)
    if plan.ragged:
        sch.annotate(step, steps.PARTITION_HINT, 1)
    steps.vectorise_columns(sch, loops[-1], plan.lanes)
    if depth:
        sch.reverse_compute_at(handle, loops[depth - 1])
        steps.parallelise(sch, loops[:depth][: plan.parallel])
    init = sch.decompose_reduction(partial, first)
    steps.vectorise_init(sch, init)
