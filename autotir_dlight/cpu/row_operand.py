# SPDX-License-Identifier: Apache-2.0
"""The row operand of a contraction: whether it can be read in place, and how much of it stays in a cache."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from ..blocks import Block
from ..knobs import Knob, knob
from ..machine import dtype_bits
from ..patterns import Contraction
from .blocking import TASKS_PER_CORE, ceil_div, divisors, parallel_prefix
from .map import flat
from .nest import StageMatch

# Bytes after which addresses fall into the same set of an L1 cache: 64 sets of 64-byte lines, so that a
# cache of 32 KiB has 8 ways. The rows may take a third of them, in no fewer than four sets (8 rows of a 512³
# or 1024³ product, in two sets or one, ran a tenth slower than packed ones); through a window all but two
# ways, as packing would copy each element many times over.
SET_PERIOD = 4096
COLUMN_WAYS = 2
FEWEST_SETS = 4
# The part of the L2 cache that a block of rows and its result may fill; the rest is for the column panels
# (Low et al., section 5). A quarter measured best for 1×1 convolutions of 56×56 pixels, 64 to 256 channels
# and back, on 2 MiB.
ROW_BLOCK_SHARE = 0.25
# Where the column panels do not fit into it each row block streams them anew from further away: the part
# that a block of rows alone may take (streaming rows from the L3 cache once a panel costs less than that).
COLUMNS_OUTSIDE_SHARE = 1.5


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
    if roles.window:
        return ceil_div(rows, sets) <= ways - COLUMN_WAYS
    return sets >= FEWEST_SETS and ceil_div(rows, sets) <= ways // 3


def row_bytes(match: StageMatch, roles: Contraction, in_place: bool) -> int:
    """Bytes of the row operand that one row of the result reads, neighbours' reads not counted twice."""
    block, read = match.stage.anchor, match.stage.reads[roles.row_read]
    itemsize = max(1, dtype_bits(read.dtype) // 8)
    packed = (block.volume(roles.reduce) or 1) * itemsize
    rows, shape = block.volume((*roles.batch, *roles.rows)), read.shape
    if not in_place or not rows or None in shape:
        return packed
    return min(packed, ceil_div(prod(d for d in shape if d is not None), rows) * itemsize)


def rows_fit(match: StageMatch, roles: Contraction) -> bool:
    """Whether all rows stay in the L2 cache while the column panels pass by."""
    rows = match.stage.anchor.volume(roles.rows)
    return rows is None or rows * row_bytes(match, roles, False) * 2 <= match.machine.l2_bytes


def row_block(
    match: StageMatch,
    roles: Contraction,
    rows: int,
    tiles: tuple[int, int | None],
    in_place: bool,
    outside: float = COLUMNS_OUTSIDE_SHARE,
) -> Knob:
    """How many tiles of ``rows`` rows stay in the L2 cache while the column panels pass by, and all cores
    have work. ``outside``: the part of the cache for them where the panels do not fit into it."""
    machine, block = match.machine, match.stage.anchor
    row_tiles, column_tiles = tiles
    columns = block.volume(roles.columns) or 1
    bytes_a_row, share = row_bytes(match, roles, in_place), outside
    if columns * row_bytes(match, roles, False) <= machine.l2_bytes // 2:
        # The column panels stay in the cache from block to block: leave room for the result too.
        bytes_a_row += columns * max(1, dtype_bits(block.writes[0].dtype) // 8)
        share = ROW_BLOCK_SHARE
    fit = int(machine.l2_bytes * share) // (rows * bytes_a_row)
    tasks = (block.volume(batch_iters(match, roles)) or 1) * row_tiles * (column_tiles or 1)
    choices = divisors(row_tiles)
    busy = [d for d in choices if tasks // d >= machine.cores * TASKS_PER_CORE] or choices[:1]
    # The nearest in ratio, not the largest that fits: a prime number of tiles would leave blocks of one, each
    # of which streams all columns.
    best = min(busy, key=lambda d: max(d / max(1, fit), max(1, fit) / d))
    return knob(best, choices, "row tiles that stay in the L2 cache and leave every core some")


def tile_loops(
    match: StageMatch,
    roles: Contraction,
    tile: tuple[int, int],
    batch: Sequence[int],
    columns_outer: bool,
    in_place: bool,
    outside: float = COLUMNS_OUTSIDE_SHARE,
) -> tuple[Knob | None, int]:
    """How many tiles of rows make a block (:func:`row_block`), and how many of the loops over ``batch``,
    blocks and tiles become the parallel one. ``tile``: its rows and columns."""
    block = match.stage.anchor
    row_tiles, column_tiles = (
        None if volume is None else ceil_div(volume, size)
        for volume, size in zip((block.volume(roles.rows), block.volume(roles.columns)), tile)
    )
    outer = [block.extent(i) for i in batch]
    if columns_outer:
        return None, parallel_prefix([*outer, column_tiles, row_tiles], match.machine)
    in_block = None
    if row_tiles is not None and row_tiles > 1 and None not in outer:
        in_block = row_block(match, roles, tile[0], (row_tiles, column_tiles), in_place, outside)
        row_tiles = ceil_div(row_tiles, in_block.value)
    return in_block, parallel_prefix([*outer, row_tiles, column_tiles], match.machine)


def row_task(block: Block, rows: tuple[int, ...], count: int) -> dict[int, int] | None:
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


def row_iters(match: StageMatch, roles: Contraction) -> tuple[int, ...]:
    """The iterators that make the rows; none where there is a single row."""
    return () if match.stage.anchor.volume(roles.rows) == 1 else roles.rows


def batch_iters(match: StageMatch, roles: Contraction, rows: tuple[int, ...] | None = None) -> list[int]:
    """The spatial iterators that are neither ``rows`` (default :func:`row_iters`) nor columns, in the block's
    order."""
    rows = row_iters(match, roles) if rows is None else rows
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


def last_steps(match: StageMatch, roles: Contraction) -> int:
    """The steps of the innermost loop along k where rows are read in place."""
    return match.stage.anchor.volume(reduce_groups(match, roles, True)[-1]) or 0
