# SPDX-License-Identifier: Apache-2.0
"""Products of narrow types (bytes, float16, bfloat16) as a packed GEMM around a dot-product instruction.

::

    parallel tiles: A'[m / rows][k / kr][rows][kr] = A[...]        # panels, zero-padded, k grouped by kr
    parallel tiles: B'[n / columns][k / kr][columns][kr] = B[...]  # at compile time where constant
    parallel batch, row blocks, column tiles; row tiles in a block:
        acc[rows][vectors·lanes] = 0                               # registers
        for k / kr:                                                # one tensor intrinsic, see kernels
            unrolled i in rows, v in vectors:
                acc[i, v] = dot(acc[i, v], broadcast(A'[k, i, :]), B'[k, v, :, :])
        Y[tile] = epilogue(acc)

One instruction multiplies ``kr`` neighbours along k, 2 to 4 times what float32 does; the kernels are declared
in :mod:`.kernels.x86`. Whatever the index structure was, all of k becomes one axis, so that a convolution is
the same loop nest (im2col into the panels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._tvm import TensorLoad, tirx
from ..blocks import as_int
from ..knobs import Knob
from ..machine import CpuMachine
from ..patterns import Contraction
from .blocking import LOAD_PORTS, ceil_div, widest_dividing
from .kernels.amx import tile_split
from .kernels.x86 import TILE_ROWS, DotKernel, kernels_for
from .nest import StageMatch, is_parallel, lanes_of
from .row_operand import batch_iters, tile_loops

# The row extent that stands for a symbolic one when tiles are ranked.
TYPICAL_ROWS = 64
# Fewest steps along k that pay back the start of a tile and its write.
MIN_STEPS = 2
# A tile of one row is padded to this many: TVM drops loops of one step, and the intrinsic has one over rows.
MIN_ROWS = 2
# Cycles to configure the AMX tiles, zero, store and release them (measured on Sapphire Rapids: 80 to 100 ns).
AMX_START_CYCLES = 240
# The part of the L2 cache for a block of rows: an AMX product wants 30 bytes a cycle, which only that gives
# (1024³: half of 2 MiB took 0.87 of the time of all rows in bfloat16, 0.52 in int8).
ROWS_SHARE = 0.5
# Rows up to which a product is bound by reading its constant operand, which must then not be widened.
FEW_ROWS = 4


@dataclass(frozen=True)
class DotPlan:
    """``rows`` × (``vectors`` · lanes) of ``kernel``, ``steps`` groups of ``kr`` along k.

    ``order`` are the reduction's iterators as they are fused to k, the last one fastest. ``row_first`` and
    ``index`` are how the block spells the product and types its iterators. ``row_run`` and ``column_run``:
    groups along k that are contiguous in memory, 0 where even the members of a group are not.
    """

    kind: str
    instruction: str
    kernel: DotKernel
    rows: int
    vectors: int
    steps: int
    order: tuple[int, ...]
    row_first: bool
    index: str
    columns_outer: bool
    row_block: Knob | None
    constant_rows: bool
    constant_columns: bool
    row_run: int
    column_run: int
    write_lanes: int
    parallel: int
    parallel_packs: bool

    @property
    def lanes(self) -> int:
        return self.kernel.micro.lanes

    @property
    def columns_tile(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class _Product:
    """What the choice of a kernel depends on; ``rows`` is ``None`` where it is symbolic."""

    rows: int | None
    columns: int
    depth: int
    constant_rows: bool
    constant_columns: bool

    @property
    def has_few_rows(self) -> bool:
        return self.rows is not None and self.rows <= FEW_ROWS


def plan_dot(match: StageMatch) -> DotPlan | None:
    """The plan of a contraction that some kernel's instruction computes; ``None`` where none does or where
    packing would cost more than the product."""
    roles, product, spelled = match.stage.contraction, _product(match), _spelled(match)
    if roles is None or product is None or spelled is None:
        return None
    row_dtype, column_dtype, row_first = spelled
    result_dtype = match.stage.anchor.writes[0].dtype
    # An AMX tile of few rows is mostly padding.
    depth = 0 if product.has_few_rows else product.depth
    kernels = kernels_for(match.machine, row_dtype, column_dtype, result_dtype, depth)
    if kernels and kernels[0].is_bits and not _has_bits(match, roles, product):
        return None
    if not kernels or not _pays(product, kernels[0]):
        return None
    kernel, rows = _choose(kernels, product, match.machine)
    columns_outer = product.constant_rows or product.rows is None
    order = _fused_order(match, roles, kernel.step)
    row_run, column_run = (
        _run(match, read, order[-1], kernel.micro.kr) for read in (roles.row_read, roles.vector_read)
    )
    wide = is_parallel(match, lanes_of(match, kernel.micro.acc_dtype))
    tile, batch = (rows, kernel.micro.nr), batch_iters(match, roles, roles.rows)
    block, parallel = tile_loops(match, roles, tile, batch, columns_outer, False, ROWS_SHARE)
    return DotPlan(
        kind="dot",
        instruction=kernel.instruction,
        kernel=kernel,
        rows=rows,
        vectors=kernel.vectors,
        steps=ceil_div(product.depth, kernel.step),
        order=order,
        row_first=row_first,
        index=str(match.stage.anchor.iters[0].var.ty),
        columns_outer=columns_outer,
        row_block=block,
        constant_rows=product.constant_rows,
        constant_columns=product.constant_columns,
        row_run=row_run,
        column_run=column_run,
        write_lanes=widest_dividing(product.columns, kernel.micro.lanes),
        parallel=parallel if wide else 0,
        parallel_packs=wide,
    )


def _product(match: StageMatch) -> _Product | None:
    """The extents of a product whose columns and depth are known, else ``None``."""
    roles, block = match.stage.contraction, match.stage.anchor
    if roles is None or not roles.rows or not roles.columns or block.mixed_indices:
        return None
    rows, columns, depth = (block.volume(r) for r in (roles.rows, roles.columns, roles.reduce))
    if columns is None or depth is None:
        return None
    constant_rows, constant_columns = (
        match.view.is_constant_weight(match.stage.reads[read].buffer)
        for read in (roles.row_read, roles.vector_read)
    )
    return _Product(rows, columns, depth, constant_rows, constant_columns)


def _has_bits(match: StageMatch, roles: Contraction, product: _Product) -> bool:
    """Whether both operands' bits are in memory, to be read along a row of known length: inside a function
    TVM's legalisation makes float32 of bfloat16."""
    for read, constant in (
        (roles.row_read, product.constant_rows),
        (roles.vector_read, product.constant_columns),
    ):
        buffer = match.stage.reads[read].buffer
        if not match.view.is_param(buffer) or not (constant or (as_int(buffer.shape[-1]) or 0) > 1):
            return False
    return True


