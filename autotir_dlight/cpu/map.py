# SPDX-License-Identifier: Apache-2.0
"""Elementwise, broadcast and layout nests.

::

    parallel t in outer · tasks:
        for c in inner:              # partitioned: full vectors, then a scalar tail
            vectorised v in lanes:
                Y[...] = f(X[...])

The trailing iterators over which every access is contiguous (or constant) are fused first, so that short rows
still fill vectors. Where an access is not contiguous, or a condition depends on the innermost iterator, the
innermost loop stays plain and LLVM's loop vectoriser, which has masks and shuffles, does better than lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import steps
from ..blocks import NESTED, Access, Block
from ..knobs import Knob, knob
from .blocking import parallel_prefix, split_map, worth_parallel
from .nest import Nest, StageMatch, is_parallel, result_lanes

# What one element of a block that is a program of its own is taken to cost; its inner extents vary.
NESTED_CYCLES = 64


@dataclass(frozen=True)
class MapPlan:
    """``suffix`` trailing iterators are fused; ``lanes`` 1 leaves vectorisation to LLVM."""

    kind: str
    suffix: int
    lanes: int
    ragged: bool
    parallel: int
    inner: Knob


@dataclass(frozen=True)
class SerialPlan:
    """The nest stays as it is, and ``reason`` says why that is the best there is."""

    kind: str
    reason: str


def flat(access: Access, block: Block, i: int, j: int) -> bool:
    """Whether iterator ``i`` continues where iterator ``j`` (the next inner one) ends."""
    outer, inner, extent = access.stride(i), access.stride(j), block.extent(j)
    if outer is None or inner is None:
        return False
    return outer == 0 == inner or (extent is not None and outer == inner * extent)


def contiguous(access: Access, i: int) -> bool:
    """Whether the access moves by one element, or not at all, along iterator ``i``."""
    return access.stride(i) in (0, 1)


def plan_map(match: StageMatch) -> MapPlan | SerialPlan:
    """The plan of an injective stage."""
    stage, block = match.stage, match.stage.anchor
    live = [i for i in range(len(block.iters)) if block.iters[i].loop >= 0]
    if not live:
        return SerialPlan("serial", "a single element")
    if len(block.writes) != 1:
        return _outer_only(match, live, "several stores")
    accesses = [block.writes[0], *stage.reads]
    last = live[-1]
    vector = last not in stage.branch_iters and all(contiguous(a, last) for a in accesses)
    vector = vector and block.writes[0].stride(last) == 1 and block.value is not None
    vector = vector and not stage.scalar_only
    suffix = 1
    while vector and suffix < len(live):
        i, j = live[-suffix - 1], live[-suffix]
        if i in stage.branch_iters or not all(flat(a, block, i, j) for a in accesses):
            break
        suffix += 1
    return _sized(match, live, suffix, result_lanes(match) if vector else 1)


def _sized(match: StageMatch, live: list[int], suffix: int, lanes: int) -> MapPlan:
    block, machine = match.stage.anchor, match.machine
    outer = block.volume(live[: len(live) - suffix])
    inner = block.volume(live[len(live) - suffix :])
    split = split_map(outer, inner, lanes, machine)
    parallel = 0
    if is_parallel(match, lanes):
        extents = [block.extent(i) for i in live[: len(live) - suffix]]
        tasks = None if inner is None else -(-inner // (split.inner * split.lanes))
        parallel = parallel_prefix([*extents, tasks], machine)
    choices = [c for c in (split.inner // 4, split.inner // 2, split.inner, split.inner * 2) if c >= 1]
    if inner is not None and not split.ragged:
        choices = [c for c in choices if inner % (c * split.lanes) == 0]
    why = "about 8192 elements a task, at least 4 tasks a core"
    return MapPlan("map", suffix, split.lanes, split.ragged, parallel, knob(split.inner, choices, why))


def plan_nested(match: StageMatch) -> MapPlan | SerialPlan:
    """The plan of a block that is a program of its own: parallel around it, as it is inside."""
    block = match.stage.anchor
    live = [i for i in range(len(block.iters)) if block.iters[i].loop >= 0]
    if match.stage.note != NESTED or any(it.kind != "S" for it in block.iters):
        return SerialPlan("serial", match.stage.note)
    extents = [block.extent(i) for i in live]
    if not live or not worth_parallel((block.volume() or NESTED_CYCLES) * NESTED_CYCLES, match.machine):
        return SerialPlan("serial", "too little work to wake threads")
    one = knob(1, [1], match.stage.note)
    return MapPlan("map", 0, 1, False, parallel_prefix(extents, match.machine), one)


def _outer_only(match: StageMatch, live: list[int], reason: str) -> MapPlan | SerialPlan:
    """Parallel over the outer iterators, the body untouched."""
    if not is_parallel(match, result_lanes(match)) or len(live) < 2:
        return SerialPlan("serial", reason)
    extents = [match.stage.anchor.extent(i) for i in live[:-1]]
    one = knob(1, [1], reason)
    return MapPlan("map", 0, 1, False, parallel_prefix(extents, match.machine), one)


def schedule_map(nest: Nest, plan: MapPlan) -> None:
    """Apply ``plan`` to the anchor."""
    sch = nest.sch
    loops = steps.iter_loops(sch, nest.anchor, nest.stage.anchor)
    if plan.suffix:
        body = steps.fuse(sch, loops[len(loops) - plan.suffix :])
        outer = loops[: len(loops) - plan.suffix]
        inner = nest.draw(plan.inner)
        if plan.lanes > 1:
            tasks, chunk, lane = sch.split(body, [None, inner, plan.lanes])
            sch.vectorize(lane)
        else:
            tasks, chunk = sch.split(body, [None, inner])
        if plan.ragged:
            sch.annotate(chunk, steps.PARTITION_HINT, 1)
        loops = [*outer, tasks]
    steps.parallelise(sch, loops[: plan.parallel])
