# SPDX-License-Identifier: Apache-2.0
"""Micro-kernels of x86-64 for products of narrow types: their tiles, and the instruction that each uses.

A kernel multiplies ``kr`` neighbours along k in one instruction and adds them to a 32-bit lane. What each is
good for, in multiply-adds a cycle against two FMA units of float32 at the same width:

* ``vpdpbusd`` (VNNI) unsigned × signed bytes, 4 a lane: 4×. Where both operands have the same sign, the row
  operand is moved by 128 while it is packed (``a ^ 0x80``) and ``128 · Σ b`` is taken off at the end; the sum
  is one more row in the tile. Exact: everything is modulo 2³².
* ``vpdpbssd`` / ``vpdpbuud`` (AVX-VNNI-INT8) 4×, no correction.
* ``vpmaddwd`` on bytes widened to 16 bits, 2 a lane, and an add apart: 1.5× on 3 vector ports, 2× on 4.
  ``vpmaddubsw`` would be faster and saturates: 255 · 127 · 2 does not fit into 16 bits.
* ``tdpbssd`` and its kin, ``tdpbf16ps``, ``tdpfp16ps`` (AMX) work on tiles of 16 rows of 64 bytes: 8 times
  VNNI's bytes, 16 times float32's products for half precision. Of the 8 tiles 2 × 2 hold the result.
* float16 and bfloat16 are widened to float32 while they are packed: float32's speed (for bfloat16 on AVX-512
  the plans that widen in the loop measured faster).
  ``vdpbf16ps`` is out of reach: TVM's legalisation makes float32 of every bfloat16 value inside a function.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...machine import CpuMachine, MicroKernel, dtype_bits

# All bits of the sign of a packed byte: the row operand's offset, and the row that sums the columns.
SIGN = -128
# Rows of an AMX tile, and groups of 4 bytes along k in one of its rows.
TILE_ROWS = 16


@dataclass(frozen=True)
class DotKernel:
    """A micro-kernel for operands of given types.

    Attributes
    ----------
    micro : the largest register tile and the features that it needs
    rows, columns : types of the operands
    instruction : a key of :data:`INSTRUCTIONS`
    uops : instructions of the vector ports for one multiply-add of a whole register
    flip : whether the row operand is packed with its sign bit inverted, and the sum corrected
    groups : how many groups of ``kr`` along k one instruction takes (AMX: the rows of a tile)
    """

    micro: MicroKernel
    rows: str
    columns: str
    instruction: str
    uops: int = 1
    flip: bool = False
    groups: int = 1

    @property
    def panel(self) -> str:
        """The type of the packed operands where it is not their own."""
        return "" if self.micro.in_dtype in (self.rows, self.columns) else self.micro.in_dtype

    @property
    def widens(self) -> bool:
        """Whether packing makes the operands larger."""
        return bool(self.panel) and dtype_bits(self.panel) > dtype_bits(self.rows)

    @property
    def is_bits(self) -> bool:
        """Whether the panels hold the operands' bits, under another type."""
        return bool(self.panel) and dtype_bits(self.panel) == dtype_bits(self.rows)

    @property
    def vectors(self) -> int:
        return self.micro.nr // self.micro.lanes

    @property
    def step(self) -> int:
        """Neighbours along k that one instruction takes."""
        return self.micro.kr * self.groups

    @property
    def is_tiled(self) -> bool:
        """Whether the operands are AMX tiles."""
        return self.groups > 1


INT8 = ("int8", "uint8")
HALF = ("float16", "bfloat16")


def _micro(
    isa: str, mr: int, vectors: int, kr: int, dtype: str, features: str, why: str, acc: str = "int32"
) -> MicroKernel:
    lanes = {"avx2": 8, "avx512": 16, "amx": 16}[isa]
    needs = frozenset(features.split())
    return MicroKernel(isa, mr, vectors * lanes, kr, dtype, acc, needs, mr * vectors, why)


def _vnni(isa: str, features: str, tiles: tuple[tuple[int, int], ...], why: str) -> list[DotKernel]:
    """The unsigned × signed byte kernels; ``tiles`` leave room for the row that sums the columns."""
    return [
        DotKernel(
            _micro(isa, mr, vectors, 4, rows, features, why), rows, columns, "vpdpbusd", 1, rows == columns
        )
        for mr, vectors in tiles
        for rows in INT8
        for columns in INT8
    ]


