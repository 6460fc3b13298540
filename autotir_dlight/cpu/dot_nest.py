# SPDX-License-Identifier: Apache-2.0
"""The schedule of a dot-product contraction, see :mod:`.dot` for the loop nest that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from .dot import DotPlan
from .gemm_form import Mapping, absorb_padding, drop_result_padding, operands, to_gemm_form
from .kernels.copies import bits_intrinsic, flip_intrinsic, zero_intrinsic
from .kernels.intrinsics import DotShape, dot_intrinsic
from .nest import Nest
from .row_operand import batch_iters


@dataclass
class _Dot:
    """Handles of a contraction in GEMM form ``C'[b..., m, n] += A'[b..., m, k] * B'[b..., n, k]``.

    ``row_batch`` and ``column_batch`` count the batch dimensions of the panels; ``head`` those of the result.
    """

    anchor: SBlockRV
    row_pack: SBlockRV
    column_pack: SBlockRV
    final: SBlockRV
    head: int
    row_batch: int
    column_batch: int


def schedule_dot(nest: Nest, plan: DotPlan) -> None:
    """Apply ``plan`` to the anchor and its epilogue."""
    sch = nest.sch
    dot = _pad(nest, plan, _to_gemm(nest, plan, _as_bits(nest, plan)))
    _panels(sch, plan, dot)
    flipped = _flip(sch, plan, dot)
    outer, inner = _tile_loops(nest, plan, dot)
    sch.set_scope(dot.anchor, 0, "local")
    sch.reverse_compute_at(dot.final, outer[-1])
    _write_tile(sch, plan, dot, len(outer))
    steps.parallelise(sch, outer[: plan.parallel])
    shape = _shape(plan)
    init = sch.decompose_reduction(dot.anchor, inner)
    if plan.kernel.is_tiled:
        sch.tensorize(sch.get_loops(init)[-2 - (plan.steps == 1)], zero_intrinsic(shape))
    else:
        steps.vectorise_columns(sch, sch.get_loops(init)[-1], plan.lanes)
    sch.tensorize(inner, dot_intrinsic(shape))
    _place_row_pack(sch, plan, dot, flipped)
    if not plan.constant_columns:
        width = plan.kernel.micro.kr
        _pack(sch, plan, dot.column_pack, dot.column_batch, plan.columns_tile, plan.column_run, width)


def _shape(plan: DotPlan) -> DotShape:
    own = (plan.constant_rows, plan.constant_columns) if plan.kernel.is_bits else (False, False)
    return DotShape(plan.kernel, plan.rows, plan.vectors, plan.steps, plan.row_first, plan.index, own)


def _as_bits(nest: Nest, plan: DotPlan) -> list[Any]:
    """``A`` → ``A' = the bits of A``, for the operands that are not packed before the function runs.

    Inside a function TVM's legalisation makes float32 of bfloat16; an integer keeps its 16 bits.
    Returns the operands' buffers.
    """
    sch, buffers = nest.sch, operands(nest)
    for position, constant in enumerate((plan.constant_rows, plan.constant_columns)):
        if constant or not plan.kernel.is_bits:
            continue
        buffer = buffers[position]
        copy = sch.cache_read(nest.anchor, steps.reads_index(sch, nest.anchor, buffer), "global")
        sch.unsafe_set_dtype(copy, 0, plan.kernel.panel)
        buffers[position] = sch.get(copy).writes[0].source
        *outer, inner = sch.get_loops(copy)
        name = bits_intrinsic(str(buffer.dtype), plan.kernel.panel, int(buffer.shape[-1]), plan.index)
        if plan.parallel_packs:
            steps.parallelise(sch, outer)
        sch.tensorize(inner, name)
    return buffers


def _to_gemm(nest: Nest, plan: DotPlan, buffers: list[Any]) -> _Dot:
    """``C[n, f, h, w] += W[f, c, r, s] * X[n, c, h+r, w+s]`` → ``C'[n, f, x] += A'[f, k] * B'[n, x, k]``."""
    roles = nest.stage.contraction
    assert roles is not None
    batch = batch_iters(nest.match, roles, roles.rows)
    spatial = [*[[i] for i in batch], list(roles.rows), list(roles.columns)]
    form = to_gemm_form(nest, spatial, [list(plan.order)], buffers)
    row_batch, column_batch = (sum(i in own for i in batch) for own in (form.row_iters, form.column_iters))
    return _Dot(form.anchor, form.row_pack, form.column_pack, form.final, len(batch), row_batch, column_batch)


def _pad(nest: Nest, plan: DotPlan, dot: _Dot) -> _Dot:
    """Round rows, columns and k up to whole tiles and groups; the panels hold zeros there."""
    sch, block = nest.sch, nest.stage.anchor
    roles, step = nest.stage.contraction, plan.kernel.step
    assert roles is not None
    rows, columns, depth = (block.volume(r) for r in (roles.rows, roles.columns, roles.reduce))
    ragged_rows = rows is None or rows % plan.rows != 0
    ragged_columns = columns is None or columns % plan.columns_tile != 0
    ragged_depth = depth is None or depth % step != 0
    if not (ragged_rows or ragged_columns or ragged_depth):
        return dot
    sch.pad_einsum(dot.anchor, [*[1] * dot.head, plan.rows, plan.columns_tile, step])
    if ragged_rows or ragged_depth:
        dot.row_pack = absorb_padding(sch, dot.row_pack, dot.anchor)
    if ragged_columns or ragged_depth:
        dot.column_pack = absorb_padding(sch, dot.column_pack, dot.anchor)
    drop_result_padding(sch, dot.anchor, dot.final)
    return dot


