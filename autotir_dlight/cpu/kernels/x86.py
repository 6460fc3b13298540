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
* float16 and bfloat16 are widened to float32 while they are packed: float32's speed (for bfloat16 on AVX-512
  the plans that widen in the loop measured faster).
  ``vdpbf16ps`` is out of reach: TVM's legalisation makes float32 of every bfloat16 buffer inside a function.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...machine import CpuMachine, MicroKernel, dtype_bits

# All bits of the sign of a packed byte: the row operand's offset, and the row that sums the columns.
SIGN = -128


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
    """

    micro: MicroKernel
    rows: str
    columns: str
    instruction: str
    uops: int = 1
    flip: bool = False

    @property
    def panel(self) -> str:
        """The type of the packed operands where it is not their own."""
        return "" if self.micro.in_dtype in (self.rows, self.columns) else self.micro.in_dtype

    @property
    def vectors(self) -> int:
        return self.micro.nr // self.micro.lanes


INT8 = ("int8", "uint8")
HALF = ("float16", "bfloat16")


def _micro(
    isa: str, mr: int, vectors: int, kr: int, dtype: str, features: str, why: str, acc: str = "int32"
) -> MicroKernel:
    lanes = {"avx2": 8, "avx512": 16}[isa]
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


_WIDE = "24 accumulators, 2 columns of B, 2 sums and a broadcast fill the 32 registers"
_NARROW = "12 accumulators, 2 columns of B, a broadcast and a product fill the 16 registers"
_SUMS = "10 accumulators, 2 columns of B, 2 sums, the offset and a broadcast fill the 16 registers"

# Best first: the first kernel whose features the machine has, among those for its operands' types.
KERNELS: tuple[DotKernel, ...] = (
    *_vnni("avx512", "avx512vnni avx512bw", ((12, 2), (4, 4)), _WIDE),
    *_same_sign(((6, 2), (3, 3)), _NARROW),
    *_vnni("avx2", "avxvnni", ((5, 2),), _SUMS),
    *_widened("avx512", "avx512bw", ((12, 2), (6, 4)), _WIDE),
    *_widened("avx2", "avx2", ((6, 2),), _NARROW),
    *_half("avx512", "avx512f", ((12, 2), (6, 4)), _WIDE, ("float16",)),
    *_half("avx2", "avx2 fma f16c", ((6, 2),), _NARROW),
)


def kernels_for(machine: CpuMachine, rows: str, columns: str, acc: str) -> list[DotKernel]:
    """The tiles of the best instruction for operands of these types; none where no kernel takes them."""
    if machine.arch != "x86_64":
        return []
    fitting = [
        k
        for k in KERNELS
        if (k.rows, k.columns, k.micro.acc_dtype) == (rows, columns, acc)
        and k.micro.runs_on(machine)
        and k.micro.lanes * dtype_bits(acc) <= machine.vector_bits
    ]
    best = fitting[:1]
    return [k for k in fitting if (k.instruction, k.micro.isa) == (best[0].instruction, best[0].micro.isa)]
