# SPDX-License-Identifier: Apache-2.0
"""The schedule of a reduction in a register tile, see :mod:`.tile` for the loop nest that it makes."""

from __future__ import annotations

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from .nest import Nest
from .tile import TilePlan, outer_iters


def schedule_tile(nest: Nest, plan: TilePlan) -> LoopRV | None:
    """Apply ``plan`` to the anchor and its epilogue; returns the parallel loop."""
    if not plan.columns:
        return _outer_parallel(nest, plan)
    sch = nest.sch
    if plan.pack_rows:
        _pack_rows(nest, plan)
    final = _accumulate_locally(nest, plan)
    outer, reduce = _tile_loops(nest, plan)
    sch.reverse_compute_at(final, outer[-1])
    _vectorise_final(sch, final, plan)
    unrolled = reduce[len(reduce) - plan.unroll :] if plan.unroll else []
    for loop in unrolled:
        sch.unroll(loop)
    _vectorise_tile(sch, nest.anchor, plan)
    tasks = steps.parallelise(sch, outer[: plan.parallel])
    init = sch.decompose_reduction(nest.anchor, reduce[0])
    _vectorise_tile(sch, init, plan)
    return tasks


def _outer_parallel(nest: Nest, plan: TilePlan) -> LoopRV | None:
    """Parallel over the spatial loops, the reduction as it is."""
    sch, block = nest.sch, nest.stage.anchor
    loops = steps.iter_loops(sch, nest.anchor, block)
    live = [it for it in block.iters if it.loop >= 0]
    spatial = [loop for loop, it in zip(loops, live) if it.kind == "S"]
    reduce = [loop for loop, it in zip(loops, live) if it.kind == "R"]
    sch.reorder(*spatial, *reduce)
    tasks = steps.parallelise(sch, spatial[: plan.parallel])
    if reduce:
        sch.decompose_reduction(nest.anchor, reduce[0])
    return tasks


def _pack_rows(nest: Nest, plan: TilePlan) -> None:
    """``W[m, k]`` → ``W'[m / rows, k, m % rows]``, moved to compile time by the layout rewrite."""
    sch, stage = nest.sch, nest.stage
    assert stage.contraction is not None
    read = stage.reads[stage.contraction.row_read]
    position = steps.reads_index(sch, nest.anchor, read.buffer)
    packed = sch.cache_read(nest.anchor, position, "global")
    dim = next(d for d, row in enumerate(read.coefficients) if row is not None and row[plan.row])
    rows = plan.rows

    def layout(*index: object) -> list[object]:
        head, tail = list(index), index[dim]
        head[dim] = tail // rows  # type: ignore[operator]
        return [*head, tail % rows]  # type: ignore[operator]

    rank = len(read.coefficients)
    sch.transform_layout(nest.anchor, ("read", position), steps.index_map(sch, nest.anchor, layout, rank))
    sch.annotate(packed, steps.LAYOUT_REWRITE, True)


def _accumulate_locally(nest: Nest, plan: TilePlan) -> SBlockRV:
    """Give the anchor's result a local buffer; returns the block that writes the tile out."""
    sch = nest.sch
    final = sch.cache_write(nest.anchor, 0, "global") if nest.epilogue is None else nest.epilogue
    sch.set_scope(nest.anchor, 0, nest.tile_scope(plan.rows * plan.vectors * plan.lanes))
    if len(plan.columns) > 1:
        steps.fuse_columns(sch, nest.anchor, final, nest.stage.anchor, plan.columns)
    return final


def _tile_loops(nest: Nest, plan: TilePlan) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split and order the anchor's loops: outer tiles, reductions, then rows, vectors and lanes."""
    sch, block = nest.sch, nest.stage.anchor
    loops = dict(steps.loops_after_fusion(sch, nest.anchor, block, plan.columns))
    column = loops[plan.columns[0]]
    tiles, *inner = sch.split(
        column, [None, plan.vectors, plan.lanes] if plan.lanes > 1 else [None, plan.vectors]
    )
    outer = [loops[i] for i in outer_iters(block, plan.columns, plan.row)]
    if plan.step > 1:
        blocks, step = sch.split(outer.pop(), [None, plan.step])
        outer += [blocks, tiles, step]
    else:
        outer.append(tiles)
    if plan.row >= 0:
        row_tiles, rows = sch.split(loops[plan.row], [None, plan.rows])
        outer.append(row_tiles)
        inner.insert(0, rows)
    reduce = [loops[i] for i in block.reduce if i in loops]
    if plan.lanes == 1 and plan.unroll:
        outer, inner = [*outer, *inner], []
    sch.reorder(*outer, *reduce, *inner)
    return outer, reduce


def _vectorise_tile(sch: Schedule, handle: SBlockRV, plan: TilePlan) -> None:
    if plan.lanes <= 1:
        return
    loops = sch.get_loops(handle)
    sch.vectorize(loops[-1])
    sch.unroll(loops[-2])
    if plan.row >= 0:
        sch.unroll(loops[-3])


def _vectorise_final(sch: Schedule, final: SBlockRV, plan: TilePlan) -> None:
    """Vectorise the write-back; its outer loops stay rolled, see ``gemm._write_tile``."""
    if plan.lanes > 1:
        _, lane = sch.split(list(sch.get_loops(final))[-1], [None, plan.lanes])
        sch.vectorize(lane)
