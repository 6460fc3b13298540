# SPDX-License-Identifier: Apache-2.0
"""Tensor intrinsics of the dot-product kernels, built and registered when a schedule first asks for one.

::

    for k in steps:                               # the whole of k: accumulators stay in registers
        for i in rows, v in vectors:              # unrolled here
            C[i, v] = dot(C[i, v], broadcast(A[k, i, 0:kr]), B[k, v, 0:lanes, 0:kr])

The description is what TVM compares with the loop nest; the implementation is the nest above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..._tvm import IRBuilder, TensorIntrin, build
from ...machine import dtype_bits
from .amx import tile_kernel
from .x86 import SIGN, DotKernel

Emit = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class DotShape:
    """One use of a kernel: its tile, the steps along k, and how the block spells the product.

    ``row_first``: the row operand is the left factor. ``index``: the type of the loop variables.
    ``own``: whether the panel of the rows, and that of the columns, has the operand's own type after all.
    """

    kernel: DotKernel
    rows: int
    vectors: int
    steps: int
    row_first: bool
    index: str
    own: tuple[bool, bool] = (False, False)

    @property
    def panels(self) -> tuple[str, str]:
        """The types of the panels where they are not the operands' own."""
        rows, columns = ("" if own else self.kernel.panel for own in self.own)
        return rows, columns

    @property
    def lanes(self) -> int:
        return self.kernel.micro.lanes

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def number(self, value: int) -> Any:
        """``value`` as a constant of the index type."""
        return index_type(self.index)(value)

    def numbers(self, *values: int) -> list[Any]:
        """Integers as constants of the index type."""
        return [self.number(value) for value in values]

    @property
    def depth(self) -> list[int]:
        """The extents that the block's k is split into."""
        kr, groups = self.kernel.micro.kr, self.kernel.groups
        if self.kernel.is_tiled:
            return [self.steps, groups, kr]
        return [self.steps] if kr == 1 else [self.steps, kr]

    def split(self, k: Any) -> list[Any]:
        """The place of ``k`` in :attr:`depth`."""
        kr, step = self.kernel.micro.kr, self.kernel.step
        if self.kernel.is_tiled:
            return [k // step, k % step // kr, k % kr]
        return [k] if kr == 1 else [k // kr, k % kr]

    def row_index(self, i: Any, depth: Sequence[Any]) -> tuple[Any, ...]:
        """Where the row panel holds row ``i``, in the order of memory."""
        return (depth[0], i, *depth[1:])

    def column_index(self, j: Any, depth: Sequence[Any]) -> tuple[Any, ...]:
        """Where the column panel holds column ``j``."""
        return (*depth[:-1], j, depth[-1]) if len(depth) > 1 else (depth[0], j)

    @property
    def name(self) -> str:
        k = self.kernel
        tile = f"{self.rows}x{self.columns}x{self.steps}"
        order = "ab" if self.row_first else "ba"
        own = "".join("o" if panel else "p" for panel in self.own)
        types = f"{k.rows}.{k.columns}.{own}"
        return f"autotir.{k.instruction}.{k.micro.isa}.{types}.{tile}.{order}.{self.index}"


def dot_intrinsic(shape: DotShape) -> str:
    """The name of the registered intrinsic for ``shape``."""
    return registered(shape.name, lambda: (_describe(shape), _implement(shape)))


def index_type(index: str) -> Callable[..., Any]:
    """What makes constants, and without an argument variables, of the index type."""
    return build.int64 if index == "int64" else build.int32


def registered(name: str, make: Callable[[], tuple[Any, Any]]) -> str:
    """``name``, under which what ``make`` gives (description, implementation) is registered once."""
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *make())
    return name


def _panels(shape: DotShape) -> tuple[Any, Any, Any]:
    """The matched buffers A, B as :meth:`DotShape.row_index` and ``column_index`` say, C [rows, columns]."""
    kernel, n = shape.kernel, shape.numbers
    handles = [build.arg(name, build.handle()) for name in "abc"]
    a, b = (
        build.match_buffer(handle, n(*extents), panel or own, offset_factor=1, layout=None)
        for handle, extents, panel, own in zip(
            handles, _extents(shape), shape.panels, (kernel.rows, kernel.columns)
        )
    )
    return a, b, result_buffer(shape, handles[2])


def result_buffer(shape: DotShape, handle: Any) -> Any:
    """The matched buffer C [rows, columns], its rows at any distance."""
    return build.match_buffer(
        handle,
        shape.numbers(shape.rows, shape.columns),
        shape.kernel.micro.acc_dtype,
        offset_factor=1,
        strides=[index_type(shape.index)(), shape.number(1)],
        scope="local",
        layout=None,
    )


def _extents(shape: DotShape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return shape.row_index(shape.rows, shape.depth), shape.column_index(shape.columns, shape.depth)


def _regions(shape: DotShape, a: Any, b: Any, c: Any) -> None:
    tile = c[0 : shape.rows, 0 : shape.columns]
    panels = [
        panel[tuple(slice(0, extent) for extent in extents)]
        for panel, extents in zip((a, b), _extents(shape))
    ]
    build.reads(tile, *(panels if shape.row_first else reversed(panels)))
    build.writes(tile)


def _widen(value: Any, shape: DotShape, panel: str, operand: str) -> Any:
    """A panel's element as the block spells it: back to the operand's type, then to the accumulator's."""
    if panel:
        value = build.Cast(operand, value)
    return build.Cast(shape.kernel.micro.acc_dtype, value)


def _describe(shape: DotShape) -> Any:
    kernel, n = shape.kernel, shape.numbers
    with IRBuilder() as builder:
        with build.prim_func(s_tir=True):
            a, b, c = _panels(shape)
            with build.sblock("root"):
                _regions(shape, a, b, c)
                extents = n(shape.rows, shape.columns, *shape.depth)
                with build.grid(*extents) as loops, build.sblock("dot"):
                    # TVM gives a loop of one step no iterator.
                    single = shape.steps == 1
                    live = [*loops[:2], *loops[2 + single :]]
                    i, j, *depth = build.axis.remap("SSRRR"[: len(live)], live)
                    depth = [*n(0)[:single], *depth]
                    left = _widen(a[shape.row_index(i, depth)], shape, shape.panels[0], kernel.rows)
                    right = _widen(b[shape.column_index(j, depth)], shape, shape.panels[1], kernel.columns)
                    product = left * right if shape.row_first else right * left
                    build.buffer_store(c, c[i, j] + product, [i, j])
        return builder.get()


def _implement(shape: DotShape) -> Any:
    with IRBuilder() as builder:
        with build.prim_func(s_tir=True):
            a, b, c = _panels(shape)
            with build.sblock("root"):
                _regions(shape, a, b, c)
                with build.sblock("kernel"):
                    _regions(shape, a, b, c)
                    if shape.kernel.is_tiled:
                        tile_kernel(shape, a, b, c)
                    else:
                        _kernel(shape, a, b, c)
        return builder.get()


def _kernel(shape: DotShape, a: Any, b: Any, c: Any) -> None:
    """The loop over k, and the correction of a flipped row operand after it."""
    n, kernel, lanes = shape.numbers, shape.kernel, shape.lanes
    emit, load = _emitter(kernel, lanes), _Loads(shape)
    sums = None
    if kernel.flip:
        sums = build.sblock_alloc_buffer(n(shape.columns), kernel.micro.acc_dtype, scope="local")
        for v in range(shape.vectors):
            build.buffer_store(sums, build.broadcast(build.int32(0), lanes), [load.run(v * lanes, lanes)])
    with build.serial(*n(0, shape.steps)) as k:
        if sums is not None:
            offset = build.broadcast(build.int8(SIGN), lanes * kernel.micro.kr)
            for v in range(shape.vectors):
                at = load.run(v * lanes, lanes)
                build.buffer_store(sums, emit(sums[at], offset, load.column(b, k, v)), [at])
        for i in range(shape.rows):
            for v in range(shape.vectors):
                at = load.run(v * lanes, lanes)
                value = emit(c[n(i)[0], at], load.row(a, k, i), load.column(b, k, v))
                build.buffer_store(c, value, [*n(i), at])
    if sums is not None:
        for i in range(shape.rows):
            for v in range(shape.vectors):
                at = load.run(v * lanes, lanes)
                build.buffer_store(c, c[n(i)[0], at] - sums[at], [*n(i), at])


class _Loads:
    """Vector loads of the panels."""

    def __init__(self, shape: DotShape) -> None:
        self.shape, self.n = shape, shape.numbers

    def run(self, start: int, width: int) -> Any:
        """The indices ``start`` … ``start + width - 1``."""
        return build.Ramp(*self.n(start, 1), width)

    def column(self, b: Any, k: Any, v: int) -> Any:
        """``lanes`` columns, ``kr`` neighbours along k each: contiguous in the panel."""
        kr, lanes = self.shape.kernel.micro.kr, self.shape.lanes
        if kr == 1:
            return b[k, self.run(v * lanes, lanes)]
        return b[k, self.n(v * lanes)[0], self.run(0, kr * lanes)]

    def row(self, a: Any, k: Any, i: int) -> Any:
        """``kr`` neighbours along k of one row, in every lane."""
        kr, lanes = self.shape.kernel.micro.kr, self.shape.lanes
        if kr == 1:
            return build.broadcast(a[k, self.n(i)[0]], lanes)
        dtype = self.shape.kernel.panel or self.shape.kernel.rows
        group = build.reinterpret("int32", a[k, self.n(i)[0], self.run(0, kr)])
        return build.reinterpret(f"{dtype}x{kr * lanes}", build.broadcast(group, lanes))


def _emitter(kernel: DotKernel, lanes: int) -> Emit:
    """``(accumulators, row, column)`` → the accumulators after one instruction."""
    bits = lanes * dtype_bits(kernel.micro.acc_dtype)
    result = f"{kernel.micro.acc_dtype}x{lanes}"

    def call(name: str, *args: Any) -> Any:
        return build.call_llvm_pure_intrin(result, name, *args)

    if kernel.instruction == "vpmaddwd":
        name = "llvm.x86.avx512.pmaddw.d.512" if bits == 512 else "llvm.x86.avx2.pmadd.wd"
        return lambda acc, row, column: acc + call(name, row, column)
    if kernel.instruction == "vfmadd231ps":
        return lambda acc, row, column: call("llvm.fma", row, column, acc)
    if kernel.instruction in ("vpdpbssd", "vpdpbuud"):
        return lambda acc, row, column: call(f"llvm.x86.avx2.{kernel.instruction}.256", acc, row, column)
    name = f"llvm.x86.avx512.vpdpbusd.{bits}"
    if (kernel.rows == "uint8") != kernel.flip:
        return lambda acc, row, column: call(name, acc, row, column)
    return lambda acc, row, column: call(name, acc, column, row)
