# SPDX-License-Identifier: Apache-2.0
"""Tile sizes and loop splits, computed from extents and the machine. Integers only, no TVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..machine import CpuMachine

# Cycles of one core under which a nest stays on one thread: waking TVM's pool and waiting for it takes 5 to 7
# microseconds (measured on 2 cores), so that two threads start to win at two to three times that.
PARALLEL_MIN_CYCLES = 40_000
# Elements that one task of an elementwise nest moves at least, so that its start is paid back.
TASK_ELEMENTS = 1 << 13
# Tasks a core gets, so that an unlucky core does not hold up the others.
TASKS_PER_CORE = 4
# Multiply-adds of a micro-kernel's body up to which steps along k are unrolled. A body of 20 or more hides
# its loop's two scalar instructions; unrolling further only makes TVM's and LLVM's passes slower.
MAX_UNROLLED_FMA = 32
# Cycles a tile takes besides its steps along k: the loop's mispredicted exit, the latency of the last
# multiply-adds; and for each accumulator, that is zeroed, goes through the epilogue and is stored.
TILE_CYCLES = 40
ACCUMULATOR_CYCLES = 3
# Bytes a cycle that a core may count on from its L2 cache beside the multiply-adds (Intel states 64 for its
# cores since Skylake-SP): tiles that want 22 ran as fast as those that want 13, tiles that want 34 did not.
L2_BYTES_PER_CYCLE = 24
# Cycles on top of the FMA's latency between two uses of an accumulator: exactly as many accumulators as the
# latency asks for never run at full rate.
LATENCY_SLACK = 1
# Buffers of fewer bytes stand on the stack (``kMaxStackAlloca`` in TVM's ``device_api.h``).
STACK_BYTES = 1024
# Cycles a vector of a tile that stands in TVM's workspace instead, and is stored and loaded there once. Tiles
# on the stack ran depthwise 3×3 convolutions of 14 to 112 pixels 1.02 to 1.56 times faster than larger ones.
WORKSPACE_CYCLES = 2.0
# The steps along k that stand for an unknown number of them.
TYPICAL_DEPTH = 256
# Loads a cycle of the cores that have a table entry.
LOAD_PORTS = 2
# Largest register tile that is looked at.
MAX_ROWS = 14
MAX_VECTORS = 6


def divisors(n: int) -> list[int]:
    """The divisors of ``n``, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def powers_of_two(limit: int) -> Iterator[int]:
    """1, 2, 4 … up to ``limit``."""
    value = 1
    while value <= limit:
        yield value
        value *= 2


def widest_dividing(extent: int, lanes: int) -> int:
    """The widest power-of-two vector, at most ``lanes``, that divides ``extent``."""
    return max(w for w in powers_of_two(lanes) if extent % w == 0)


def worth_parallel(cycles: int | None, machine: CpuMachine) -> bool:
    """Whether a nest of that many cycles should wake the pool; unknown work (dynamic shapes) should."""
    return machine.cores > 1 and (cycles is None or cycles >= PARALLEL_MIN_CYCLES)


def nearest_divisor(extent: int, wanted: int) -> int:
    """The divisor of ``extent`` nearest to ``wanted`` in ratio."""
    return min(divisors(extent), key=lambda d: (max(d / wanted, wanted / d), d))


_RANK: ContextVar[int] = ContextVar("autotir_tile_rank", default=0)


@contextmanager
def tile_rank(rank: int) -> Iterator[None]:
    """Within it :func:`choose_tile` gives the tile of that rank in place of the best one, whose rank is 0:
    the other tiles that tuning tries."""
    token = _RANK.set(rank)
    try:
        yield
    finally:
        _RANK.reset(token)


@dataclass(frozen=True)
class RegisterTile:
    """``rows`` × (``vectors`` · ``lanes``) accumulators in registers; ``cost`` in cycles an element."""

    rows: int
    vectors: int
    lanes: int
    loads: int
    cost: float

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def registers_needed(rows: int, vectors: int, broadcast_rows: bool) -> int:
    """Registers of a tile: its accumulators, and the operands that are live beside them.

    With broadcast rows all column vectors stay live while the rows pass by; else one vector and one scalar.
    """
    return rows * vectors + (vectors + 1 if broadcast_rows else 2)


def kernel_cycles(rows: int, vectors: int, row_loads: int, vector_loads: int, machine: CpuMachine) -> float:
    """Cycles of one step along k of a tile: the slowest of FMA ports, load ports and FMA latency."""
    fma = rows * vectors
    loads = row_loads + vector_loads
    return max(fma / machine.fma_ports, loads / LOAD_PORTS, machine.fma_latency + LATENCY_SLACK)


def stream_cycles(rows: int, columns: int, depth: int | None, item_bytes: int, machine: CpuMachine) -> float:
    """Cycles in which the L2 cache delivers one step along k of a contraction's two panels; none where both
    stay in the L1 cache."""
    step = (rows + columns) * item_bytes
    if step * (depth or TYPICAL_DEPTH) <= machine.l1_bytes // 2:
        return 0.0
    return step / L2_BYTES_PER_CYCLE


