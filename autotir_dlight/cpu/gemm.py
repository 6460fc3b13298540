# SPDX-License-Identifier: Apache-2.0
"""The schedule of a packed contraction, see :mod:`.packed` for the loop nest that it makes.

The contraction is first rewritten to ``C'[b, m, n] += A'[b, m, k...] * B'[b, n, k...]``, whatever its index
structure was, then padded to whole tiles, then tiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from .gemm_form import Mapping, absorb_padding, drop_result_padding, index_iters, to_gemm_form
from .nest import Nest
from .packed import PackedPlan
from .row_operand import batch_iters, reduce_groups, row_iters


@dataclass
class _Gemm:
    """Handles of a contraction in GEMM form; ``head`` counts the batch loops.

    ``row_at`` and ``column_at`` are the positions of the tiled iterator among those of the pack blocks.
    """

    anchor: SBlockRV
    row_pack: SBlockRV
    column_pack: SBlockRV
    final: SBlockRV
    head: int
    has_rows: bool
    row_at: int = 0
    column_at: int = 0


def schedule_packed(nest: Nest, plan: PackedPlan) -> LoopRV | None:
    """Apply ``plan`` to the anchor and its epilogue; returns the parallel loop."""
    gemm = _to_gemm(nest, plan)
    sch = nest.sch
    _panel_layouts(nest, plan, gemm)
    outer, reduce = _tile_loops(nest, plan, gemm)
    sch.set_scope(gemm.anchor, 0, nest.tile_scope(plan.rows * plan.columns_tile))
    sch.reverse_compute_at(gemm.final, outer[-1])
    _write_tile(sch, plan, gemm, len(outer))
    _vectorise(sch, gemm.anchor, plan, gemm)
    _place_packs(nest, plan, gemm, outer)
    tasks = steps.parallelise(sch, outer[: plan.parallel])
    init = sch.decompose_reduction(gemm.anchor, reduce)
    _vectorise(sch, init, plan, gemm)
    return tasks


def _to_gemm(nest: Nest, plan: PackedPlan) -> _Gemm:
    """``C[n, f, h, w] += X[n, c, h+r, w+s] * W[f, c, r, s]`` → ``C'[m, n] += A'[m, k...] * B'[n, k...]``."""
    roles = nest.stage.contraction
    assert roles is not None
    batch = batch_iters(nest.match, roles)
    rows = row_iters(nest.match, roles)
    form = to_gemm_form(
        nest,
        [*[[i] for i in batch], list(rows), list(roles.columns)],
        reduce_groups(nest.match, roles, plan.rows_in_place),
    )
    gemm = _Gemm(form.anchor, form.row_pack, form.column_pack, form.final, len(batch), bool(rows))
    return _pad(nest, plan, gemm)


def _pad(nest: Nest, plan: PackedPlan, gemm: _Gemm) -> _Gemm:
    """Round rows and columns up to whole tiles; the panels hold zeros there."""
    sch, block = nest.sch, nest.stage.anchor
    roles = nest.stage.contraction
    assert roles is not None
    rows, columns = block.volume(roles.rows), block.volume(roles.columns)
    pad_rows = gemm.has_rows and (rows is None or rows % plan.rows != 0)
    pad_columns = columns is None or columns % plan.columns_tile != 0
    if not pad_rows and not pad_columns:
        return gemm
    factors = [1] * gemm.head + ([plan.rows] if gemm.has_rows else []) + [plan.columns_tile]
    factors += [1] * (len(sch.get(gemm.anchor).iter_vars) - len(factors))
    sch.pad_einsum(gemm.anchor, factors)
    if pad_rows:
        gemm.row_pack = absorb_padding(sch, gemm.row_pack, gemm.anchor)
    if pad_columns:
        gemm.column_pack = absorb_padding(sch, gemm.column_pack, gemm.anchor)
    drop_result_padding(sch, gemm.anchor, gemm.final)
    return gemm


def _panel_layouts(nest: Nest, plan: PackedPlan, gemm: _Gemm) -> None:
    """``A'[b, m, k...]`` → ``[b, m / rows, k..., m % rows]``, and the columns likewise."""
    sch = nest.sch
    if plan.rows_in_place:
        sch.compute_inline(gemm.row_pack)
    for pack, tile, tiled in (
        (gemm.row_pack, plan.rows, gemm.has_rows and not plan.rows_in_place),
        (gemm.column_pack, plan.columns_tile, True),
    ):
        if not tiled:
            continue
        rank = len(sch.get(pack).writes[0].region)
        columns = pack is gemm.column_pack
        where = _tiled_dim(sch, gemm, pack, gemm.head + int(gemm.has_rows and columns))
        gemm.row_at, gemm.column_at = (gemm.row_at, where) if columns else (where, gemm.column_at)
        sch.transform_layout(pack, ("write", 0), steps.index_map(sch, pack, _panel(where, tile), rank))
    if plan.constant_rows:
        sch.annotate(gemm.row_pack, steps.LAYOUT_REWRITE, True)
    if plan.constant_columns:
        sch.annotate(gemm.column_pack, steps.LAYOUT_REWRITE, True)


