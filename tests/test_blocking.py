# SPDX-License-Identifier: Apache-2.0
"""Tile sizes and splits: decision tables, and properties over random extents. No TVM."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotir_dlight.cpu import blocking
from autotir_dlight.machine import CpuMachine


class Kind:
    def __init__(self, name):
        self.name = name


class Target:
    """What the machine looks at of a target."""

    def __init__(self, **attrs):
        self.kind, self.attrs = Kind("llvm"), attrs


def machine(mcpu, triple="x86_64-linux-gnu", cores=4):
    return CpuMachine.from_target(Target(mcpu=mcpu, mtriple=triple, **{"num-cores": cores}))


AVX2, AVX512 = machine("x86-64-v3"), machine("skylake-avx512")
NEON = machine("neoverse-n1", "aarch64-linux-gnu")
MACHINES = {"avx2": AVX2, "avx512": AVX512, "neon": NEON}


def test_divisors():
    assert blocking.divisors(1) == [1]
    assert blocking.divisors(12) == [1, 2, 3, 4, 6, 12]
    assert blocking.divisors(97) == [1, 97]


@pytest.mark.parametrize(
    ("extent", "lanes", "expected"), [(64, 16, 16), (40, 16, 8), (10, 16, 2), (7, 16, 1), (48, 8, 8)]
)
def test_widest_dividing(extent, lanes, expected):
    assert blocking.widest_dividing(extent, lanes) == expected


@pytest.mark.parametrize("name", MACHINES)
def test_tile_of_a_large_product(name):
    which = MACHINES[name]
    lanes = which.lanes("float32")
    tile = blocking.choose_tile(1 << 12, 1 << 12, lanes, which, exact=False, broadcast_rows=True)
    assert tile.lanes == lanes
    # Enough accumulators to hide the FMA's latency, few enough to leave registers for the operands.
    assert which.fma_ports * which.fma_latency <= tile.rows * tile.vectors
    assert blocking.registers_needed(tile.rows, tile.vectors, True) <= which.vector_registers


extents = st.integers(1, 300)
machines = st.sampled_from(list(MACHINES.values()))


@given(extents, extents, machines, st.booleans())
def test_exact_tiles_divide(rows, columns, which, broadcast):
    tile = blocking.choose_tile(
        rows, columns, which.lanes("float32"), which, exact=True, broadcast_rows=broadcast
    )
    assert rows % tile.rows == 0 and columns % tile.columns == 0


@given(extents, extents, machines, st.booleans(), st.booleans())
def test_tiles_fit_the_registers(rows, columns, which, exact, broadcast):
    lanes = which.lanes("float32")
    tile = blocking.choose_tile(rows, columns, lanes, which, exact=exact, broadcast_rows=broadcast)
    assert blocking.registers_needed(tile.rows, tile.vectors, broadcast) <= which.vector_registers
    assert tile.lanes <= lanes


@given(st.integers(1, 200), st.integers(1, 5000), st.sampled_from([1, 4, 8, 16]))
def test_map_splits_cover_the_suffix(outer, suffix, lanes):
    split = blocking.split_map(outer, suffix, lanes, AVX512)
    chunk = split.inner * split.lanes
    assert split.inner >= 1 and split.lanes <= lanes
    assert split.ragged or suffix % chunk == 0


def test_symbolic_nests_are_never_cut_ragged_by_a_static_suffix():
    for suffix in range(1, 400):
        assert not blocking.split_map(None, suffix, 16, AVX512).ragged


@pytest.mark.parametrize(("rows", "columns"), [(112, 32), (56, 144), (14, 480), (28, 256)])
def test_depthwise_tiles_stand_on_the_stack(rows, columns):
    """3×3 window: too few steps to pay for a tile that is stored and loaded once more."""
    tile = blocking.choose_tile(rows, columns, 16, AVX512, exact=True, broadcast_rows=False, depth=9)
    assert tile.rows * tile.columns * 4 < blocking.STACK_BYTES


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ([64, 7], 1),
        ([2, 3, 50], 3),
        ([1, 1, 100], 3),
        ([], 0),
        ([None, 5], 2),
        ([1, None, 40, 9], 3),
        ([4, None, 40], 1),
        ([None, None], 1),
    ],
)
def test_parallel_prefix_on_four_cores(extents, expected):
    assert blocking.parallel_prefix(extents, AVX512) == expected


def test_little_work_stays_on_one_thread():
    assert not blocking.worth_parallel(1000, AVX512)
    assert blocking.worth_parallel(10_000_000, AVX512)
    assert blocking.worth_parallel(None, AVX512)
    assert not blocking.worth_parallel(10_000_000, machine("skylake-avx512", cores=1))


@pytest.mark.parametrize(
    ("extents", "body", "expected"),
    [([64, 3, 3], 1, 2), ([64, 3, 3], 8, 1), ([3, 3], 20, 0), ([None, 2], 4, 1)],
)
def test_unrolled_reduction(extents, body, expected):
    assert blocking.unrolled_reduce(extents, body) == expected


@given(st.integers(1, 10_000), st.integers(1, 500))
def test_nearest_divisor_divides(extent, wanted):
    assert extent % blocking.nearest_divisor(extent, wanted) == 0
