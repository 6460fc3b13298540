# SPDX-License-Identifier: Apache-2.0
"""Small inputs on which TVM's schedules were reported to fail or give up, compiled and compared with NumPy.

Each case names the public report that it is modelled on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import autotir_dlight as dl


@dataclass(frozen=True)
class Case:
    """``body(emit, *variables)`` on inputs of ``shapes`` must give what ``expect(*arrays)`` does."""

    name: str
    report: str
    shapes: tuple[Any, ...]
    body: Callable[..., Any]
    expect: Callable[..., Any]
    tolerance: float = 2e-5
    arrays: Callable[[np.random.Generator], list[Any]] | None = None
    dtypes: tuple[str, ...] = ()
    rule: str = ""

    def inputs(self, rng: np.random.Generator) -> list[Any]:
        if self.arrays is not None:
            return self.arrays(rng)
        return [rng.standard_normal(shape).astype("float32") for shape in self.shapes]


def conv(x, w, pad=0, groups=1):
    """NCHW convolution in float64, stride and dilation one."""
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    split = np.split(windows, groups, axis=1)
    kernels = np.split(w.astype("float64"), groups, axis=0)
    return np.concatenate(
        [np.einsum("nchwrs,ocrs->nohw", part, kernel) for part, kernel in zip(split, kernels)], axis=1
    )


def softmax(x, axis):
    e = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def scattered(x, index, updates):
    out = x.copy()
    np.put_along_axis(out, index, updates, 1)
    return out


def middle_norm(x, gamma, beta):
    x = x.astype("float64")
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return normal * gamma[None, :, None] + beta[None, :, None]


def unary(operator, **kwargs):
    return lambda emit, x: emit(operator(x, **kwargs))


def matmul_relu(emit, a, b):
    return emit(R.nn.relu(emit(R.matmul(a, b))))


def relu_of_product(a, b):
    return np.maximum(a.astype("float64") @ b, 0)


ODD = (14, 23, 67, 99)
CASES = [
    Case(
        "3x1 kernel, one channel",
        "apache/tvm#20048",
        ((2, 1, 4, 20), (1, 1, 3, 1)),
        lambda emit, x, w: emit(R.nn.conv2d(x, w)),
        conv,
    ),
    Case(
        "1x3 kernel, one channel",
        "apache/tvm#20047",
        ((1, 1, 6, 8), (1, 1, 1, 3)),
        lambda emit, x, w: emit(R.nn.conv2d(x, w)),
        conv,
    ),
    *(
        Case(
            f"sum over axis {axis} of four",
            "apache/tvm#19517",
            ((4, 8, 16, 32),),
            unary(R.sum, axis=axis),
            lambda x, axis=axis: x.astype("float64").sum(axis),
            rule="cpu.Reduction",
        )
        for axis in (0, 1, 2)
    ),
    Case(
        "2x2 product as multiply and sum",
        "apache/tvm#20118",
        ((2, 2), (2,)),
        lambda emit, a, b: emit(R.sum(emit(R.multiply(a, b)), axis=[-1])),
        lambda a, b: (a * b).sum(-1),
    ),
    Case(
        "rsqrt alone is no norm",
        "tvm.s_tir.dlight.gpu.RMSNorm",
        ((8, 8),),
        unary(R.rsqrt),
        lambda x: 1 / np.sqrt(x.astype("float64")),
        arrays=lambda rng: [rng.random((8, 8), dtype="float32") + 1],
        rule="cpu.Elementwise",
    ),
    Case(
        "power with a scalar exponent",
        "apache/tvm#19548",
        ((16, 16),),
        lambda emit, x: emit(R.power(x, relax.const(2.0))),
        lambda x: x.astype("float64") ** 2,
    ),
    Case(
        "linear layer, one row",
        "apache/tvm#18350",
        ((1, 8), (16, 8), (16,)),
        lambda emit, x, w, b: emit(R.add(emit(R.matmul(x, emit(R.permute_dims(w)))), b)),
        lambda x, w, b: x @ w.T + b,
    ),
    Case(
        "scatter_elements",
        "apache/tvm#19451",
        ((4, 8), (4, 8), (4, 8)),
        lambda emit, x, i, u: emit(R.scatter_elements(x, i, u, 1, "update")),
        scattered,
        arrays=lambda rng: [
            rng.standard_normal((4, 8)).astype("float32"),
            np.stack([rng.permutation(8) for _ in range(4)]),
            rng.standard_normal((4, 8)).astype("float32"),
        ],
        dtypes=("float32", "int64", "float32"),
    ),
    Case(
        "top 10 of 1000 in 6000 rows",
        "apache/tvm#19549",
        ((60, 100, 1000),),
        unary(R.topk, k=10, axis=-1, ret_type="values"),
        lambda x: -np.sort(-x, -1)[..., :10],
    ),
    Case(
        "cumulative sum",
        "apache/tvm#16254",
        ((4, 1000),),
        unary(R.cumsum, axis=-1),
        lambda x: x.astype("float64").cumsum(-1),
    ),
    Case(
        "dot product of 4096",
        "apache/tvm#16848",
        ((1, 4096), (4096, 1)),
        lambda emit, a, b: emit(R.matmul(a, b)),
        lambda a, b: a.astype("float64") @ b,
        1e-4,
        rule="cpu.GEMV",
    ),
    Case(
        "layer norm over the middle axis",
        "apache/tvm#17754",
        ((2, 64, 900), (64,), (64,)),
        lambda emit, x, g, b: emit(R.nn.layer_norm(x, g, b, axes=[1])),
        middle_norm,
        1e-4,
    ),
    Case(
        "adaptive average pool to 7x7",
        "apache/tvm#11747",
        ((1, 64, 56, 56),),
        unary(R.nn.adaptive_avg_pool2d, output_size=(7, 7)),
        lambda x: x.astype("float64").reshape(1, 64, 7, 8, 7, 8).mean((3, 5)),
    ),
    Case("maximum", "apache/tvm#18380", ((64, 1000),), unary(R.max, axis=1), lambda x: x.max(1)),
    Case(
        "log_softmax",
        "apache/tvm#17935",
        ((64, 1000),),
        unary(R.nn.log_softmax),
        lambda x: np.log(softmax(x, -1)),
    ),
    Case(
        "matrix product and relu",
        "tvm.s_tir.dlight.cpu.Reduction",
        ((256, 256), (256, 256)),
        matmul_relu,
        relu_of_product,
        rule="cpu.Matmul",
    ),
    Case(
        "depthwise convolution and relu",
        "tvm.s_tir.dlight.cpu.Reduction",
        ((1, 32, 56, 56), (32, 1, 3, 3)),
        lambda emit, x, w: emit(R.nn.relu(emit(R.nn.conv2d(x, w, padding=(1, 1), groups=32)))),
        lambda x, w: np.maximum(conv(x, w, 1, 32), 0),
        rule="cpu.Conv",
    ),
    Case(
        "vector times K by N weights",
        "tvm.s_tir.dlight.cpu.GEMV",
        ((1, 1024), (1024, 1000)),
        lambda emit, x, w: emit(R.matmul(x, w)),
        lambda x, w: x.astype("float64") @ w,
        1e-4,
        rule="cpu.GEMV",
    ),
    Case("relu of odd extents", "apache/tvm#18560", (ODD,), unary(R.nn.relu), lambda x: np.maximum(x, 0)),
    Case(
        "full sum of odd extents",
        "apache/tvm#18560",
        (ODD,),
        unary(R.sum),
        lambda x: x.astype("float64").sum(),
        1e-3,
    ),
    Case(
        "int8 matrix product",
        "apache/tvm issue of fragment_info_.end()",
        ((256, 256), (256, 256)),
        lambda emit, a, b: emit(R.matmul(a, b, out_dtype="int32")),
        lambda a, b: a.astype("int32") @ b.astype("int32"),
        arrays=lambda rng: [rng.integers(-128, 128, (256, 256)).astype("int8") for _ in range(2)],
        dtypes=("int8", "int8"),
        rule="cpu.Matmul",
    ),
    Case(
        "softmax over the second of four axes",
        "tvm.s_tir.dlight.cpu.Reduction",
        ((8, 16, 64, 64),),
        unary(R.nn.softmax, axis=1),
        lambda x: softmax(x, 1),
        rule="cpu.Reduction",
    ),
]


def module(case):
    dtypes = case.dtypes or ("float32",) * len(case.shapes)
    variables = [
        relax.Var(f"x{k}", relax.TensorType(shape, dtype))
        for k, (shape, dtype) in enumerate(zip(case.shapes, dtypes))
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            out = builder.emit_output(case.body(builder.emit, *variables))
        builder.emit_func_output(out)
    return builder.get()


def compare(got, expected, tolerance):
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
    elif got.size:
        scale = np.abs(expected).max()
        assert np.abs(got.astype("float64") - expected).max() <= tolerance * scale


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reported_input(case):
    target, report = dl.host_target(), dl.Report()
    executable = tvm.compile(module(case), target, relax_pipeline=dl.pipeline(target, report=report))
    arrays = case.inputs(np.random.default_rng(0))
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in arrays])
    compare(got.numpy(), case.expect(*arrays), case.tolerance)
    assert all(entry.status == "scheduled" for entry in report)
    if case.rule:
        assert case.rule in {entry.rule for entry in report}


def test_dynamic_rows():
    rows = tirx.Var("n", "int64")
    case = Case("dynamic", "", ((rows, 512), (512, 384)), matmul_relu, relu_of_product)
    target = dl.host_target()
    executable = tvm.compile(module(case), target, relax_pipeline=dl.pipeline(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((512, 384)).astype("float32")
    for n in (0, 1, 2, 7, 33, 128):
        x = rng.standard_normal((n, 512)).astype("float32")
        got = machine["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(weights))
        compare(got.numpy(), relu_of_product(x, weights), 2e-5)
