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
from math import gcd, prod

from ..blocks import Access, Block
from ..knobs import Knob, knob
from ..machine import dtype_bits
from ..patterns import Contraction
from .blocking import (
    TASKS_PER_CORE,
    RegisterTile,
    ceil_div,
    choose_tile,
    divisors,
    parallel_prefix,
    widest_dividing,
)
from .halo import padded_read, worth_attaching
from .map import flat
from .nest import StageMatch, is_parallel, result_lanes

# Cycles to gather one element into a panel, element by element.
GATHER_CYCLES = 1.5
# The row extent that stands for a symbolic one when tiles are ranked.
TYPICAL_ROWS = 64
# Bytes after which addresses fall into the same set of an L1 cache: 64 sets of 64-byte lines, so that a
# cache of 32 KiB has 8 ways. The rows may take a third of them (8 rows of a 1024³ product, all in one set,
# ran a tenth slower than packed ones); through a window all but two, as packing would copy each element many
# times over.
SET_PERIOD = 4096
COLUMN_WAYS = 2
# The part of the L2 cache that a block of rows and its result may fill; the rest is for the column panels
# (Low et al., section 5). A quarter measured best for 1×1 convolutions of 56×56 pixels, 64 to 256 channels
# and back, on 2 MiB.
ROW_BLOCK_SHARE = 0.25