def choose_tile(
    row_extent: int,
    column_extent: int,
    lanes: int,
    machine: CpuMachine,
    *,
    exact: bool,
    broadcast_rows: bool,
    row_run: int = 0,
    depth: int | None = None,
) -> RegisterTile:
    """The register tile with the fewest cycles over a ``row_extent`` × ``column_extent`` result.

    ``exact``: tiles must divide both extents; else the ragged edge is padded and costs as much as a full
    tile. ``broadcast_rows``: a row is one broadcast of the other operand (a contraction); else each row has
    vector loads of its own (pooling, depthwise). ``row_run``: rows must divide it; 0 for any number.
    ``depth``: steps along k, which a tile's fixed costs are spread over; ``None`` where it is not known.
    """
    widths = [w for w in powers_of_two(lanes) if column_extent % w == 0] if exact else [lanes]
    candidates = [
        _tile(row_extent, column_extent, rows, vectors, width, lanes, machine, broadcast_rows, depth)
        for width in widths
        for vectors in range(1, MAX_VECTORS + 1)
        for rows in range(1, MAX_ROWS + 1)
        if registers_needed(rows, vectors, broadcast_rows) <= machine.vector_registers
        if not exact or (row_extent % rows == 0 and column_extent % (width * vectors) == 0)
        if row_run % rows == 0
    ]
    # At equal cost the tile with fewer loads a multiply-add wins: it leaves room in the load ports.
    ranked = sorted(candidates, key=lambda t: (round(t.cost, 6), round(t.loads / (t.rows * t.vectors), 6)))
    rank = _RANK.get()
    return ranked[rank if rank < len(ranked) else 0]


def _tile(
    row_extent: int,
    column_extent: int,
    rows: int,
    vectors: int,
    width: int,
    lanes: int,
    machine: CpuMachine,
    broadcast_rows: bool,
    depth: int | None,
) -> RegisterTile:
    row_loads = rows if broadcast_rows else 0
    vector_loads = vectors if broadcast_rows else rows * vectors
    steps = ceil_div(row_extent, rows) * ceil_div(column_extent, width * vectors)
    fixed = (TILE_CYCLES + ACCUMULATOR_CYCLES * rows * vectors) / max(1, depth or TYPICAL_DEPTH)
    step = kernel_cycles(rows, vectors, row_loads, vector_loads, machine)
    item = max(1, machine.vector_bits // 8 // lanes)
    if not broadcast_rows and rows * vectors * width * item >= STACK_BYTES:
        fixed += WORKSPACE_CYCLES * rows * vectors / max(1, depth or TYPICAL_DEPTH)
    if broadcast_rows:
        step = max(step, stream_cycles(rows, width * vectors, depth, item, machine))
    cycles = steps * (step + fixed)
    elements = max(1, row_extent) * max(1, column_extent)
    return RegisterTile(rows, vectors, width, row_loads + vector_loads, cycles / elements)


def unrolled_reduce(extents: Sequence[int | None], body: int) -> int:
    """How many trailing reduction loops to unroll around a body of ``body`` multiply-adds."""
    count, total = 0, body
    for extent in reversed(extents):
        if extent is None or total * extent > MAX_UNROLLED_FMA:
            break
        total *= extent
        count += 1
    return count


def parallel_prefix(extents: Sequence[int | None], machine: CpuMachine) -> int:
    """How many leading loops to fuse into the parallel one: enough tasks, no more.

    Only the outermost loop of more than one step may be symbolic: TVM cannot bound the indices that come out
    of a fused loop whose inner extent is unknown.
    """
    wanted, total, symbolic = machine.cores * TASKS_PER_CORE, 1, False
    for count, extent in enumerate(extents, start=1):
        if extent is None:
            if total > 1 or symbolic:
                return count - 1
            symbolic = True
            continue
        total *= extent
        if total >= wanted:
            return count
    return len(extents)


@dataclass(frozen=True)
class MapSplit:
    """An elementwise nest: the fused suffix is split into ``[tasks, inner, lanes]``."""

    lanes: int
    inner: int
    ragged: bool


def split_map(outer: int | None, suffix: int | None, lanes: int, machine: CpuMachine) -> MapSplit:
    """How to cut the contiguous suffix of an elementwise nest of ``outer`` × ``suffix`` elements."""
    if suffix is None:
        return MapSplit(lanes, TASK_ELEMENTS // lanes // 8, True)
    width = widest_dividing(suffix, lanes)
    # Inside a symbolic loop TVM cannot cut off a ragged end: it mixes int32 and int64.
    ragged = width * 2 < lanes and suffix >= 4 * lanes and outer is not None
    if ragged:
        width = lanes
    count = ceil_div(suffix, width)
    tasks = machine.cores * TASKS_PER_CORE
    enough = outer is not None and outer >= tasks
    if enough and suffix <= TASK_ELEMENTS:
        return MapSplit(width, count, ragged)
    wanted = max(1, min(TASK_ELEMENTS // width, ceil_div(count * (outer or 1), tasks)))
    inner = nearest_divisor(count, wanted)
    if (inner * 4 < wanted or inner > 4 * wanted) and outer is not None:
        return MapSplit(width, min(wanted, count), True)
    return MapSplit(width, inner, ragged)
