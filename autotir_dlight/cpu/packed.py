# SPDX-License-Identifier: Apache-2.0
"""Contractions as a packed GEMM: any index structure, any extent, ragged and symbolic ones too.

::

    parallel batch, row blocks, column tiles:     # a row block stays in the L2 cache, a column panel too
        for row tiles in the block:
            acc[rows][vectors·lanes] = 0          # registers
            for k:
                unrolled i in rows, j0 in vectors:
                    vectorised j1 in lanes:
                        acc[i][j0, j1] += A'[k, i] * B'[k, j0, j1]
            Y[tile] = epilogue(acc)               # the only masked step

Both operands are rewritten to panels in the order in which the micro-kernel reads them (Goto and van de
Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008; the sizes follow Low et al.,
"Analytical Modeling Is Enough for High-Performance BLIS", TOMS 2016). ``reindex`` makes the panels of a
convolution the same as those of a matrix product (im2col, one panel at a time), and the padding of the
panels' edges keeps conditions out of the inner loop. A constant operand is packed at compile time.

Where whole tiles of rows lie at a fixed distance from each other the row operand is read in place instead:
a row is one broadcast from memory a step, whatever its stride, so that a channels-last convolution needs
no im2col at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..blocks import Access
from ..knobs import Knob, knob
from ..patterns import Contraction
from .blocking import (
    RegisterTile,
    choose_tile,
    widest_dividing,
)
from .halo import padded_read, worth_attaching
from .nest import StageMatch, is_parallel, result_lanes
from .row_operand import batch_iters, last_steps, row_run, row_task, rows_fit, rows_spread, tile_loops

# Cycles to gather one element into a panel, element by element.
GATHER_CYCLES = 1.5
# Cycles that a parallel nest of its own takes to start and to end (5 to 7 microseconds, see ``blocking``);
# the multiply-adds that stand for an unknown number of them.
REGION_CYCLES = 15_000
TYPICAL_VOLUME = 1 << 24
# Steps of the innermost loop along k up to which it is unrolled: a dilated window over 3 channels would
# else start a loop for every three steps.
MAX_UNROLLED_STEPS = 4
# The row extent that stands for a symbolic one when tiles are ranked.
TYPICAL_ROWS = 64


@dataclass(frozen=True)
class PackedPlan:
    """A micro-kernel of ``rows`` × (``vectors`` · ``lanes``) and how its panels are made.

    ``rows_in_place``: the row operand is not packed. ``columns_outer``: one column panel at a time meets all
    rows; else a block of ``row_block`` row tiles (``None``: a single one) meets all column panels.
    ``pack_inside``: the streamed operand is packed a panel at a time inside the parallel loop, else all of
    it beforehand. ``unroll``: the innermost loop along k is too short to be one. ``attach``: the padded input
    is made inside the parallel loop.
    """

    kind: str
    rows: int
    vectors: int
    lanes: int
    rows_in_place: bool
    columns_outer: bool
    row_block: Knob | None
    pack_inside: bool
    constant_rows: bool
    constant_columns: bool
    pack_lanes: int
    write_lanes: int
    ragged_columns: bool
    cut_edges: bool
    parallel: int
    cost: int
    unroll: bool = False
    attach: bool = False

    @property
    def columns_tile(self) -> int:
        return self.vectors * self.lanes


def plan_packed(match: StageMatch) -> PackedPlan | None:
    """The packed plan of a contraction; ``None`` where it has no columns to fill vectors with, or a single
    row, for which packing would cost as much as the product itself."""
    roles, block = match.stage.contraction, match.stage.anchor
    if roles is None or not roles.columns or block.mixed_indices:
        return None
    rows, columns = block.volume(roles.rows), block.volume(roles.columns)
    constant_rows, constant_columns = (
        match.view.is_constant_weight(match.stage.reads[r].buffer)
        for r in (roles.row_read, roles.vector_read)
    )
    if columns == 1 or (rows is None and columns is None) or (rows == 1 and not constant_columns):
        return None
    lanes = result_lanes(match)
    tile, in_place, cost = _choose(match, roles, lanes, constant_rows)
    columns_outer = constant_rows or (not constant_columns and rows_fit(match, roles))
    batch = batch_iters(match, roles)
    in_block, parallel = tile_loops(match, roles, (tile.rows, tile.columns), batch, columns_outer, in_place)
    parallel = parallel if is_parallel(match, tile.lanes) else 0
    plan = PackedPlan(
        kind="packed",
        rows=tile.rows,
        vectors=tile.vectors,
        lanes=tile.lanes,
        rows_in_place=in_place,
        columns_outer=columns_outer,
        row_block=in_block,
        pack_inside=columns_outer and parallel <= len(batch) + 1,
        constant_rows=constant_rows,
        constant_columns=constant_columns,
        pack_lanes=_pack_lanes(match, roles, columns, lanes),
        write_lanes=lanes if columns is None else widest_dividing(columns, lanes),
        ragged_columns=columns is None or columns % tile.columns != 0,
        cut_edges=rows is not None and all(block.extent(i) is not None for i in batch),
        parallel=parallel,
        cost=0,
        unroll=in_place and last_steps(match, roles) <= MAX_UNROLLED_STEPS,
    )
    plan = replace(plan, cost=round(1000 * (cost + _packing_cycles(match, roles, plan))))
    return _with_halo(match, roles, plan) if in_place and in_block and parallel else plan


def _packing_cycles(match: StageMatch, roles: Contraction, plan: PackedPlan) -> float:
    """Cycles a multiply-add that packing the columns takes, and starting the nests that pack beforehand."""
    block = match.stage.anchor
    gather = 1.0 / plan.pack_lanes if plan.pack_lanes > 1 else GATHER_CYCLES
    packing = 0.0 if plan.constant_columns else gather / (block.volume(roles.rows) or TYPICAL_ROWS)
    apart = (not plan.constant_rows and not plan.rows_in_place) + (
        not plan.constant_columns and not plan.pack_inside
    )
    return packing + apart * bool(plan.parallel) * REGION_CYCLES / (block.volume() or TYPICAL_VOLUME)


def _with_halo(match: StageMatch, roles: Contraction, plan: PackedPlan) -> PackedPlan:
    """The plan with its padded input made row block by row block, where that copies little twice."""
    block, read = match.stage.anchor, padded_read(match)
    batch = batch_iters(match, roles)
    if read is None or plan.row_block is None:
        return plan
    row_tiles = (block.volume(roles.rows) or 1) // plan.rows
    good: list[int] = []
    for size in plan.row_block.choices:
        task = row_task(block, roles.rows, size * plan.rows)
        tasks = row_tiles // size * (block.volume(batch) or 1)
        if task is not None and worth_attaching(match, read, task | dict.fromkeys(batch, 1), tasks):
            good.append(size)
    if not good:
        return plan
    best = max((g for g in good if g <= plan.row_block.value), default=good[0])
    why = "row tiles whose padded input stays in the L2 cache and leave every core some"
    return replace(plan, row_block=knob(best, good, why), parallel=len(batch) + 1, attach=True)


def _choose(
    match: StageMatch, roles: Contraction, lanes: int, constant_rows: bool
) -> tuple[RegisterTile, bool, float]:
    """The tile, whether its rows are read in place, and the cycles an element with the rows' packing."""
    block = match.stage.anchor
    m = block.volume(roles.rows) or TYPICAL_ROWS
    n = block.volume(roles.columns) or TYPICAL_ROWS
    depth = block.volume(roles.reduce)
    tile = choose_tile(m, n, lanes, match.machine, exact=False, broadcast_rows=True, depth=depth)
    if constant_rows:
        return tile, False, tile.cost
    cost = tile.cost + GATHER_CYCLES / n
    run = row_run(match, roles)
    if run > 1:
        direct = choose_tile(
            m, n, lanes, match.machine, exact=False, broadcast_rows=True, depth=depth, row_run=run
        )
        if direct.cost <= cost and rows_spread(match, roles, direct.rows):
            return direct, True, direct.cost
    return tile, False, cost


def _pack_lanes(match: StageMatch, roles: Contraction, columns: int | None, lanes: int) -> int:
    """How many neighbours of the column operand can be moved at once into a panel."""
    block = match.stage.anchor
    read: Access = match.stage.reads[roles.vector_read]
    live = [i for i in roles.columns if block.extent(i) != 1]
    if not live or columns is None or read.stride(live[-1]) != 1 or not read.affine:
        return 1
    if any(i in match.stage.branch_iters for i in live):
        return 1
    run, j = block.extent(live[-1]) or 1, live[-1]
    for i in reversed(live[:-1]):
        extent, outer, inner = block.extent(j), read.stride(i), read.stride(j)
        if extent is None or outer is None or inner is None or outer != inner * extent:
            break
        run, j = run * (block.extent(i) or 1), i
    width = widest_dividing(run, lanes)
    # One contiguous run: its ragged end is cut off in the pack, so that the rest moves in full vectors.
    return lanes if run == columns and width * 2 < lanes and run >= lanes else width
