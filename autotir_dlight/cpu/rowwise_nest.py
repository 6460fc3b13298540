# SPDX-License-Identifier: Apache-2.0
"""The schedule of a chain of row operations, see :mod:`.rowwise` for the loop nest that it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from ..blocks import Block
from ..expressions import RECIPROCAL
from ..knobs import Draw
from ..patterns import Stage
from .rowwise import RowStep, RowwisePlan


@dataclass(frozen=True)
class _Reduction:
    """A reduction cut up: ``partial`` results in vectors, added to one vector (or none), then to a number."""

    partial: SBlockRV
    combined: SBlockRV | None
    final: SBlockRV


def schedule_rowwise(
    sch: Schedule, chain: Sequence[Stage], plan: RowwisePlan, handles: Sequence[SBlockRV], draw: Draw
) -> None:
    """Apply ``plan`` to the function's only stages."""
    own = [handles[s.anchor.index] for s in chain]
    cut = [
        _cut(sch, h, s.anchor, step, plan.lanes, draw) if step.width is not None else h
        for h, s, step in zip(own, chain, plan.steps)
    ]
    rows = steps.fuse(sch, steps.iter_loops(sch, own[-1], chain[-1].anchor)[: plan.rows])
    for item in reversed(cut[:-1]):
        for handle in _blocks(item):
            sch.compute_at(handle, rows)
    if plan.parallel:
        steps.parallelise(sch, [rows])
    for item, step in zip(cut, plan.steps):
        if isinstance(item, _Reduction):
            _vectorise_reduction(sch, item, plan.lanes)
        elif step.kind == "map":
            _vectorise_map(sch, item, plan.lanes)
    if plan.reciprocal:
        sch.annotate(own[-1], RECIPROCAL, 1)


def _blocks(item: _Reduction | SBlockRV) -> list[SBlockRV]:
    """Consumers first."""
    if not isinstance(item, _Reduction):
        return [item]
    return [item.final, *([item.combined] if item.combined is not None else []), item.partial]


def _cut(sch: Schedule, handle: SBlockRV, block: Block, step: RowStep, lanes: int, draw: Draw) -> _Reduction:
    """``for k: y += x`` → ``acc[k1] += x``, ``vec[k2] += acc[k1, k2]``, ``y += vec[k2]``, a nest each."""
    assert step.width is not None
    loops = steps.iter_loops(sch, handle, block)
    live = [it for it in block.iters if it.loop >= 0]
    spatial = [loop for loop, it in zip(loops, live) if it.kind == "S"]
    reduce = [loop for loop, it in zip(loops, live) if it.kind == "R"]
    sch.reorder(*spatial, *reduce)
    rank = len(sch.get(handle).writes[0].region)
    _, lane = sch.split(steps.fuse(sch, reduce), [None, draw(step.width)])
    partial = sch.rfactor(lane, factor_axis=rank)
    if not step.combine:
        return _Reduction(partial, None, handle)
    _, lane = sch.split(list(sch.get_loops(handle))[-1], [None, lanes])
    return _Reduction(partial, sch.rfactor(lane, factor_axis=rank), handle)


def _vectorise_reduction(sch: Schedule, cut: _Reduction, lanes: int) -> None:
    """Lanes innermost and in vectors, the identity written before each loop."""
    lane, step = list(sch.get_loops(cut.partial))[-2:]
    sch.reorder(step, lane)
    steps.vectorise_columns(sch, lane, lanes)
    steps.vectorise_init(sch, sch.decompose_reduction(cut.partial, step))
    if cut.combined is not None:
        lane, step = list(sch.get_loops(cut.combined))[-2:]
        sch.reorder(step, lane)
        sch.vectorize(lane)
        sch.unroll(step)
        sch.vectorize(list(sch.get_loops(sch.decompose_reduction(cut.combined, step)))[-1])
    last = list(sch.get_loops(cut.final))[-1]
    sch.unroll(last)
    sch.decompose_reduction(cut.final, last)


def _vectorise_map(sch: Schedule, handle: SBlockRV, lanes: int) -> None:
    """``for h, w`` along the row → ``for hw0, vectorised hw1``."""
    columns: list[LoopRV] = list(sch.get_loops(handle))[1:]
    _, lane = sch.split(steps.fuse(sch, columns), [None, lanes])
    sch.vectorize(lane)