def _pays(product: _Product, kernel: DotKernel) -> bool:
    """Whether packing, padding and the tile's start are little beside the product."""
    if product.rows == 1 and not product.constant_columns:
        return False
    if kernel.widens and product.constant_columns and product.has_few_rows:
        return False
    return product.depth >= MIN_STEPS * kernel.micro.kr and product.columns * 2 >= kernel.micro.lanes


def _run(match: StageMatch, read: int, last: int, kr: int) -> int:
    """How many groups of ``kr`` along the iterator ``last`` are contiguous in an operand."""
    extent = match.stage.anchor.extent(last) or 1
    if match.stage.reads[read].stride(last) != 1:
        return 0
    return extent // kr if extent % kr == 0 else 1


def _spelled(match: StageMatch) -> tuple[str, str, bool] | None:
    """Types of the row and the column operand and whether the row operand is the left factor of
    ``C + cast(A) * cast(B)``; ``None`` for a product that is spelled otherwise."""
    roles, block = match.stage.contraction, match.stage.anchor
    value, result = block.value, block.writes[0]
    if roles is None or not isinstance(value, tirx.Add) or not isinstance(value.b, tirx.Mul):
        return None
    if not isinstance(value.a, TensorLoad) or not value.a.source.same_as(result.buffer):
        return None
    factors = [_cast_load(f, result.dtype) for f in (value.b.a, value.b.b)]
    if factors[0] is None or factors[1] is None:
        return None
    row = match.stage.reads[roles.row_read].buffer
    row_first = bool(_through_copies(match, factors[0].source).same_as(row))
    dtypes = [str(f.source.dtype) for f in factors]
    return (dtypes[0], dtypes[1], True) if row_first else (dtypes[1], dtypes[0], False)


def _through_copies(match: StageMatch, buffer: Any) -> Any:
    """The buffer that ``buffer`` is an inlined copy of."""
    for block in reversed([match.view.blocks[i] for i in match.stage.inlined]):
        if block.writes[0].buffer.same_as(buffer):
            buffer = block.reads[0].buffer
    return buffer


def _cast_load(expr: Any, dtype: str) -> Any:
    """The load in ``cast(dtype, load)``, else ``None``."""
    if isinstance(expr, tirx.Cast) and str(expr.ty) == dtype and isinstance(expr.value, TensorLoad):
        return expr.value
    return None


def _fused_order(match: StageMatch, roles: Contraction, kr: int) -> tuple[int, ...]:
    """The reduction's iterators with the one to group last: whole groups first, then neighbours in memory."""
    block = match.stage.anchor
    reads = [match.stage.reads[i] for i in (roles.row_read, roles.vector_read)]

    def key(i: int) -> tuple[bool, int]:
        return (block.extent(i) or 1) % kr == 0, sum(r.stride(i) == 1 for r in reads)

    last = max(roles.reduce, key=key)
    return (*(i for i in roles.reduce if i != last), last)


def _balanced(rows: int, kernel: DotKernel) -> int:
    """The rows of a tile when ``rows`` are spread evenly over as few tiles as possible."""
    mr = max(MIN_ROWS, ceil_div(rows, ceil_div(rows, kernel.micro.mr)))
    return mr + mr % tile_split(mr) if kernel.is_tiled else mr


def _cycles(kernel: DotKernel, mr: int, machine: CpuMachine, depth: int) -> float:
    """What one register tile takes."""
    if kernel.is_tiled:
        across = kernel.vectors
        loads = (mr + across * TILE_ROWS) / LOAD_PORTS
        return ceil_div(depth, kernel.step) * (mr * across + loads) + AMX_START_CYCLES
    work = (mr + kernel.flip) * kernel.vectors * kernel.uops
    loads = mr + kernel.vectors
    return max(work / machine.fma_ports, loads / LOAD_PORTS, machine.fma_latency)


def _choose(kernels: list[DotKernel], product: _Product, machine: CpuMachine) -> tuple[DotKernel, int]:
    """The kernel and its rows with the fewest cycles: padding counts as work."""
    rows = product.rows or TYPICAL_ROWS

    def cycles(kernel: DotKernel) -> float:
        mr = _balanced(rows, kernel)
        tiles = ceil_div(rows, mr) * ceil_div(product.columns, kernel.micro.nr)
        return tiles * _cycles(kernel, mr, machine, product.depth)

    best = min(kernels, key=cycles)
    return best, _balanced(rows, best)
