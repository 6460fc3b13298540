# SPDX-License-Identifier: Apache-2.0
"""Contractions as a packed GEMM: any index structure, any extent, ragged and symbolic ones too.

::

    parallel batch, column tiles:
        B'[k][columns] = B[...]                   # packed: gathered once, contiguous, zero-padded
        for row tiles:
            acc[rows][vectors·lanes] = 0          # registers
            for k:
                unrolled i in rows, j0 in vectors:
                    vectorised j1 in lanes:
                        acc[i][j0, j1] += A'[k, i] * B'[k, j0, j1]
            Y[tile] = epilogue(acc)               # the only masked step

Both operands are rewritten to panels in the order in which the micro-kernel reads them (Goto and van de
Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS 2008). ``reindex`` makes the panels of a
convolution the same as those of a matrix product (im2col, one panel at a time), and the padding of the
panels' edges keeps conditions out of the inner loop. A constant operand is packed at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..blocks import Access
from ..patterns import Contraction
from .blocking import ceil_div, choose_tile, parallel_prefix, widest_dividing
from .nest import StageMatch, is_parallel, result_lanes

# Cycles to gather one element into a panel, element by element.
GATHER_CYCLES = 1.5
# The row extent that stands for a symbolic one when tiles are ranked.
TYPICAL_ROWS = 64


@dataclass(frozen=True)
class PackedPlan:
    """A micro-kernel of ``rows`` × (``vectors`` · ``lanes``) and how its panels are made.

    ``columns_outer``: the column panels are streamed, else the row panels are. ``pack_inside``: the streamed
    operand is packed a panel at a time inside the parallel loop, else all of it beforehand.
    """

    kind: str
    rows: int
    vectors: int
    lanes: int
    columns_outer: bool
    pack_inside: bool
    constant_rows: bool
    constant_columns: bool
    pack_lanes: int
    write_lanes: int
    ragged_columns: bool
    cut_edges: bool
    parallel: int
    cost: int

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
    reads = match.stage.reads
    constant_rows = match.view.is_constant_weight(reads[roles.row_read].buffer)
    constant_columns = match.view.is_constant_weight(reads[roles.vector_read].buffer)
    if columns == 1 or (rows is None and columns is None) or (rows == 1 and not constant_columns):
        return None
    lanes = result_lanes(match)
    m, n = rows or TYPICAL_ROWS, columns or TYPICAL_ROWS
    tile = choose_tile(m, n, lanes, match.machine, exact=False, broadcast_rows=True)
    columns_outer = constant_rows or not constant_columns
    tiles = [None if v is None else ceil_div(v, t) for v, t in ((columns, tile.columns), (rows, tile.rows))]
    batch = [block.extent(i) for i in batch_iters(match, roles)]
    order = [*batch, *(tiles if columns_outer else reversed(tiles))]
    parallel = parallel_prefix(order, match.machine) if is_parallel(match, lanes) else 0
    pack_lanes = _pack_lanes(match, roles, columns, lanes)
    gather = 1.0 / pack_lanes if pack_lanes > 1 else GATHER_CYCLES
    packing = (0 if constant_columns else gather / m) + (0 if constant_rows else GATHER_CYCLES / n)
    return PackedPlan(
        kind="packed",
        rows=tile.rows,
        vectors=tile.vectors,
        lanes=tile.lanes,
        columns_outer=columns_outer,
        pack_inside=parallel <= len(batch) + 1,
        constant_rows=constant_rows,
        constant_columns=constant_columns,
        pack_lanes=pack_lanes,
        write_lanes=lanes if columns is None else widest_dividing(columns, lanes),
        ragged_columns=columns is None or columns % tile.columns != 0,
        cut_edges=rows is not None and all(extent is not None for extent in batch),
        parallel=parallel,
        cost=round(1000 * (tile.cost + packing)),
    )


def row_iters(match: StageMatch, roles: Contraction) -> tuple[int, ...]:
    """The iterators that make the rows; none where there is a single row."""
    return () if match.stage.anchor.volume(roles.rows) == 1 else roles.rows


def batch_iters(match: StageMatch, roles: Contraction) -> list[int]:
    """The spatial iterators that are neither rows nor columns, in the block's order."""
    rows = row_iters(match, roles)
    return [i for i in match.stage.anchor.spatial if i not in rows and i not in roles.columns]


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