def _panel(where: int, tile: int) -> Mapping:
    """``[..., i, ...]`` → ``[..., i / tile, ..., i % tile]`` for dimension ``where``."""

    def mapping(*index: Any) -> list[Any]:
        position = index[where]
        return [*index[:where], position // tile, *index[where + 1 :], position % tile]

    return mapping


def _tiled_dim(sch: Schedule, gemm: _Gemm, pack: SBlockRV, position: int) -> int:
    """The dimension of a panel buffer that the anchor's iterator at ``position`` indexes."""
    buffer = sch.get(pack).writes[0].source
    region = next(r for r in sch.get(gemm.anchor).reads if r.source.same_as(buffer))
    return index_iters(sch, gemm.anchor, region).index(position)


def _tile_loops(nest: Nest, plan: PackedPlan, gemm: _Gemm) -> tuple[list[LoopRV], LoopRV]:
    """Split and order the anchor's loops; returns the outer ones and the first along k."""
    sch = nest.sch
    loops = list(sch.get_loops(gemm.anchor))
    batch, rest = loops[: gemm.head], loops[gemm.head :]
    rows: list[LoopRV] = []
    if gemm.has_rows:
        rows = list(sch.split(rest.pop(0), [None, plan.rows]))
    tiles, vectors, lanes = sch.split(rest.pop(0), [None, plan.vectors, plan.lanes])
    order = [tiles, *rows[:1]] if plan.columns_outer else [*rows[:1], tiles]
    if plan.row_block is not None:
        blocks, in_block = sch.split(rows[0], [None, nest.draw(plan.row_block)])
        order = [blocks, tiles, in_block]
    outer = [*batch, *order]
    sch.reorder(*outer, *rest, *rows[1:], vectors, lanes)
    if plan.rows_in_place:
        if plan.unroll and len(rest) > 1:
            sch.unroll(rest[-1])
        return outer, rest[0]
    # Panels are contiguous along k whatever it is made of: one loop, one pointer step.
    return outer, steps.fuse(sch, rest)


def _vectorise(sch: Schedule, handle: SBlockRV, plan: PackedPlan, gemm: _Gemm) -> None:
    loops = sch.get_loops(handle)
    sch.vectorize(loops[-1])
    sch.unroll(loops[-2])
    if gemm.has_rows:
        sch.unroll(loops[-3])


def _write_tile(sch: Schedule, plan: PackedPlan, gemm: _Gemm, depth: int) -> None:
    """Vectorise the write-back; a ragged edge is cut off into a loop of its own.

    Inside a symbolic loop it is not: TVM's loop partitioning then compares int32 with int64 and fails.

    Its outer loops stay rolled: LLVM still keeps the accumulators in registers along k, and an epilogue is
    compiled once instead of once a register.
    """
    own = list(sch.get_loops(gemm.final))[depth:]
    cut = plan.ragged_columns and plan.cut_edges
    width = plan.lanes if cut and plan.write_lanes * 2 < plan.lanes else plan.write_lanes
    if width > 1:
        outer, inner = sch.split(own[-1], [None, width])
        sch.vectorize(inner)
        if cut:
            sch.annotate(outer, steps.PARTITION_HINT, 1)


def _place_packs(nest: Nest, plan: PackedPlan, gemm: _Gemm, outer: Sequence[LoopRV]) -> None:
    """Pack the streamed operand inside the tile loop and the other one beforehand."""
    sch = nest.sch
    streamed, other = (
        (gemm.column_pack, gemm.row_pack) if plan.columns_outer else (gemm.row_pack, gemm.column_pack)
    )
    streamed_constant = plan.constant_columns if plan.columns_outer else plan.constant_rows
    other_constant = plan.constant_rows if plan.columns_outer else plan.constant_columns
    if not other_constant and not (plan.rows_in_place and other is gemm.row_pack):
        _pack_beforehand(sch, plan, gemm, other)
    if streamed_constant or (plan.rows_in_place and streamed is gemm.row_pack):
        return
    if not plan.pack_inside:
        _pack_beforehand(sch, plan, gemm, streamed)
        return
    sch.compute_at(streamed, outer[gemm.head], preserve_unit_loops=True)
    if streamed is gemm.column_pack:
        own = list(sch.get_loops(streamed))[-len(sch.get(streamed).iter_vars) :]
        _pack_columns(sch, plan, own, gemm.column_at)


def _pack_columns(sch: Schedule, plan: PackedPlan, own: Sequence[LoopRV], tiled: int) -> None:
    """Put the tiled loop innermost; columns move ``pack_lanes`` neighbours at a time."""
    inner = own[tiled]
    others = [loop for k, loop in enumerate(own) if k != tiled]
    if others:
        sch.reorder(*others, inner)
    if plan.pack_lanes > 1:
        groups, lanes = sch.split(inner, [None, plan.pack_lanes])
        sch.vectorize(lanes)
        if plan.ragged_columns and plan.cut_edges:
            sch.annotate(groups, steps.PARTITION_HINT, 1)


def _pack_beforehand(sch: Schedule, plan: PackedPlan, gemm: _Gemm, pack: SBlockRV) -> None:
    """Pack all panels in a parallel nest of their own."""
    loops = list(sch.get_loops(pack))
    is_columns = pack is gemm.column_pack
    if not is_columns and not gemm.has_rows:
        return
    tiled = gemm.column_at if is_columns else gemm.row_at
    tiles, inside = sch.split(loops[tiled], [None, plan.columns_tile if is_columns else plan.rows])
    head, rest = loops[:tiled], loops[tiled + 1 :]
    if is_columns:
        _pack_columns(sch, plan, [inside, *rest], 0)
    elif rest:
        sch.reorder(*rest, inside)
    if plan.parallel:
        steps.parallelise(sch, [*head, tiles])