@dataclass(frozen=True)
class PackedPlan:
    """A micro-kernel of ``rows`` × (``vectors`` · ``lanes``) and how its panels are made.

    ``rows_in_place``: the row operand is not packed. ``columns_outer``: one column panel at a time meets all
    rows; else a block of ``row_block`` row tiles (``None``: a single one) meets all column panels.
    ``pack_inside``: the streamed operand is packed a panel at a time inside the parallel loop, else all of
    it beforehand. ``attach``: the padded input is made inside the parallel loop.
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
    columns_outer = constant_rows or (not constant_columns and _rows_fit(match, roles))
    row_tiles, column_tiles = (
        None if v is None else ceil_div(v, t) for v, t in ((rows, tile.rows), (columns, tile.columns))
    )
    batch = [block.extent(i) for i in batch_iters(match, roles)]
    block_knob = None
    if not columns_outer and row_tiles is not None and row_tiles > 1 and None not in batch:
        block_knob = _row_block(match, roles, tile, (row_tiles, column_tiles), in_place)
    outer = ceil_div(row_tiles, block_knob.value) if block_knob and row_tiles else row_tiles
    order = [*batch, *((column_tiles, row_tiles) if columns_outer else (outer, column_tiles))]
    parallel = parallel_prefix(order, match.machine) if is_parallel(match, lanes) else 0
    pack_lanes = _pack_lanes(match, roles, columns, lanes)
    gather = 1.0 / pack_lanes if pack_lanes > 1 else GATHER_CYCLES
    packing = 0.0 if constant_columns else gather / (rows or TYPICAL_ROWS)
    plan = PackedPlan(
        kind="packed",
        rows=tile.rows,
        vectors=tile.vectors,
        lanes=tile.lanes,
        rows_in_place=in_place,
        columns_outer=columns_outer,
        row_block=block_knob,
        pack_inside=columns_outer and parallel <= len(batch) + 1,
        constant_rows=constant_rows,
        constant_columns=constant_columns,
        pack_lanes=pack_lanes,
        write_lanes=lanes if columns is None else widest_dividing(columns, lanes),
        ragged_columns=columns is None or columns % tile.columns != 0,
        cut_edges=rows is not None and all(extent is not None for extent in batch),
        parallel=parallel,
        cost=round(1000 * (cost + packing)),
    )
    return _with_halo(match, roles, plan) if in_place and block_knob and parallel else plan


def _with_halo(match: StageMatch, roles: Contraction, plan: PackedPlan) -> PackedPlan:
    """The plan with its padded input made row block by row block, where that copies little twice."""
    block, read = match.stage.anchor, padded_read(match)
    batch = batch_iters(match, roles)
    if read is None or plan.row_block is None:
        return plan
    row_tiles = (block.volume(roles.rows) or 1) // plan.rows
    good: list[int] = []
    for size in plan.row_block.choices:
        task = _row_task(block, roles.rows, size * plan.rows)
        tasks = row_tiles // size * (block.volume(batch) or 1)
        if task is not None and worth_attaching(match, read, task | dict.fromkeys(batch, 1), tasks):
            good.append(size)
    if not good:
        return plan
    best = max((g for g in good if g <= plan.row_block.value), default=good[0])
    why = "row tiles whose padded input stays in the L2 cache and leave every core some"
    return replace(plan, row_block=knob(best, good, why), parallel=len(batch) + 1, attach=True)


def _row_task(block: Block, rows: tuple[int, ...], count: int) -> dict[int, int] | None:
    """The extents of ``count`` neighbouring rows as iterators; ``None`` where they are no box."""
    task: dict[int, int] = {}
    for i in reversed(rows):
        extent = block.extent(i) or 1
        if count % extent == 0:
            task[i], count = extent, count // extent
        elif extent % count == 0:
            task[i], count = count, 1
        else:
            return None
    return task if count == 1 else None


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


def row_run(match: StageMatch, roles: Contraction) -> int:
    """How many neighbouring rows of the row operand lie at one fixed distance; 0 where there are none."""
    block, read = match.stage.anchor, match.stage.reads[roles.row_read]
    live = [i for i in roles.rows if block.extent(i) != 1]
    conditional = any(i in match.stage.branch_iters for i in (*live, *roles.reduce))
    if not live or conditional or not read.affine or block.volume(roles.rows) is None:
        return 0
    run, inner = block.extent(live[-1]) or 0, live[-1]
    for i in reversed(live[:-1]):
        if not flat(read, block, i, inner):
            break
        run, inner = run * (block.extent(i) or 0), i
    return run


def rows_spread(match: StageMatch, roles: Contraction, rows: int) -> bool:
    """Whether a tile's rows fall into different sets of the L1 cache: a line serves several steps of k."""
    block, read = match.stage.anchor, match.stage.reads[roles.row_read]
    last = [i for i in roles.rows if block.extent(i) != 1][-1]
    distance = (read.stride(last) or 0) * max(1, dtype_bits(read.dtype) // 8)
    sets = SET_PERIOD // gcd(distance, SET_PERIOD)
    ways = match.machine.l1_bytes // SET_PERIOD
    return ceil_div(rows, sets) <= (ways - COLUMN_WAYS if roles.window else ways // 3)


def _row_bytes(match: StageMatch, roles: Contraction, in_place: bool) -> int:
    """Bytes of the row operand that one row of the result reads, neighbours' reads not counted twice."""
    block, read = match.stage.anchor, match.stage.reads[roles.row_read]
    itemsize = max(1, dtype_bits(read.dtype) // 8)
    packed = (block.volume(roles.reduce) or 1) * itemsize
    rows, shape = block.volume((*roles.batch, *roles.rows)), read.shape
    if not in_place or not rows or None in shape:
        return packed
    return min(packed, ceil_div(prod(d for d in shape if d is not None), rows) * itemsize)


def _rows_fit(match: StageMatch, roles: Contraction) -> bool:
    """Whether all rows stay in the L2 cache while the column panels pass by."""
    rows = match.stage.anchor.volume(roles.rows)
    return rows is None or rows * _row_bytes(match, roles, False) * 2 <= match.machine.l2_bytes


def _row_block(
    match: StageMatch, roles: Contraction, tile: RegisterTile, tiles: tuple[int, int | None], in_place: bool
) -> Knob:
    """How many row tiles stay in the L2 cache while the column panels pass by, and all cores have work."""
    machine, block = match.machine, match.stage.anchor
    row_tiles, column_tiles = tiles
    result = (block.volume(roles.columns) or 1) * max(1, dtype_bits(block.writes[0].dtype) // 8)
    tile_bytes = tile.rows * (_row_bytes(match, roles, in_place) + result)
    fit = int(machine.l2_bytes * ROW_BLOCK_SHARE) // tile_bytes
    tasks = (block.volume(batch_iters(match, roles)) or 1) * row_tiles * (column_tiles or 1)
    wanted = max(1, min(fit, tasks // (machine.cores * TASKS_PER_CORE)))
    choices = divisors(row_tiles)
    best = max(d for d in choices if d <= wanted)
    return knob(best, choices, "row tiles that fill a quarter of the L2 cache and leave every core some")


def row_iters(match: StageMatch, roles: Contraction) -> tuple[int, ...]:
    """The iterators that make the rows; none where there is a single row."""
    return () if match.stage.anchor.volume(roles.rows) == 1 else roles.rows


def batch_iters(match: StageMatch, roles: Contraction) -> list[int]:
    """The spatial iterators that are neither rows nor columns, in the block's order."""
    rows = row_iters(match, roles)
    return [i for i in match.stage.anchor.spatial if i not in rows and i not in roles.columns]


def reduce_groups(match: StageMatch, roles: Contraction, in_place: bool) -> list[list[int]]:
    """The reduction iterators from the outermost, those in one loop together.

    Where rows are read in place the loops run along their lines, and iterators that continue each other
    there (a window's width and its channels) share a loop.
    """
    block = match.stage.anchor
    if not in_place:
        return [[i] for i in block.reduce]
    read = match.stage.reads[roles.row_read]
    groups: list[list[int]] = []
    for i in sorted(block.reduce, key=lambda i: -(read.stride(i) or 0)):
        if groups and flat(read, block, groups[-1][-1], i):
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


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
