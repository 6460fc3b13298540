# SPDX-License-Identifier: Apache-2.0
"""The functions that the core's tests share: small, of every kind, each at several sets of extents.

An extent ``None`` is symbolic. A name such as ``matmul nt/prime`` is one function; :data:`WORKLOADS` holds
how each is made, :func:`cases` all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, topi
from tvm.script import tirx as T

Extent = int | None
Tensors = list[Any]

FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Workload:
    """``make(dtype, *extents)`` gives the tensors of a function: inputs, then outputs.

    ``rule`` is the default rule that must take it, ``extents`` are by kind, ``dtypes`` those that the aligned
    extents are tried with, ``constants`` the parameters that the caller lets a rule pack.
    """

    name: str
    rule: str
    make: Callable[..., Tensors]
    extents: Mapping[str, tuple[Extent, ...]]
    dtypes: tuple[str, ...] = ("float32",)
    constants: tuple[int, ...] = ()

    def func(self, kind: str = "aligned", dtype: str = "float32") -> Any:
        """The PrimFunc at the extents of ``kind``; all are int64 where one is symbolic, as Relax has them.

        Those of the kind ``"mixed"`` stay as they are: int64 symbols beside int32 numbers.
        """
        extents = self.extents[kind]
        wide = kind != "mixed" and None in extents
        dims = [
            te.var(f"n{k}", "int64") if e is None else T.int64(e) if wide else e
            for k, e in enumerate(extents)
        ]
        func = te.create_prim_func(self.make(dtype, *dims))
        return func.with_attr("layout_free_buffers", list(self.constants)) if self.constants else func


@dataclass(frozen=True)
class Case:
    """One function of the corpus."""

    workload: Workload
    kind: str
    dtype: str = "float32"

    @property
    def id(self) -> str:
        return f"{self.workload.name}/{self.kind}" + ("" if self.dtype == "float32" else f"/{self.dtype}")

    def build(self) -> Any:
        return self.workload.func(self.kind, self.dtype)


def _input(name: str, dtype: str, *shape: Any) -> Any:
    return te.placeholder(shape, dtype, name)


def _relu(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: te.max(x[i], tvm.tirx.const(0, x.dtype)), "relu")


# --- matrix products -------------------------------------------------------------------------------------


def matmul(layout: str = "nn", out: str = "", transposed: bool = False) -> Callable[..., Tensors]:
    """C[m, n] = sum_k A·B, each operand as it is (n) or transposed (t); ``out`` is the type of the sums."""

    def make(dtype: str, m: Any, n: Any, k: Any) -> Tensors:
        A = _input("A", dtype, *((k, m) if layout[0] == "t" else (m, k)))
        B = _input("B", dtype, *((n, k) if layout[1] == "t" else (k, n)))
        r = te.reduce_axis((0, k), "r")
        acc = out or dtype

        def element(i: Any, j: Any) -> Any:
            a = A[r, i] if layout[0] == "t" else A[i, r]
            b = B[j, r] if layout[1] == "t" else B[r, j]
            return te.sum(a.astype(acc) * b.astype(acc), axis=r)

        shape, body = ((n, m), lambda j, i: element(i, j)) if transposed else ((m, n), element)
        return [A, B, te.compute(shape, body, "C")]

    return make


def batched(dtype: str, b: Any, m: Any, n: Any, k: Any) -> Tensors:
    A, B = _input("A", dtype, b, m, k), _input("B", dtype, b, n, k)
    r = te.reduce_axis((0, k), "r")
    return [A, B, te.compute((b, m, n), lambda x, i, j: te.sum(A[x, i, r] * B[x, j, r], axis=r), "C")]


def rows_of_two_axes(dtype: str, b: Any, m: Any, n: Any, k: Any) -> Tensors:
    """A batch of matrices times one matrix: b and m are both rows."""
    A, B = _input("A", dtype, b, m, k), _input("B", dtype, k, n)
    r = te.reduce_axis((0, k), "r")
    return [A, B, te.compute((b, m, n), lambda x, i, j: te.sum(A[x, i, r] * B[r, j], axis=r), "C")]


def matmul_bias_relu(dtype: str, m: Any, n: Any, k: Any) -> Tensors:
    A, B, C = matmul()(dtype, m, n, k)
    bias = _input("bias", dtype, n)
    D = te.compute((m, n), lambda i, j: C[i, j] + bias[j], "D")
    return [A, B, bias, _relu(D)]


def matmul_residual(dtype: str, m: Any, n: Any, k: Any) -> Tensors:
    A, B, C = matmul("nt")(dtype, m, n, k)
    X = _input("X", dtype, m, n)
    return [A, B, X, te.compute((m, n), lambda i, j: C[i, j] * tvm.tirx.const(2, dtype) + X[i, j], "D")]


def scaled_matmul(dtype: str, m: Any, n: Any, k: Any) -> Tensors:
    """An elementwise producer in front of the product."""
    X, B = _input("X", dtype, m, k), _input("B", dtype, k, n)
    A = te.compute((m, k), lambda i, j: te.max(X[i, j], tvm.tirx.const(0, dtype)), "A")
    r = te.reduce_axis((0, k), "r")
    return [X, B, te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), "C")]


def two_matmuls(dtype: str, m: Any, n: Any, k: Any) -> Tensors:
    A, B, C = matmul()(dtype, m, n, k)
    D = _input("D", dtype, n, k)
    r = te.reduce_axis((0, n), "r")
    return [A, B, D, te.compute((m, k), lambda i, j: te.sum(C[i, r] * D[r, j], axis=r), "E")]


def gemv(layout: str) -> Callable[..., Tensors]:
    def make(dtype: str, n: Any, k: Any) -> Tensors:
        x = _input("x", dtype, 1, k)
        W = _input("W", dtype, *((n, k) if layout == "nk" else (k, n)))
        r = te.reduce_axis((0, k), "r")
        body = (lambda i, j: te.sum(x[i, r] * W[j, r], axis=r)) if layout == "nk" else None
        return [x, W, te.compute((1, n), body or (lambda i, j: te.sum(x[i, r] * W[r, j], axis=r)), "y")]

    return make


def gemv_bias(dtype: str, n: Any, k: Any) -> Tensors:
    x, W, y = gemv("nk")(dtype, n, k)
    bias = _input("bias", dtype, n)
    return [x, W, bias, te.compute((1, n), lambda i, j: te.max(y[i, j] + bias[j], tvm.tirx.const(0, dtype)))]


# --- convolutions ----------------------------------------------------------------------------------------


def conv2d_nchw(
    kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1, groups: int = 1, epilogue: str = ""
) -> Callable[..., Tensors]:
    def make(dtype: str, n: Any, ci: int, h: Any, w: Any, co: int) -> Tensors:
        x, weight = _input("x", dtype, n, ci, h, w), _input("weight", dtype, co, ci // groups, kernel, kernel)
        y = topi.nn.conv(x, weight, stride, pad, dilation, groups, "NCHW", out_dtype=dtype)
        return _with_epilogue(epilogue, [x, weight], y, dtype)

    return make


def _with_epilogue(epilogue: str, inputs: Tensors, y: Any, dtype: str) -> Tensors:
    if not epilogue:
        return [*inputs, y]
    bias = _input("bias", dtype, y.shape[1])
    z = te.compute(y.shape, lambda n, c, *i: y[(n, c, *i)] + bias[c], "z")
    if epilogue == "bias relu":
        return [*inputs, bias, _relu(z)]
    # Hard swish reads the biased sum twice: the producer is shared.
    six, three = tvm.tirx.const(6, dtype), tvm.tirx.const(3, dtype)
    zero = tvm.tirx.const(0, dtype)
    gate = te.compute(z.shape, lambda *i: te.max(te.min(z[i] + three, six), zero) / six, "gate")
    return [*inputs, bias, te.compute(z.shape, lambda *i: z[i] * gate[i], "out")]


def conv2d_nhwc(dtype: str, n: Any, h: Any, w: Any, ci: int, co: int) -> Tensors:
    x, weight = _input("x", dtype, n, h, w, ci), _input("weight", dtype, 3, 3, ci, co)
    return [x, weight, topi.nn.conv(x, weight, 1, 1, 1, 1, "NHWC", "HWIO", dtype)]


def conv1d(dtype: str, n: Any, ci: int, w: Any, co: int) -> Tensors:
    x, weight = _input("x", dtype, n, ci, w), _input("weight", dtype, co, ci, 3)
    return [x, weight, topi.nn.conv(x, weight, 2, 1, 1, 1, "NCW", out_dtype=dtype)]


def conv3d(dtype: str, n: Any, ci: int, d: Any, h: Any, w: Any, co: int) -> Tensors:
    x, weight = _input("x", dtype, n, ci, d, h, w), _input("weight", dtype, co, ci, 2, 3, 3)
    return [x, weight, topi.nn.conv(x, weight, 1, 1, 1, 1, "NCDHW", out_dtype=dtype)]


def conv2d_transposed(dtype: str, n: int, ci: int, h: int, w: int, co: int) -> Tensors:
    x, weight = _input("x", dtype, n, ci, h, w), _input("weight", dtype, ci, co, 4, 4)
    y = topi.nn.conv2d_transpose_nchw(x, weight, (2, 2), (1, 1), dtype, (0, 0))
    return [x, weight, y]


def depthwise_nhwc(dtype: str, n: Any, h: Any, w: Any, c: int) -> Tensors:
    x, weight = _input("x", dtype, n, h, w, c), _input("weight", dtype, 3, 3, c, 1)
    return [x, weight, topi.nn.depthwise_conv2d_nhwc(x, weight, 1, 1, 1, out_dtype=dtype)]


# --- reductions ------------------------------------------------------------------------------------------


def reduce(op: str, axis: int | tuple[int, ...] | None) -> Callable[..., Tensors]:
    def make(dtype: str, *shape: Any) -> Tensors:
        x = _input("x", dtype, *shape)
        return [x, getattr(topi, op)(x, axis)]

    return make


def mean_square(dtype: str, *shape: Any) -> Tensors:
    """Of all elements, so that nothing cancels: a producer, a reduction to a scalar and what follows it."""
    x = _input("x", dtype, *shape)
    total = topi.sum(te.compute(shape, lambda *i: x[i] * x[i], "square"))
    scale = tvm.tirx.const(0.5, dtype)
    return [x, te.compute((), lambda: tvm.tirx.sqrt(total() * scale), "mean")]


def sum_squares(dtype: str, *shape: Any) -> Tensors:
    """A product of an operand with itself: no contraction."""
    x = _input("x", dtype, *shape)
    axes = [te.reduce_axis((0, extent), f"r{k}") for k, extent in enumerate(shape)]
    return [x, te.compute((), lambda: te.sum(x[(*axes,)] * x[(*axes,)], axis=axes), "y")]


def softmax(axis: int) -> Callable[..., Tensors]:
    def make(dtype: str, *shape: Any) -> Tensors:
        x = _input("x", dtype, *shape)
        return [x, topi.nn.softmax(x, axis)]

    return make


def log_softmax(dtype: str, m: Any, n: Any) -> Tensors:
    x = _input("x", dtype, m, n)
    return [x, topi.nn.log_softmax(x)]


def layer_norm(dtype: str, m: Any, n: Any) -> Tensors:
    x, gamma, beta = _input("x", dtype, m, n), _input("gamma", dtype, n), _input("beta", dtype, n)
    return [x, gamma, beta, topi.nn.layer_norm(x, gamma, beta, [1], 1e-5)]


def rms_norm(dtype: str, m: Any, n: Any) -> Tensors:
    x, weight = _input("x", dtype, m, n), _input("weight", dtype, n)
    return [x, weight, topi.nn.rms_norm(x, weight, [1], 1e-5)]


def pool(kind: str, layout: str = "NCHW") -> Callable[..., Tensors]:
    def make(dtype: str, *shape: Any) -> Tensors:
        x = _input("x", dtype, *shape)
        y = topi.nn.pool2d(x, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), kind, False, layout)
        return [x, y]

    return make


def global_pool(dtype: str, n: Any, c: int, h: int, w: int) -> Tensors:
    x = _input("x", dtype, n, c, h, w)
    return [x, topi.nn.global_pool(x, "avg")]


# --- elementwise -----------------------------------------------------------------------------------------


def add_relu(dtype: str, *shape: Any) -> Tensors:
    x, y = _input("x", dtype, *shape), _input("y", dtype, *shape)
    return [x, y, _relu(te.compute(shape, lambda *i: x[i] + y[i], "z"))]


def broadcast(dtype: str, m: Any, n: Any) -> Tensors:
    x, row, column = _input("x", dtype, m, n), _input("row", dtype, n), _input("column", dtype, m)
    return [x, row, column, te.compute((m, n), lambda i, j: x[i, j] * row[j] + column[i], "y")]


def transpose(*axes: int) -> Callable[..., Tensors]:
    def make(dtype: str, *shape: Any) -> Tensors:
        x = _input("x", dtype, *shape)
        return [x, topi.transpose(x, axes)]

    return make


def pad(dtype: str, m: Any, n: Any) -> Tensors:
    x = _input("x", dtype, m, n)
    return [x, topi.nn.pad(x, [1, 2], [0, 3], tvm.tirx.const(1, dtype))]


def strided(dtype: str, m: int, n: int) -> Tensors:
    x = _input("x", dtype, m, 2 * n)
    return [x, te.compute((m, n), lambda i, j: x[m - 1 - i, 2 * j + 1], "y")]


def gather(dtype: str, rows: int, m: Any, n: Any) -> Tensors:
    table, index = _input("table", dtype, rows, n), _input("index", "int32", m)
    return [table, index, te.compute((m, n), lambda i, j: table[index[i], j], "y")]


def concatenate(dtype: str, m: Any, n: int) -> Tensors:
    x, y = _input("x", dtype, m, n), _input("y", dtype, m, n + 3)
    return [x, y, topi.concatenate([x, y], 1)]


def channel_blocks(dtype: str, n: Any, c: int, w: Any) -> Tensors:
    """NCW to NCW4c."""
    x = _input("x", dtype, n, c, w)
    return [x, te.compute((n, c // 4, w, 4), lambda a, b, i, u: x[a, b * 4 + u, i], "y")]


def two_outputs(dtype: str, m: Any, n: Any) -> Tensors:
    x = _input("x", dtype, m, n)
    two = tvm.tirx.const(2, dtype)
    y = te.compute((m, n), lambda i, j: x[i, j] + two, "y")
    return [x, y, te.compute((m, n), lambda i, j: y[i, j] * two, "z")]


def compare(dtype: str, m: Any, n: Any) -> Tensors:
    x, y = _input("x", dtype, m, n), _input("y", dtype, m, n)
    return [x, y, te.compute((m, n), lambda i, j: tvm.tirx.all(x[i, j] < y[i, j], y[i, j] < 3), "z")]


def logic(dtype: str, m: Any, n: Any) -> Tensors:
    x, y = _input("x", dtype, m, n), _input("y", dtype, m, n)
    return [x, y, te.compute((m, n), lambda i, j: tvm.tirx.any(x[i, j], tvm.tirx.Not(y[i, j])), "z")]


def unary(op: str) -> Callable[..., Tensors]:
    def make(dtype: str, m: Any, n: Any) -> Tensors:
        x = _input("x", dtype, m, n)
        return [x, getattr(topi, op)(x)]

    return make


def scan(dtype: str, m: int, n: int) -> Tensors:
    """Opaque: one statement that is no list of nests of blocks."""
    x = _input("x", dtype, m, n)
    return [x, topi.cumsum(x, 1)]


_MATRIX: dict[str, tuple[Extent, ...]] = {
    "aligned": (32, 64, 48),
    "prime": (13, 37, 29),
    "one": (3, 37, 1),
    "no rows": (0, 16, 8),
    "no depth": (5, 16, 0),
    "dynamic rows": (None, 64, 48),
    "dynamic": (None, None, None),
    "mixed": (None, 64, 48),
}
_PRODUCT = {k: _MATRIX[k] for k in ("aligned", "prime", "dynamic rows")}
_ROW: dict[str, tuple[Extent, ...]] = {
    "aligned": (16, 64),
    "prime": (7, 37),
    "long": (1, 4099),
    "one": (1, 1),
    "zero": (3, 0),
    "dynamic rows": (None, 64),
    "dynamic": (None, None),
    "mixed": (None, 37),
}
_FEW = {k: _ROW[k] for k in ("aligned", "prime", "dynamic")}
_IMAGE: dict[str, tuple[Extent, ...]] = {
    "aligned": (1, 16, 8, 16, 32),
    "prime": (2, 3, 7, 11, 5),
    "batch": (None, 8, 8, 8, 16),
}
_STATIC_IMAGE = {k: v for k, v in _IMAGE.items() if k != "batch"}

WORKLOADS = [
    Workload("matmul nn", "cpu.Matmul", matmul("nn"), _MATRIX, FLOATS),
    Workload("matmul nt", "cpu.Matmul", matmul("nt"), _MATRIX, FLOATS),
    Workload("matmul tn", "cpu.Matmul", matmul("tn"), _PRODUCT),
    Workload("matmul tt", "cpu.Matmul", matmul("tt"), _PRODUCT),
    Workload("matmul to n×m", "cpu.Matmul", matmul("nn", transposed=True), _PRODUCT),
    Workload("matmul int8", "cpu.Matmul", matmul("nt", out="int32"), _PRODUCT, ("int8",)),
    Workload("matmul int32", "cpu.Matmul", matmul("nn"), _PRODUCT, ("int32",)),
    Workload("matmul f16 to f32", "cpu.Matmul", matmul("nn", out="float32"), _PRODUCT, ("float16",)),
    Workload("matmul with a constant", "cpu.Matmul", matmul("nt"), _PRODUCT, constants=(1,)),
    Workload("matmul of a constant", "cpu.Matmul", matmul("nn"), _PRODUCT, constants=(0,)),
    Workload("matmul bias relu", "cpu.Matmul", matmul_bias_relu, _MATRIX),
    Workload("matmul residual", "cpu.Matmul", matmul_residual, _PRODUCT),
    Workload("relu matmul", "cpu.Matmul", scaled_matmul, _PRODUCT),
    Workload("two matmuls", "cpu.Matmul", two_matmuls, _PRODUCT),
    Workload(
        "batched matmul",
        "cpu.Matmul",
        batched,
        {"aligned": (4, 16, 32, 16), "prime": (3, 5, 7, 11), "dynamic": (None, None, 32, 16)},
    ),
    Workload(
        "rows of two axes",
        "cpu.Matmul",
        rows_of_two_axes,
        {"aligned": (2, 16, 32, 16), "prime": (3, 5, 7, 11), "dynamic": (None, 7, 32, 16)},
    ),
    Workload(
        "gemv kn",
        "cpu.GEMV",
        gemv("kn"),
        {
            "aligned": (64, 48),
            "prime": (37, 53),
            "one": (1, 1),
            "zero": (16, 0),
            "dynamic": (None, 48),
            "from memory": (4096, 1028),
        },
        FLOATS,
    ),
    Workload(
        "gemv nk",
        "cpu.GEMV",
        gemv("nk"),
        {
            "aligned": (64, 48),
            "prime": (37, 53),
            "long": (1, 4099),
            "dynamic": (37, None),
            "from memory": (4000, 1030),
        },
    ),
    Workload("gemv bias relu", "cpu.GEMV", gemv_bias, {"aligned": (64, 48), "prime": (37, 53)}),
    Workload("gemv with a constant", "cpu.GEMV", gemv("kn"), {"aligned": (64, 48)}, constants=(1,)),
    Workload("conv 1x1", "cpu.Matmul", conv2d_nchw(1), _STATIC_IMAGE),
    Workload("conv 3x3", "cpu.Conv", conv2d_nchw(3, pad=1), _IMAGE, FLOATS),
    Workload("conv strided", "cpu.Conv", conv2d_nchw(3, stride=2, pad=1), _IMAGE),
    Workload("conv dilated", "cpu.Conv", conv2d_nchw(3, pad=2, dilation=2), _STATIC_IMAGE),
    Workload("conv bias relu", "cpu.Conv", conv2d_nchw(3, pad=1, epilogue="bias relu"), _STATIC_IMAGE),
    Workload("conv bias hard swish", "cpu.Conv", conv2d_nchw(3, pad=1, epilogue="swish"), _STATIC_IMAGE),
    Workload("conv constant weights", "cpu.Conv", conv2d_nchw(3, pad=1), _STATIC_IMAGE, constants=(1,)),
    Workload(
        "conv grouped",
        "cpu.Conv",
        conv2d_nchw(3, pad=1, groups=2),
        {"aligned": (1, 16, 8, 8, 32), "odd": (2, 6, 5, 7, 4)},
    ),
    Workload(
        "conv depthwise",
        "cpu.Conv",
        conv2d_nchw(3, pad=1, groups=8, epilogue="bias relu"),
        {"aligned": (1, 8, 8, 16, 8), "odd": (2, 8, 5, 7, 8)},
    ),
    Workload(
        "conv nhwc",
        "cpu.Conv",
        conv2d_nhwc,
        {
            "aligned": (1, 8, 8, 16, 32),
            "prime": (2, 5, 7, 3, 5),
            "batch": (None, 6, 6, 8, 16),
            # Large enough for tasks that pad their own part of the input.
            "halo": (1, 28, 28, 32, 40),
            "halo and batch": (2, 14, 28, 16, 24),
        },
    ),
    Workload(
        "conv nhwc constant weights",
        "cpu.Conv",
        conv2d_nhwc,
        {"aligned": (1, 14, 14, 32, 64), "ragged": (2, 12, 10, 3, 20)},
        constants=(1,),
    ),
    Workload("conv 1-d", "cpu.Conv", conv1d, {"aligned": (1, 16, 32, 16), "prime": (2, 3, 17, 5)}),
    Workload("conv 3-d", "cpu.Conv", conv3d, {"aligned": (1, 4, 4, 8, 8, 16), "prime": (1, 3, 3, 5, 7, 5)}),
    Workload("conv transposed", "cpu.Conv", conv2d_transposed, {"odd": (1, 8, 5, 6, 8)}),
    Workload(
        "depthwise nhwc",
        "cpu.Conv",
        depthwise_nhwc,
        {"aligned": (1, 8, 8, 32), "odd": (2, 5, 7, 6), "halo": (1, 24, 30, 64), "short": (1, 2, 60, 200)},
    ),
    Workload("sum of rows", "cpu.Reduction", reduce("sum", 1), _ROW, (*FLOATS, "int32")),
    Workload("sum of columns", "cpu.Reduction", reduce("sum", 0), _ROW, ("float32", "float16")),
    Workload("sum of squares", "cpu.Reduction", sum_squares, _ROW),
    Workload("root of the mean square", "cpu.Reduction", mean_square, _FEW),
    Workload("max of rows", "cpu.Reduction", reduce("max", 1), _FEW, ("float32", "float16", "int8")),
    Workload("product", "cpu.Reduction", reduce("prod", 1), _FEW),
    Workload("argmax", "cpu.Reduction", reduce("argmax", 1), _FEW),
    Workload("argmin of columns", "cpu.Reduction", reduce("argmin", 0), _FEW),
    Workload("all", "cpu.Reduction", reduce("all", 1), {**_FEW, "long": _ROW["long"]}, ("bool",)),
    Workload("any of columns", "cpu.Reduction", reduce("any", 0), _FEW, ("bool",)),
    Workload(
        "sum of the middle", "cpu.Reduction", reduce("sum", 1), {"odd": (3, 5, 32), "dynamic": (None, 5, 7)}
    ),
    Workload(
        "sum around", "cpu.Reduction", reduce("sum", (0, 2)), {"odd": (3, 5, 32), "dynamic": (None, 5, 7)}
    ),
    Workload("softmax", "cpu.Reduction", softmax(-1), _ROW, ("float32", "float16")),
    Workload("softmax of columns", "cpu.Reduction", softmax(0), _FEW),
    Workload("layer norm", "cpu.Reduction", layer_norm, _FEW),
    Workload("rms norm", "cpu.Reduction", rms_norm, _FEW),
    Workload(
        "log softmax", "cpu.Reduction", log_softmax, {**_FEW, "dynamic rows": (None, 64), "odd": (5, 40)}
    ),
    Workload(
        "softmax of four", "cpu.Reduction", softmax(-1), {"odd": (2, 3, 5, 48), "dynamic": (None, 3, 5, 64)}
    ),
    Workload("max pool", "cpu.Reduction", pool("max"), {"aligned": (1, 4, 16, 32), "odd": (2, 3, 7, 9)}),
    Workload("average pool", "cpu.Reduction", pool("avg"), {"aligned": (1, 4, 16, 32), "odd": (2, 3, 7, 9)}),
    Workload(
        "max pool nhwc", "cpu.Reduction", pool("max", "NHWC"), {"aligned": (1, 8, 8, 32), "odd": (2, 5, 7, 3)}
    ),
    Workload(
        "global pool", "cpu.Reduction", global_pool, {"aligned": (1, 16, 8, 8), "dynamic": (None, 3, 5, 7)}
    ),
    Workload("add relu", "cpu.Elementwise", add_relu, _ROW, (*FLOATS, "int32", "int8")),
    Workload("broadcast", "cpu.Elementwise", broadcast, _ROW),
    Workload("transpose", "cpu.Elementwise", transpose(1, 0), _ROW),
    Workload(
        "transpose of three",
        "cpu.Elementwise",
        transpose(0, 2, 1),
        {"odd": (3, 16, 5), "one": (1, 1, 7), "aligned": (2, 24, 40), "staged": (1, 1024, 1032)},
    ),
    Workload("pad", "cpu.Elementwise", pad, {k: v for k, v in _ROW.items() if k != "zero"}),
    Workload("strided slice", "cpu.Elementwise", strided, {"aligned": (16, 64), "prime": (7, 37)}),
    Workload("gather", "cpu.Elementwise", gather, {"aligned": (11, 16, 64), "dynamic": (11, None, 37)}),
    Workload("concatenate", "cpu.Elementwise", concatenate, {"aligned": (16, 64), "dynamic": (None, 37)}),
    Workload("channel blocks", "cpu.Elementwise", channel_blocks, {"aligned": (2, 16, 32), "odd": (3, 8, 5)}),
    Workload("two outputs", "cpu.Elementwise", two_outputs, _FEW),
    Workload("compare", "cpu.Elementwise", compare, _FEW),
    Workload("logic", "cpu.Elementwise", logic, _FEW, ("bool",)),
    Workload("exp", "cpu.Elementwise", unary("exp"), _FEW, ("float32", "float64")),
    Workload("cosh", "cpu.Elementwise", unary("cosh"), _FEW),
    Workload("cumsum", "cpu.Fallback", scan, {"odd": (3, 17)}),
]
BY_NAME = {w.name: w for w in WORKLOADS}


def cases() -> list[Case]:
    """Every workload at all its extents, and at its first extents with its other types."""
    found = []
    for workload in WORKLOADS:
        first, *others = workload.dtypes
        found += [Case(workload, kind, first) for kind in workload.extents]
        found += [Case(workload, next(iter(workload.extents)), dtype) for dtype in others]
    return found


def func(name: str, kind: str = "aligned", dtype: str = "") -> Any:
    """One function of the corpus by its workload's name."""
    workload = BY_NAME[name]
    return workload.func(kind, dtype or workload.dtypes[0])


@T.prim_func(s_tir=True)
def scatter(A: T.Buffer((64,), "float32"), index: T.Buffer((64,), "int32"), B: T.Buffer((11,), "float32")):
    for i in range(64):
        with T.sblock("scatter"):
            vi = T.axis.opaque(64, i)
            T.reads(A[vi], index[vi])
            T.writes(B[0:11])
            B[index[vi]] = A[vi]


@T.prim_func(s_tir=True)
def accumulate(A: T.Buffer((37,), "float32"), C: T.Buffer((37,), "float32")):
    for i in range(37):
        with T.sblock("add"):
            vi = T.axis.spatial(37, i)
            C[vi] = C[vi] + A[vi]
