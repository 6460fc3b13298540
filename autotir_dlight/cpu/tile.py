# SPDX-License-Identifier: Apache-2.0
"""Reductions in a register tile, operands read in place: direct convolution, pooling, column sums, GEMV.

::

    parallel outer tiles:
        acc[rows][vectors·lanes] = 0              # registers
        for k...:                                 # the last ones unrolled
            unrolled i in rows, j0 in vectors:
                vectorised j1 in lanes:
                    acc[i][j0, j1] += A[i, k] * B[k, j0, j1]
        Y[tile] = epilogue(acc)                   # still in registers

The innermost axis of the result is the vector; the other operand is broadcast, one load a row. Tiles divide
the extents exactly, so that nothing in the loop is conditional. Where no full vector divides the innermost
extent, or the window makes the read strided, a row buffer is accumulated instead and its loop is left to
LLVM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ..blocks import Access, Block
from ..expressions import floor_divisors
from .blocking import (
    MAX_UNROLLED_FMA,
    RegisterTile,
    choose_tile,
    divisors,
    nearest_divisor,
    parallel_prefix,
    unrolled_reduce,
)
from .halo import padded_read, worth_attaching
from .map import SerialPlan, contiguous, flat
from .nest import StageMatch, is_parallel, result_lanes

# Longest row buffer (elements) of the form that is left to LLVM; 4 KiB of float32 stays in the L1 cache.
MAX_ROW_BUFFER = 1024


@dataclass(frozen=True)
class TilePlan:
    """``row`` is the iterator tiled by ``rows`` (-1: none); ``columns`` the iterators fused into the vector.

    ``lanes`` 1 leaves a loop of ``vectors`` elements to LLVM; ``unroll`` reductions then stand inside it, or
    none and it runs over a row buffer. ``pack_rows`` packs the broadcast operand, a constant, into
    ``[row tile][k][rows]`` once, at compile time. ``step``: so many positions of the last outer iterator are
    one task. ``attach``: the padded input is made inside the parallel loop.
    """

    kind: str
    row: int
    columns: tuple[int, ...]
    rows: int
    vectors: int
    lanes: int
    unroll: int
    parallel: int
    pack_rows: bool
    cost: int
    step: int = 1
    attach: bool = False


def column_run(match: StageMatch) -> tuple[int, ...]:
    """The trailing spatial iterators that every access walks as one contiguous run."""
    stage, block = match.stage, match.stage.anchor
    live = [i for i in block.spatial if block.iters[i].loop >= 0 and block.extent(i) != 1]
    if not live:
        return ()
    accesses = [block.writes[0], *stage.reads, *(stage.epilogue.reads if stage.epilogue else ())]
    run = [live[-1]]
    for i in () if block.mixed_indices else reversed(live[:-1]):
        if block.extent(run[0]) is None or i in stage.branch_iters:
            break
        if not all(_flat_spatial(a, block, i, run[0]) for a in accesses):
            break
        run.insert(0, i)
    return tuple(run)


def _flat_spatial(access: Access, block: Block, i: int, j: int) -> bool:
    if access.arity == len(block.iters):
        return flat(access, block, i, j)
    # An epilogue's access: its iterators are the anchor's spatial ones, in order.
    positions = {it: p for p, it in enumerate(block.spatial)}
    outer, inner = access.stride(positions[i]), access.stride(positions[j])
    extent = block.extent(j)
    if outer is None or inner is None or extent is None:
        return False
    return outer == 0 == inner or outer == inner * extent


def plan_tile(match: StageMatch) -> TilePlan | SerialPlan:
    """The plan of a reduction with a spatial innermost axis."""
    stage, block = match.stage, match.stage.anchor
    run = column_run(match)
    if not run or block.value is None or not block.writes_identity():
        return _outer_only(match)
    column = run[-1]
    # TVM vectorises logical operators to int8, which then does not fit the boolean buffer.
    vector = column not in stage.branch_iters and block.writes[0].dtype != "bool"
    vector = vector and all(contiguous(r, column) for r in stage.reads)
    extent = block.volume(run)
    if not vector or extent is None or stage.scalar_only:
        return _row_buffer(match, run)
    row, broadcast = _row_iter(match, run)
    tile = choose_tile(
        _row_extent(match, row),
        extent,
        result_lanes(match),
        match.machine,
        exact=True,
        broadcast_rows=broadcast,
        depth=block.volume(block.reduce),
    )
    if tile.lanes * tile.vectors < result_lanes(match) and tile.lanes < result_lanes(match) // 2:
        return _row_buffer(match, run)
    return _tile_plan(match, run, row, tile, broadcast)


def _row_iter(match: StageMatch, run: tuple[int, ...]) -> tuple[int, bool]:
    """The iterator that gives the tile its rows, and whether a row costs one broadcast load."""
    stage, block = match.stage, match.stage.anchor
    if stage.contraction is not None:
        rows = [i for i in stage.contraction.rows if i not in run and (block.extent(i) or 1) > 1]
        if rows:
            return rows[-1], True
        grouped = _group_iter(match, run)
        if grouped is not None:
            return grouped, True
    others = [i for i in block.spatial if i not in run and (block.extent(i) or 1) > 1]
    if others and stage.contraction is not None and others[-1] in stage.contraction.columns:
        return others[-1], False
    return -1, False


def group_size(access: Access, block: Block, i: int) -> int | None:
    """``g`` where the access depends on iterator ``i`` through ``i // g`` alone: a grouped convolution."""
    sizes: set[int] = set()
    for index in access.indices:
        found = floor_divisors(index, block.iters[i].var)
        if found is None:
            return None
        sizes.update(found)
    return sizes.pop() if len(sizes) == 1 else None


