# SPDX-License-Identifier: Apache-2.0
"""A window's input, padded inside the task that reads it.

::

    parallel t in tasks:
        P[rows of t and their halo] = if inside: X[...] else 0
        for ...: Y[t] += P[...] * W[...]

A padded copy of the whole tensor, made beforehand, is written by one core and read by another: the lines
travel between their caches at a few bytes a cycle, which took longer than the convolution itself (5×5
depthwise, 2×96 pixels of 200 channels: 84 of 124 microseconds). Made by the task that needs it, the copy
stays in that core's L2 cache; what neighbouring tasks share is copied twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .._tvm import LoopRV, SBlockRV, Schedule
from ..blocks import Access, Block, as_int
from ..machine import dtype_bits
from ..patterns import windowed
from .blocking import TASKS_PER_CORE, widest_dividing
from .nest import StageMatch

# How often an element may be copied, on average over the padded tensor, before one copy beforehand is better.
MAX_COPIES = 1.7
# Vectors of a row up to which they are unrolled, and the narrowest vector worth it.
MAX_UNROLLED_COPIES = 8
MIN_LANES = 4


@dataclass(frozen=True)
class HaloPlan:
    """A padded input made task by task; ``lanes`` neighbours move at once where they divide its rows."""

    kind: str
    lanes: int


def padded_read(match: StageMatch) -> Access | None:
    """The stage's read through a window of a buffer that one injective block, kept apart, fills for it."""
    view, anchor = match.view, match.stage.anchor
    for read in match.stage.reads:
        if view.is_param(read.buffer) or not read.affine or not windowed(read, anchor):
            continue
        writers, readers = view.writers(read.buffer), view.readers(read.buffer)
        if len(writers) != 1 or any(r.index != anchor.index for r in readers):
            continue
        if _attachable(writers[0]) and None not in read.shape:
            return read
    return None


def _attachable(writer: Block) -> bool:
    return writer.is_injective and not writer.opaque and len(writer.writes) == 1 and writer.writes_identity()


def worth_attaching(match: StageMatch, read: Access, task: Mapping[int, int], tasks: int) -> bool:
    """Whether ``tasks`` tasks of these extents should each make their part of ``read``'s buffer.

    ``task`` gives the extents, within a task, of the iterators that tasks divide; others run in full.
    """
    block, machine = match.stage.anchor, match.machine
    if tasks < machine.cores or (tasks % machine.cores and tasks < machine.cores * TASKS_PER_CORE):
        return False
    region = 1
    for row, size in zip(read.coefficients, read.shape):
        span = 1
        for i, factor in enumerate(row or ()):
            span += abs(factor) * (task.get(i, block.extent(i) or 1) - 1)
        region *= min(span, size or span)
    size = region * max(1, dtype_bits(read.dtype) // 8)
    copies = region * tasks / max(1, prod(d or 1 for d in read.shape))
    return copies <= MAX_COPIES and size <= machine.l2_bytes // 2


def attach(sch: Schedule, handle: SBlockRV, plan: HaloPlan, tasks: LoopRV) -> None:
    """Make the padded input inside ``tasks``.

    A few vectors a row are unrolled: LLVM makes a call of ``memcpy`` of a loop, which costs more than they.
    """
    sch.compute_at(handle, tasks)
    inner = sch.get_loops(handle)[-1]
    extent = as_int(sch.get(inner).extent)
    width = widest_dividing(extent, plan.lanes) if extent else 1
    if extent is None or width < MIN_LANES:
        return
    vectors, lane = sch.split(inner, [None, width])
    sch.vectorize(lane)
    if extent // width <= MAX_UNROLLED_COPIES:
        sch.unroll(vectors)
