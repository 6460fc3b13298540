# SPDX-License-Identifier: Apache-2.0
"""Matrix products: square and ragged, with one row, batched, and of 8-bit integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .operators import Operator, Tensor

SQUARE = (256, 512, 768, 1024, 1536)
# M, N, K: all tails at once, a single tail, few rows, many rows with few columns.
RAGGED = ((1000, 1000, 1000), (127, 513, 255), (49, 1000, 2048), (3136, 64, 576))
GEMV = 4096
# The scores of 12 heads of 8 sequences; many small ones; few large ones.
BATCHED = ((96, 128, 128, 64), (64, 64, 64, 64), (8, 512, 512, 512))
INTEGER = 1024


def operators() -> Iterator[Operator]:
    """All of them."""
    for size in SQUARE:
        yield _gemm(f"gemm-{size}", size, size, size)
    for m, n, k in RAGGED:
        yield _gemm(f"gemm-{m}x{n}x{k}", m, n, k)
    yield _gemm(f"gemv-kn-{GEMV}", 1, GEMV, GEMV)
    yield _gemm(f"gemv-nk-{GEMV}", 1, GEMV, GEMV, transposed=True)
    for batch, m, n, k in BATCHED:
        yield _batched(batch, m, n, k)
    for kind in ("int8", "uint8"):
        yield _integer(kind)


def product(a: Tensor, b: Tensor, out: str, transposed: bool = False) -> Any:
    """The function of ``a`` × ``b`` (its transpose where asked) over the last two axes, unscheduled."""
    from tvm import te

    left, right = (te.placeholder(t.shape, t.dtype, name) for t, name in ((a, "A"), (b, "B")))
    k = te.reduce_axis((0, a.shape[-1]), "k")

    def element(*index: Any) -> Any:
        *batch, i, j = index
        inner = (j, k) if transposed else (k, j)
        return te.sum(left[(*batch, i, k)].astype(out) * right[(*batch, *inner)].astype(out), axis=k)

    columns = b.shape[-2] if transposed else b.shape[-1]
    return te.create_prim_func([left, right, te.compute((*a.shape[:-1], columns), element, "C")])


def _gemm(name: str, m: int, n: int, k: int, transposed: bool = False) -> Operator:
    a, b = Tensor((m, k)), Tensor((n, k) if transposed else (k, n))
    turn: Callable[[Any], Any] = (lambda w: w.T) if transposed else (lambda w: w)
    return Operator(
        name,
        (a, b),
        Tensor((m, n)),
        partial(product, a, b, "float32", transposed),
        flops=2.0 * m * n * k,
        numpy=lambda x, w: x @ turn(w),
        torch=lambda torch, x, w: torch.mm(x, turn(w)),
        onnx=f"y = Gemm<transB = {int(transposed)}>(a0, a1)" if transposed else "y = MatMul(a0, a1)",
    )


def _batched(batch: int, m: int, n: int, k: int) -> Operator:
    a, b = Tensor((batch, m, k)), Tensor((batch, k, n))
    return Operator(
        f"bmm-{batch}x{m}x{n}x{k}",
        (a, b),
        Tensor((batch, m, n)),
        partial(product, a, b, "float32"),
        flops=2.0 * batch * m * n * k,
        numpy=np.matmul,
        torch=lambda torch, x, y: torch.bmm(x, y),
        onnx="y = MatMul(a0, a1)",
    )


def _integer(kind: str) -> Operator:
    """Signed weights under signed or unsigned activations, exact sums of 32 bits."""
    a, b = Tensor((INTEGER, INTEGER), kind), Tensor((INTEGER, INTEGER), "int8")
    # PyTorch multiplies 8-bit integers only through a function of its own, and only signed ones.
    signed = kind == "int8"
    return Operator(
        f"int8-{'s8' if signed else 'u8'}s8-{INTEGER}",
        (a, b),
        Tensor((INTEGER, INTEGER), "int32"),
        partial(product, a, b, "int32"),
        flops=2.0 * INTEGER**3,
        torch=(lambda torch, x, y: torch._int_mm(x, y)) if signed else None,
        onnx="y = MatMulInteger(a0, a1)",
    )
