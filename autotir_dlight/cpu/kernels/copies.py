# SPDX-License-Identifier: Apache-2.0
"""Tensor intrinsics that stand for a copy, or a fill, and run as something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._tvm import IRBuilder, build
from .intrinsics import DotShape, index_type, registered, result_buffer
from .x86 import SIGN


def flip_intrinsic(shape: DotShape) -> str:
    """The name of the intrinsic that copies a row panel and inverts the sign bit of each byte."""
    name = f"autotir.flip.{shape.kernel.rows}.{shape.rows}x{shape.steps}.{shape.index}"
    return registered(name, lambda: (_flip(shape, False), _flip(shape, True)))


def bits_intrinsic(operand: str, bits: str, lanes: int, index: str) -> str:
    """The name of the intrinsic that copies ``lanes`` neighbours as the integers that have their bits."""
    name = f"autotir.bits.{operand}.{bits}x{lanes}.{index}"
    number = index_type(index)
    return registered(name, lambda: tuple(_bits(operand, bits, lanes, number, run) for run in (False, True)))


def zero_intrinsic(shape: DotShape) -> str:
    """The name of the intrinsic that sets the result to zero: nothing, for a kernel that begins with that."""
    acc, single = shape.kernel.micro.acc_dtype, min(shape.steps, 2)
    name = f"autotir.amx.zero.{acc}.{shape.rows}x{shape.columns}x{single}.{shape.index}"
    return registered(name, lambda: (_zero(shape, True), _zero(shape, False)))


def _flip(shape: DotShape, inverted: bool) -> Any:
    """``B[k, i, r] = A[k, i, r]`` as TVM sees it, or with ``inverted`` what runs: ``^ 0x80``."""
    n, kr, dtype = shape.numbers, shape.kernel.micro.kr, shape.kernel.rows
    extents = n(shape.steps, shape.rows, kr)
    with IRBuilder() as builder:
        with build.prim_func(s_tir=True):
            a, b = (
                build.match_buffer(
                    build.arg(name, build.handle()), extents, dtype, offset_factor=1, layout=None
                )
                for name in "ab"
            )
            with build.sblock("root"):
                everything = tuple(slice(0, int(e)) for e in extents)
                build.reads(a[everything])
                build.writes(b[everything])
                if inverted:
                    _inverted_copy(shape, a, b)
                else:
                    with build.grid(*extents) as loops, build.sblock("copy"):
                        at = list(build.axis.remap("SSS", list(loops)))
                        build.buffer_store(b, a[tuple(at)], at)
        return builder.get()


def _inverted_copy(shape: DotShape, a: Any, b: Any) -> None:
    n, width = shape.numbers, shape.rows * shape.kernel.micro.kr
    sign = build.int8(SIGN) if shape.kernel.rows == "int8" else build.uint8(SIGN & 0xFF)
    with build.serial(*n(0, shape.steps)) as k:
        at = [k, *n(0), build.Ramp(*n(0, 1), width)]
        build.buffer_store(b, build.bitwise_xor(a[tuple(at)], build.broadcast(sign, width)), at)


def _bits(operand: str, bits: str, lanes: int, number: Callable[[int], Any], runs: bool) -> Any:
    """``B[r] = cast(A[r])`` as TVM sees it, or what ``runs``: ``reinterpret``."""
    with IRBuilder() as builder:
        with build.prim_func(s_tir=True):
            a, b = (
                build.match_buffer(
                    build.arg(name, build.handle()), [number(lanes)], dtype, offset_factor=1, layout=None
                )
                for name, dtype in (("a", operand), ("b", bits))
            )
            with build.sblock("root"):
                build.reads(a[0:lanes])
                build.writes(b[0:lanes])
                with build.serial(number(0), number(lanes)) as loop, build.sblock("copy"):
                    i = build.axis.spatial(number(lanes), loop)
                    build.buffer_store(
                        b, build.reinterpret(bits, a[i]) if runs else build.Cast(bits, a[i]), [i]
                    )
        return builder.get()


def _zero(shape: DotShape, stores: bool) -> Any:
    """``C[i, j] = 0`` as TVM sees it, or without ``stores`` what runs: nothing."""
    acc = shape.kernel.micro.acc_dtype
    with IRBuilder() as builder:
        with build.prim_func(s_tir=True):
            c = result_buffer(shape, build.arg("c", build.handle()))
            with build.sblock("root"):
                build.reads()
                build.writes(c[0 : shape.rows, 0 : shape.columns])
                if stores:
                    # TVM counts a reduction of one step among the spatial loops.
                    single = [1] * (shape.steps == 1)
                    extents = shape.numbers(shape.rows, shape.columns, *single)
                    with build.grid(*extents) as loops, build.sblock("zero"):
                        at = list(build.axis.remap("SS", list(loops)[:2]))
                        build.buffer_store(c, getattr(build, acc)(0), at)
                else:
                    build.evaluate(build.int32(0))
        return builder.get()