def _panels(sch: Schedule, plan: DotPlan, dot: _Dot) -> None:
    """``A'[b..., m, k]`` → ``[b..., m / rows, k / kr, m % rows, k % kr]``, and the columns likewise; for AMX
    ``[b..., m / rows, k / step, m % rows, k % step / kr, k % kr]``."""
    shape = _shape(plan)
    for pack, batch, tile, constant, place in (
        (dot.row_pack, dot.row_batch, plan.rows, plan.constant_rows, shape.row_index),
        (dot.column_pack, dot.column_batch, plan.columns_tile, plan.constant_columns, shape.column_index),
    ):
        panel = steps.index_map(sch, pack, _panel(shape, tile, place), batch + 2)
        sch.transform_layout(pack, ("write", 0), panel)
        if plan.kernel.widens:
            sch.unsafe_set_dtype(pack, 0, plan.kernel.panel)
        if constant:
            sch.annotate(pack, steps.LAYOUT_REWRITE, True)

    def grouped(*index: Any) -> list[Any]:
        return [*index[:-1], *shape.split(index[-1])]

    if plan.kernel.step > 1:
        sch.transform_block_layout(dot.anchor, steps.index_map(sch, dot.anchor, grouped, dot.head + 3))


def _panel(shape: DotShape, tile: int, place: Callable[..., Any]) -> Mapping:
    def mapping(*index: Any) -> list[Any]:
        *batch, i, k = index
        return [*batch, i // tile, *place(i % tile, shape.split(k))]

    return mapping


def _flip(sch: Schedule, plan: DotPlan, dot: _Dot) -> SBlockRV | None:
    """``A'`` → ``A'' = A' ^ 0x80``: a copy that becomes the flip when it is tensorised."""
    if not plan.kernel.flip:
        return None
    panel = sch.get(dot.row_pack).writes[0].source
    return sch.cache_read(dot.anchor, steps.reads_index(sch, dot.anchor, panel), "global")


def _tile_loops(nest: Nest, plan: DotPlan, dot: _Dot) -> tuple[list[LoopRV], LoopRV]:
    """The loops around a tile, and the outermost one inside."""
    sch = nest.sch
    loops = list(sch.get_loops(dot.anchor))
    batch, (i, j, *depth) = loops[: dot.head], loops[dot.head :]
    row_tiles, rows = sch.split(i, [None, plan.rows])
    column_tiles, columns = sch.split(j, [None, plan.columns_tile])
    if plan.row_block is None:
        order = [column_tiles, row_tiles] if plan.columns_outer else [row_tiles, column_tiles]
    else:
        blocks, row_tiles = sch.split(row_tiles, [None, nest.draw(plan.row_block)])
        order = [blocks, column_tiles, row_tiles]
    sch.reorder(*batch, *order, rows, columns, *depth)
    return [*batch, *order], rows


def _write_tile(sch: Schedule, plan: DotPlan, dot: _Dot, depth: int) -> None:
    """Vectorise the write-back; its outer loops stay rolled, the epilogue is compiled once."""
    own = list(sch.get_loops(dot.final))[depth:]
    if plan.write_lanes > 1:
        _, inner = sch.split(own[-1], [None, plan.write_lanes])
        sch.vectorize(inner)


def _place_row_pack(sch: Schedule, plan: DotPlan, dot: _Dot, flipped: SBlockRV | None) -> None:
    """Pack the rows, and flip each panel right after it is packed."""
    if flipped is not None:
        loops = list(sch.get_loops(flipped))
        tiles = loops[: dot.row_batch + 1]
        if not plan.constant_rows:
            sch.compute_at(dot.row_pack, tiles[-1], preserve_unit_loops=True)
            own = list(sch.get_loops(dot.row_pack))[len(tiles) :]
            _pack_panel(sch, plan, own[-2], own[-1], *_row_group(plan))
        if plan.parallel_packs:
            steps.parallelise(sch, tiles)
        sch.tensorize(loops[dot.row_batch + 1], flip_intrinsic(_shape(plan)))
    elif not plan.constant_rows:
        _pack(sch, plan, dot.row_pack, dot.row_batch, plan.rows, *_row_group(plan))


def _pack(sch: Schedule, plan: DotPlan, pack: SBlockRV, batch: int, tile: int, run: int, width: int) -> None:
    """All panels of an operand in a parallel nest of their own."""
    loops = list(sch.get_loops(pack))
    tiles, inside = sch.split(loops[batch], [None, tile])
    _pack_panel(sch, plan, inside, loops[batch + 1], run, width)
    if plan.parallel_packs:
        steps.parallelise(sch, [*loops[:batch], tiles])


def _pack_panel(sch: Schedule, plan: DotPlan, inside: LoopRV, depth: LoopRV, run: int, width: int) -> None:
    """``for i, k`` → ``for k / width, i, k % width`` in the panel's order; neighbours in memory move at once.

    A contiguous run is read along: what im2col divides to find its place is then worked out once a run.
    """
    if plan.kernel.micro.kr == 1:
        sch.reorder(depth, inside)
        return
    if run:
        runs, groups, group = sch.split(depth, [None, run, width])
        sch.reorder(runs, inside, groups, group)
        sch.vectorize(group)
        return
    groups, group = sch.split(depth, [None, width])
    sch.reorder(groups, inside, group)
    sch.unroll(group)


def _row_group(plan: DotPlan) -> tuple[int, int]:
    """The contiguous groups along k of the row operand, and the width of one: a tile's whole row for AMX."""
    if plan.kernel.is_tiled and plan.row_run and plan.row_run % plan.kernel.groups == 0:
        return plan.row_run // plan.kernel.groups, plan.kernel.step
    return plan.row_run, plan.kernel.micro.kr