def _same_sign(tiles: tuple[tuple[int, int], ...], why: str) -> list[DotKernel]:
    return [
        DotKernel(_micro("avx2", mr, vectors, 4, dtype, "avxvnniint8", why), dtype, dtype, instruction)
        for mr, vectors in tiles
        for dtype, instruction in zip(INT8, ("vpdpbssd", "vpdpbuud"))
    ]


def _widened(isa: str, features: str, tiles: tuple[tuple[int, int], ...], why: str) -> list[DotKernel]:
    return [
        DotKernel(_micro(isa, mr, vectors, 2, "int16", features, why), rows, columns, "vpmaddwd", 2)
        for mr, vectors in tiles
        for rows in INT8
        for columns in INT8
    ]


def _half(
    isa: str, features: str, tiles: tuple[tuple[int, int], ...], why: str, dtypes: tuple[str, ...] = HALF
) -> list[DotKernel]:
    return [
        DotKernel(
            _micro(isa, mr, vectors, 1, "float32", features, why, "float32"), dtype, dtype, "vfmadd231ps"
        )
        for mr, vectors in tiles
        for dtype in dtypes
    ]


def _tiles(why: str) -> list[DotKernel]:
    """The kernels of AMX: 2 × 2 tiles of the result, or 1 × 4 for few rows."""
    tiles, letter = ((2 * TILE_ROWS, 2), (TILE_ROWS, 4)), {"int8": "s", "uint8": "u"}

    def kernel(
        tile: tuple[int, int], dtype: str, feature: str, operands: tuple[str, str], name: str
    ) -> DotKernel:
        kr, acc = (4, "int32") if operands[0] in INT8 else (2, "float32")
        micro = _micro("amx", *tile, kr, dtype, f"{feature} avx512bw", why, acc)
        return DotKernel(micro, *operands, name, groups=TILE_ROWS)

    return [
        *(
            kernel(tile, rows, "amx-int8", (rows, columns), f"tdpb{letter[rows]}{letter[columns]}d")
            for tile in tiles
            for rows in INT8
            for columns in INT8
        ),
        *(kernel(tile, "uint16", "amx-bf16", ("bfloat16",) * 2, "tdpbf16ps") for tile in tiles),
        *(kernel(tile, "float16", "amx-fp16", ("float16",) * 2, "tdpfp16ps") for tile in tiles),
    ]


_EIGHT = "4 tiles of the result, the rest for operands: 8 tiles"
_WIDE = "24 accumulators, 2 columns of B, 2 sums and a broadcast fill the 32 registers"
_NARROW = "12 accumulators, 2 columns of B, a broadcast and a product fill the 16 registers"
_SUMS = "10 accumulators, 2 columns of B, 2 sums, the offset and a broadcast fill the 16 registers"

# Best first: the first kernel whose features the machine has, among those for its operands' types.
KERNELS: tuple[DotKernel, ...] = (
    *_tiles(_EIGHT),
    *_vnni("avx512", "avx512vnni avx512bw", ((12, 2), (4, 4)), _WIDE),
    *_same_sign(((6, 2), (3, 3)), _NARROW),
    *_vnni("avx2", "avxvnni", ((5, 2),), _SUMS),
    *_widened("avx512", "avx512bw", ((12, 2), (6, 4)), _WIDE),
    *_widened("avx2", "avx2", ((6, 2),), _NARROW),
    *_half("avx512", "avx512f", ((12, 2), (6, 4)), _WIDE, ("float16",)),
    *_half("avx2", "avx2 fma f16c", ((6, 2),), _NARROW),
)


def kernels_for(machine: CpuMachine, rows: str, columns: str, acc: str, depth: int) -> list[DotKernel]:
    """The tiles of the best instruction for operands of these types and ``depth`` elements along k; none
    where no kernel takes them. An instruction that would be more than half padding is passed over, and so
    is AMX where the operating system is not the one that it was tried on."""
    if machine.arch != "x86_64":
        return []
    fitting = [
        k
        for k in KERNELS
        if (k.rows, k.columns, k.micro.acc_dtype) == (rows, columns, acc)
        and k.micro.runs_on(machine)
        and k.micro.lanes * dtype_bits(acc) <= machine.vector_bits
        and (not k.is_tiled or (2 * depth >= k.step and machine.system == "linux"))
    ]
    best = fitting[:1]
    return [k for k in fitting if (k.instruction, k.micro.isa) == (best[0].instruction, best[0].micro.isa)]
