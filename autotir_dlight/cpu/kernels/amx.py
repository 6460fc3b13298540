# SPDX-License-Identifier: Apache-2.0
"""The AMX micro-kernel: a product of panels in tile registers.

::

    configure tiles of `rows / down` rows; zero `down` × `across` tiles of the result
    for k in steps:
        load `down` tiles of A [rows, 64 bytes] and `across` tiles of B [16, 64 bytes]
        for each pair: one product
    store the tiles; release

A thread that leaves tile registers in use makes each switch of context store 8 KiB, hence the release. The
kernel lends the registers to processes that ask (``arch_prctl``, Linux 5.16 and later); the compiled function
asks itself, once a process, since it may run where this package is not.

Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Intel Advanced Matrix Extensions".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._tvm import build
from ...host import ASK_FOR_TILES
from .x86 import TILE_ROWS

if TYPE_CHECKING:
    from .intrinsics import DotShape

# Bytes in a row of a tile.
TILE_BYTES = 64
_ASK = """
@autotir_amx_asked = linkonce_odr global i32 0
define linkonce_odr void @autotir_amx_ask() noinline {{
  %code = call i64 asm sideeffect "syscall", \
"={{ax}},{{ax}},{{di}},{{si}},~{{rcx}},~{{r11}},~{{memory}},~{{dirflag}},~{{fpsr}},~{{flags}}"\
(i64 {}, i64 {}, i64 {})
  store atomic i32 1, ptr @autotir_amx_asked release, align 4
  ret void
}}
"""
_BEGIN = """
@{name}_tiles = linkonce_odr constant [64 x i8] [{config}], align 64
define linkonce_odr i32 @{name}() #0 {{
  %asked = load atomic i32, ptr @autotir_amx_asked acquire, align 4
  %known = icmp ne i32 %asked, 0
  br i1 %known, label %ready, label %first
first:
  call void @autotir_amx_ask()
  br label %ready
ready:
  call void @llvm.x86.ldtilecfg(ptr @{name}_tiles)
  ret i32 0
}}
declare void @llvm.x86.ldtilecfg(ptr)
attributes #0 = {{ "target-features"="+amx-tile" }}
"""


def tile_split(rows: int) -> int:
    """Over how many tiles the rows of a kernel are spread."""
    return -(-rows // TILE_ROWS)


def begin_name(rows: int) -> str:
    """The function that configures the tiles for ``rows`` rows of the row operand and the result."""
    return f"autotir_amx_begin_{rows}"


def begin_ir(rows: int) -> str:
    """LLVM IR that defines :func:`begin_name`'s function, for ``pragma_import_llvm``.

    Tiles 0 to 3 hold the result, then come 1 or 2 of the row operand, the others hold columns.
    """
    column_bytes = b"".join(TILE_BYTES.to_bytes(2, "little") for _ in range(8))
    down = tile_split(rows)
    heights = [rows // down] * (4 + down) + [TILE_ROWS] * (4 - down)
    config = bytes([1]) + bytes(15) + column_bytes + bytes(16) + bytes(heights) + bytes(8)
    text = ", ".join(f"i8 {byte}" for byte in config)
    return _ASK.format(*ASK_FOR_TILES) + _BEGIN.format(name=begin_name(rows), config=text)


def tile_kernel(shape: DotShape, a: Any, b: Any, c: Any) -> None:
    """Emit the loop nest above for panels ``a`` [steps, rows, 16, kr], ``b`` [steps, 16, columns, kr] and the
    result ``c`` [rows, columns], which is zero."""
    down, across = tile_split(shape.rows), shape.vectors
    tile_rows = shape.rows // down
    column_stride = shape.columns * TILE_BYTES // TILE_ROWS
    build.sblock_attr({"pragma_import_llvm": begin_ir(shape.rows)})
    build.evaluate(build.call_extern("int32", begin_name(shape.rows)))
    for tile in range(down * across):
        _emit("tilezero", tile)
    with build.serial(shape.number(0), shape.number(shape.steps)) as k:
        for t in range(down):
            at = build.address_of(a[k, shape.number(t * tile_rows), shape.number(0), shape.number(0)])
            _emit("tileloadd64", 4 + t, at, build.int64(TILE_BYTES))
        for v in range(across):
            column = 4 + down + v % (4 - down)
            at = build.address_of(b[k, shape.number(0), shape.number(v * TILE_ROWS), shape.number(0)])
            _emit("tileloadd64", column, at, build.int64(column_stride))
            for t in range(down):
                _emit(shape.kernel.instruction, t * across + v, 4 + t, column)
    for tile in range(down * across):
        row, column = tile // across * tile_rows, tile % across * TILE_ROWS
        at = build.address_of(c[shape.number(row), shape.number(column)])
        _emit("tilestored64", tile, at, build.Cast("int64", c.strides[0]) * build.int64(4))
    _emit("tilerelease")


def _emit(name: str, *args: Any) -> None:
    """An AMX instruction: plain integers are tile registers."""
    immediate = [build.int8(arg) if isinstance(arg, int) else arg for arg in args]
    build.evaluate(build.call_llvm_intrin("void", f"llvm.x86.{name}", *immediate))
