# SPDX-License-Identifier: Apache-2.0
"""Operators that memory bounds: rows, transposes, sums along each axis, pooling, concatenation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from .operators import Operator, Tensor
from .te_operators import softmax

# 64 MiB of float32.
SIDE = 4096
CUBE = 256
POOL = (8, 64, 112, 112)
PARTS = 4
PART = (8, 64, 56, 56)
EPSILON = 1e-5


def operators() -> Iterator[Operator]:
    """All of them."""
    yield softmax(f"softmax-{SIDE}x{SIDE}", _softmax_function, SIDE, SIDE)
    yield _layer_norm()
    yield _transpose()
    yield _add()
    for axis in range(3):
        yield _sum(axis)
    yield _max_pool()
    yield _concat()


def _function(inputs: list[Any], output: Any) -> Any:
    from tvm import te

    return te.create_prim_func([*inputs, output])


def _placeholder(tensor: Tensor, name: str = "A") -> Any:
    from tvm import te

    return te.placeholder(tensor.shape, tensor.dtype, name)


def _softmax_function() -> Any:
    from tvm import topi

    a = _placeholder(Tensor((SIDE, SIDE)))
    return _function([a], topi.nn.softmax(a, axis=1))


def _numpy_layer_norm(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + EPSILON)
    centred /= spread
    centred *= scale
    centred += shift
    return centred


def _layer_norm() -> Operator:
    matrix, row = Tensor((SIDE, SIDE)), Tensor((SIDE,))

    def tir() -> Any:
        from tvm import topi

        x, scale, shift = _placeholder(matrix), _placeholder(row, "scale"), _placeholder(row, "shift")
        return _function([x, scale, shift], topi.nn.layer_norm(x, scale, shift, axis=[1], epsilon=EPSILON))

    return Operator(
        f"layernorm-{SIDE}x{SIDE}",
        (matrix, row, row),
        matrix,
        tir,
        flops=8.0 * SIDE**2,
        numpy=_numpy_layer_norm,
        torch=lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (SIDE,), w, b, EPSILON),
        onnx=f"y = LayerNormalization<axis = 1, epsilon = {EPSILON:f}>(a0, a1, a2)",
    )


def _transpose() -> Operator:
    matrix = Tensor((SIDE, SIDE))

    def tir() -> Any:
        from tvm import topi

        a = _placeholder(matrix)
        return _function([a], topi.transpose(a, (1, 0)))

    return Operator(
        f"transpose-{SIDE}x{SIDE}",
        (matrix,),
        matrix,
        tir,
        numpy=lambda a: np.ascontiguousarray(a.T),
        torch=lambda torch, a: a.t().contiguous(),
        onnx="y = Transpose<perm = [1, 0]>(a0)",
    )


def _add() -> Operator:
    matrix = Tensor((SIDE, SIDE))

    def tir() -> Any:
        from tvm import topi

        a, b = _placeholder(matrix), _placeholder(matrix, "B")
        return _function([a, b], topi.add(a, b))

    return Operator(
        f"add-{SIDE}x{SIDE}",
        (matrix, matrix),
        matrix,
        tir,
        flops=float(SIDE**2),
        numpy=np.add,
        torch=lambda torch, a, b: torch.add(a, b),
        onnx="y = Add(a0, a1)",
    )


def _sum(axis: int) -> Operator:
    cube = Tensor((CUBE,) * 3)

    def tir() -> Any:
        from tvm import topi

        a = _placeholder(cube)
        return _function([a], topi.sum(a, axis))

    return Operator(
        f"sum-axis{axis}-{CUBE}x{CUBE}x{CUBE}",
        (cube,),
        Tensor((CUBE,) * 2),
        tir,
        flops=float(CUBE**3),
        numpy=lambda a: a.sum(axis),
        torch=lambda torch, a: a.sum(axis),
        onnx=f"axes = Constant<value = int64[1] {{{axis}}}>() y = ReduceSum<keepdims = 0>(a0, axes)",
    )


def _max_pool() -> Operator:
    """3 × 3 at stride 2, as behind the first convolution of a ResNet."""
    images = Tensor(POOL)
    out = Tensor((*POOL[:2], *(size // 2 for size in POOL[2:])))

    def tir() -> Any:
        from tvm import topi

        a = _placeholder(images)
        return _function([a], topi.nn.pool2d(a, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max"))

    return Operator(
        f"maxpool-{'x'.join(map(str, POOL))}",
        (images,),
        out,
        tir,
        flops=9.0 * math.prod(out.shape),
        torch=lambda torch, a: torch.nn.functional.max_pool2d(a, 3, 2, 1),
        onnx="y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(a0)",
    )


def _concat() -> Operator:
    """Along the channels."""
    part = Tensor(PART)

    def tir() -> Any:
        from tvm import topi

        parts = [_placeholder(part, f"A{index}") for index in range(PARTS)]
        return _function(parts, topi.concatenate(parts, 1))

    return Operator(
        f"concat-{PARTS}x{'x'.join(map(str, PART))}",
        (part,) * PARTS,
        Tensor((PART[0], PARTS * PART[1], *PART[2:])),
        tir,
        numpy=lambda *parts: np.concatenate(parts, axis=1),
        torch=lambda torch, *parts: torch.cat(parts, 1),
        onnx=f"y = Concat<axis = 1>({', '.join(f'a{i}' for i in range(PARTS))})",
    )