def _group_iter(match: StageMatch, run: tuple[int, ...]) -> int | None:
    """A grouped convolution's output channel: its neighbours in a group share every input element."""
    stage, block = match.stage, match.stage.anchor
    assert stage.contraction is not None
    read = stage.reads[stage.contraction.vector_read]
    for i in stage.contraction.batch:
        if i not in run and (group_size(read, block, i) or 1) > 1:
            return i
    return None


def _row_extent(match: StageMatch, row: int) -> int:
    """The extent that a tile's rows must divide: the iterator's, or the group's."""
    stage, block = match.stage, match.stage.anchor
    if row < 0:
        return 1
    if stage.contraction is not None and row in stage.contraction.batch:
        group = group_size(stage.reads[stage.contraction.vector_read], block, row)
        if group:
            return group
    return block.extent(row) or 1


def _tile_plan(
    match: StageMatch, run: tuple[int, ...], row: int, tile: RegisterTile, broadcast: bool
) -> TilePlan:
    stage, block = match.stage, match.stage.anchor
    body = tile.rows * tile.vectors * max(1, len(stage.reads) - 1)
    extents = [block.extent(i) for i in block.reduce if block.iters[i].loop >= 0]
    parallel = 0
    if is_parallel(match, tile.lanes):
        parallel = parallel_prefix(_outer_extents(block, run, row, tile), match.machine)
    pack = False
    if broadcast and stage.contraction is not None:
        read = stage.reads[stage.contraction.row_read]
        pack = match.view.is_constant_weight(read.buffer) and read.affine
    plan = TilePlan(
        "tile",
        row,
        run,
        tile.rows,
        tile.vectors,
        tile.lanes,
        unrolled_reduce(extents, body),
        parallel,
        pack,
        round(1000 * tile.cost),
    )
    return _with_halo(match, plan, tile) if parallel else plan


def _with_halo(match: StageMatch, plan: TilePlan, tile: RegisterTile) -> TilePlan:
    """The plan with its padded input made task by task, where that copies little twice."""
    block, read = match.stage.anchor, padded_read(match)
    outer = outer_iters(block, plan.columns, plan.row)
    extents = [block.extent(i) for i in outer]
    columns = block.volume(plan.columns)
    if read is None or None in extents or columns is None:
        return plan
    # Whole rows first: short pieces of rows are slow to copy.
    for columns_split in (False, True) if len(plan.columns) == 1 else (False,):
        for step in divisors(extents[-1] or 1) if outer else [1]:
            task = dict.fromkeys(outer, 1) | ({outer[-1]: step} if outer else {})
            tasks = prod(e or 1 for e in extents) // step
            if columns_split:
                task[plan.columns[0]] = tile.columns
                tasks *= columns // tile.columns
            if worth_attaching(match, read, task, tasks):
                return replace(plan, step=step, attach=True, parallel=len(outer) + columns_split)
    return plan


def outer_iters(block: Block, run: tuple[int, ...], row: int) -> list[int]:
    live = [i for i in block.spatial if block.iters[i].loop >= 0]
    return [i for i in live if i not in run and i != row]


def _outer_extents(block: Block, run: tuple[int, ...], row: int, tile: RegisterTile) -> list[int | None]:
    extents = [block.extent(i) for i in outer_iters(block, run, row)]
    columns = block.volume(run)
    extents.append(None if columns is None else columns // tile.columns)
    if row >= 0:
        extents.append((block.extent(row) or 1) // tile.rows)
    return extents


def _row_buffer(match: StageMatch, run: tuple[int, ...]) -> TilePlan | SerialPlan:
    """Leave the loop over a row to LLVM's vectoriser: with a short reduction unrolled inside it and its sum
    in a register, else around a buffer that holds the row."""
    block = match.stage.anchor
    column = run[-1]
    extent = block.extent(column)
    if extent is None:
        return _outer_only(match)
    chunk = extent if extent <= MAX_ROW_BUFFER else nearest_divisor(extent, MAX_ROW_BUFFER)
    tile = RegisterTile(1, chunk, 1, 0, 0.0)
    parallel = 0
    if is_parallel(match, result_lanes(match)):
        parallel = parallel_prefix(_outer_extents(block, (column,), -1, tile), match.machine)
    live = [i for i in block.reduce if block.iters[i].loop >= 0]
    steps = block.volume(live)
    unroll = len(live) if steps is not None and steps <= MAX_UNROLLED_FMA else 0
    return TilePlan("tile", -1, (column,), 1, chunk, 1, unroll, parallel, False, 4000)


def _outer_only(match: StageMatch) -> TilePlan | SerialPlan:
    """Parallel over the spatial iterators, the reduction as it is."""
    block = match.stage.anchor
    live = [i for i in block.spatial if block.iters[i].loop >= 0]
    if not live or block.opaque:
        return SerialPlan("serial", block.opaque or "a single result")
    if not is_parallel(match, result_lanes(match)):
        return SerialPlan("serial", "too little work to wake threads")
    prefix = parallel_prefix([block.extent(i) for i in live], match.machine)
    return TilePlan("tile", -1, (), 1, 1, 1, 0, prefix, False, 8000)
