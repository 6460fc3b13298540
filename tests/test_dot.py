# SPDX-License-Identifier: Apache-2.0
"""Products of narrow types through dot-product instructions: exact numbers, and the inner loop's code."""

from __future__ import annotations

import re

import ml_dtypes  # noqa: F401  makes NumPy know bfloat16
import numpy as np
import pytest
import tvm
from test_assembly import loops
from tvm import relax, te, topi

import autotir_dlight as dl
from autotir_dlight.cpu.dot import DotPlan
from autotir_dlight.cpu.kernels.intrinsics import DotShape, dot_intrinsic
from autotir_dlight.cpu.kernels.x86 import KERNELS, kernels_for
from autotir_dlight.machine import CpuMachine, dtype_bits
from autotir_dlight.verify import run_primfunc

BYTES = ("int8", "uint8")
# CPU -> the features of this kind that its code needs, beyond what every machine with AVX2 has.
CPUS = {
    "haswell": {"avx2"},
    "alderlake": {"avxvnni"},
    "arrowlake": {"avxvnniint8"},
    "skylake-avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"},
    "cascadelake": {"avx512vnni", "avx512bw", "avx512vl", "avx512dq", "avx512cd"},
    "icelake-server": {"avx512vnni", "avx512bw", "avx512vbmi2", "avx512bitalg", "gfni"},
    "sapphirerapids": {"amx-int8", "amx-bf16", "avx512fp16", "avx512vbmi2", "avx512bitalg", "avxvnni"},
}
HOST = CpuMachine.from_target(dl.host_target())
RUNNABLE = [cpu for cpu, needs in CPUS.items() if HOST.has(*needs) and HOST.has("avx2")]


def target_of(cpu):
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": "x86_64-linux-gnu", "num-cores": 2})


def matmul(m, n, k, left="int8", right="int8", out="int32", layout="nn", batch=(), relu=False):
    a = te.placeholder((*batch, *((k, m) if layout[0] == "t" else (m, k))), left)
    b = te.placeholder((*batch, *((n, k) if layout[1] == "t" else (k, n))), right)
    r = te.reduce_axis((0, k))

    def product(*index):
        *outer, i, j = index
        x = a[(*outer, *((r, i) if layout[0] == "t" else (i, r)))]
        y = b[(*outer, *((j, r) if layout[1] == "t" else (r, j)))]
        return te.sum(x.astype(out) * y.astype(out), axis=r)

    c = te.compute((*batch, m, n), product)
    return te.create_prim_func([a, b, topi.nn.relu(c) if relu else c])


def decision(func, target):
    for rule in (dl.cpu.Conv(), dl.cpu.Matmul(), dl.cpu.GEMV()):
        found = rule.decide(func, target)
        if not isinstance(found, dl.Reject):
            return rule, found
    raise AssertionError("no rule for contractions takes it")


def uses_dot(func, target):
    return isinstance(decision(func, target)[1].plan.stages[-1], DotPlan)


def scheduled(func, target):
    rule, found = decision(func, target)
    return rule.build(func, found, found.plan).mod["main"]


def extreme(shape, dtype, seed=0):
    """Bytes, two thirds of them the type's extremes: pairs that overflow 16 bits when they are added."""
    rng, limits = np.random.default_rng(seed), np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
    choice = rng.integers(0, 3, shape)
    return np.where(choice == 0, limits.min, np.where(choice == 1, limits.max, values)).astype(dtype)


def arrays_of(func):
    shapes = [tuple(int(d) for d in p.shape) for p in func.params]
    inputs = [extreme(s, str(p.dtype), i) for i, (s, p) in enumerate(zip(shapes[:2], func.params))]
    return [*inputs, np.zeros(shapes[2], "int32")]


def reference(a, b, layout="nn", relu=False):
    a, b = (x.astype("int32") for x in (a, b))
    a = a.swapaxes(-1, -2) if layout[0] == "t" else a
    b = b.swapaxes(-1, -2) if layout[1] == "t" else b
    return np.maximum(a @ b, 0) if relu else a @ b


SHAPES = [(64, 64, 64), (13, 37, 29), (2, 16, 8), (97, 101, 67), (25, 33, 130), (197, 130, 192), (5, 70, 64)]


@pytest.mark.parametrize("cpu", RUNNABLE)
@pytest.mark.parametrize("left", BYTES)
@pytest.mark.parametrize("right", BYTES)
def test_bytes_are_exact(cpu, left, right):
    target = target_of(cpu)
    for position, shape in enumerate(SHAPES):
        layout = ("nn", "nt", "tn", "tt")[position % 4]
        batch = ((), (3,))[position % 2]
        func = matmul(*shape, left, right, layout=layout, batch=batch, relu=bool(batch))
        assert uses_dot(func, target)
        args = arrays_of(func)
        want = reference(args[0], args[1], layout, bool(batch))
        got = run_primfunc(scheduled(func, target), args, target)[-1]
        np.testing.assert_array_equal(got, want, err_msg=f"{shape} {layout} {batch}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cpu", [c for c in RUNNABLE if c in ("haswell", "skylake-avx512", "sapphirerapids")])
def test_half_precision_accumulates_in_float32(cpu, dtype):
    target, rng = target_of(cpu), np.random.default_rng(0)
    for position, shape in enumerate(SHAPES):
        layout = ("nn", "nt", "tn", "tt")[position % 4]
        func = matmul(*shape, dtype, dtype, "float32", layout)
        a, b = (
            rng.standard_normal([int(d) for d in p.shape]).astype("float32").astype(dtype)
            for p in func.params[:2]
        )
        x, y = a.astype("float64"), b.astype("float64")
        want = (x.T if layout[0] == "t" else x) @ (y.T if layout[1] == "t" else y)
        args = [a, b, np.zeros(want.shape, "float32")]
        got = run_primfunc(scheduled(func, target), args, target)[-1]
        np.testing.assert_allclose(got, want, atol=1e-4)


def convolution(layout, n, c, size, f, kernel, stride, pad, weight=None):
    data, filters = ((n, c, size, size), (f, c, kernel, kernel))
    if layout == "NHWC":
        data, filters = (n, size, size, c), (kernel, kernel, c, f)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data, "int8"))
    w = relax.Var("w", relax.TensorType(filters, "int8")) if weight is None else relax.const(weight)
    with builder.function("main", [x] if weight is not None else [x, w]):
        with builder.dataflow():
            kernel_layout = "OIHW" if layout == "NCHW" else "HWIO"
            y = relax.op.nn.conv2d(
                x,
                w,
                strides=stride,
                padding=pad,
                data_layout=layout,
                kernel_layout=kernel_layout,
                out_dtype="int32",
            )
            out = builder.emit_output(builder.normalize(y))
        builder.emit_func_output(out)
    return builder.get(), data, filters


def convolved(x, w, stride, pad):
    """The convolution of NHWC by HWIO, in int32."""
    x = np.pad(x.astype("int32"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    size = w.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return np.einsum("nhwcrs,rscf->nhwf", windows[:, ::stride, ::stride], w.astype("int32"))


CONVOLUTIONS = [(1, 8, 14, 16, 3, 1, 1), (2, 3, 15, 33, 3, 2, 1), (1, 32, 7, 64, 1, 1, 0)]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("sizes", CONVOLUTIONS)
@pytest.mark.parametrize("cpu", [c for c in RUNNABLE if c in ("haswell", "cascadelake", "sapphirerapids")])
def test_convolution(cpu, sizes, layout, constant):
    target = target_of(cpu)
    _, data, filters = convolution(layout, *sizes)
    x, w = extreme(data, "int8", 1), extreme(filters, "int8", 2)
    mod, _, _ = convolution(layout, *sizes, weight=w if constant else None)
    assert "dot" in str(dl.explain(mod, target))
    machine = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=dl.pipeline(target)), tvm.cpu())
    got = machine["main"](*(tvm.runtime.tensor(v) for v in ([x] if constant else [x, w]))).numpy()
    if layout == "NCHW":
        got, x, w = got.transpose(0, 2, 3, 1), x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(got, convolved(x, w, *sizes[-2:]))


@pytest.mark.parametrize("cpu", [c for c in RUNNABLE if c in ("haswell", "cascadelake", "sapphirerapids")])
def test_any_number_of_rows(cpu):
    target, rows = target_of(cpu), tvm.tirx.Var("n", "int64")
    weight = extreme((67, 96), "int8")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, 67), "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(weight), out_dtype="int32"))
            y = builder.emit(relax.op.multiply(relax.op.astype(y, "float32"), relax.const(0.5, "float32")))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    mod = builder.get()
    assert "dot" in str(dl.explain(mod, target))
    machine = relax.VirtualMachine(tvm.compile(mod, target, relax_pipeline=dl.pipeline(target)), tvm.cpu())
    for count in (0, 1, 2, 13, 64):
        a = extreme((count, 67), "int8", count)
        got = machine["main"](tvm.runtime.tensor(a)).numpy()
        np.testing.assert_array_equal(got, reference(a, weight) * np.float32(0.5))


@pytest.mark.parametrize("cpu", [c for c in RUNNABLE if c in ("haswell", "cascadelake", "sapphirerapids")])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_single_row_meets_constant_columns(cpu, batch):
    target = target_of(cpu)
    func = matmul(1, 64, 96, layout="nt", batch=batch)
    found = decision(func.with_attr("layout_free_buffers", [1]), target)[1]
    assert isinstance(found.plan.stages[-1], DotPlan) == (cpu != "haswell")
    weight = extreme((*batch, 64, 96), "int8", 1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((*batch, 1, 96), "int8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            columns = relax.const(weight.swapaxes(-1, -2).copy())
            out = builder.emit_output(builder.emit(relax.op.matmul(x, columns, out_dtype="int32")))
        builder.emit_func_output(out)
    machine = relax.VirtualMachine(
        tvm.compile(builder.get(), target, relax_pipeline=dl.pipeline(target)), tvm.cpu()
    )
    a = extreme((*batch, 1, 96), "int8", 2)
    np.testing.assert_array_equal(machine["main"](tvm.runtime.tensor(a)).numpy(), reference(a, weight, "nt"))


@pytest.mark.parametrize(
    ("what", "func"),
    [
        ("accumulates in int64", lambda: matmul(64, 64, 64, out="int64")),
        ("is too short along k", lambda: matmul(64, 64, 3)),
        ("has one row and would be packed on each call", lambda: matmul(1, 64, 64)),
        ("is float32", lambda: matmul(64, 64, 64, "float32", "float32", "float32")),
    ],
)
def test_what_no_kernel_takes_keeps_its_plans(what, func):
    assert not uses_dot(func(), target_of("cascadelake")), f"a product that {what}"


def test_a_target_without_kernels_keeps_its_plans():
    assert not uses_dot(matmul(64, 64, 64), target_of("x86-64-v2"))
    arm = tvm.target.Target({"kind": "llvm", "mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"})
    assert not uses_dot(matmul(64, 64, 64), arm)


INSTRUCTIONS = {
    ("haswell", "int8", "int8"): ("vpmaddwd", "ymm"),
    ("alderlake", "int8", "int8"): ("vpdpbusd", "ymm"),
    ("alderlake", "int8", "uint8"): ("vpdpbusd", "ymm"),
    ("arrowlake", "int8", "int8"): ("vpdpbssd", "ymm"),
    ("arrowlake", "uint8", "uint8"): ("vpdpbuud", "ymm"),
    ("skylake-avx512", "int8", "int8"): ("vpmaddwd", "zmm"),
    ("cascadelake", "int8", "int8"): ("vpdpbusd", "zmm"),
    ("icelake-server", "uint8", "int8"): ("vpdpbusd", "zmm"),
    ("haswell", "float16", "float16"): ("vfmadd", "ymm"),
    ("haswell", "bfloat16", "bfloat16"): ("vfmadd", "ymm"),
    ("sapphirerapids", "float16", "float16"): ("vfmadd", "zmm"),
}


@pytest.mark.parametrize("case", INSTRUCTIONS, ids="-".join)
def test_inner_loop(case):
    """Accumulators stay in registers of the full width: nothing but loads and dot products."""
    cpu, left, right = case
    instruction, register = INSTRUCTIONS[case]
    target = target_of(cpu)
    func = matmul(240, 256, 256, left, right, "int32" if left in BYTES else "float32")
    plan = decision(func, target)[1].plan.stages[-1]
    text = tvm.compile(tvm.IRModule({"main": scheduled(func, target)}), target).mod.inspect_source("asm")
    dots = re.compile(rf"\b{instruction}\w*\b.*%{register}")
    body = max(loops(text), key=lambda lines: sum(bool(dots.search(line)) for line in lines))
    tile = plan.rows * plan.vectors + plan.kernel.flip * plan.vectors
    assert sum(bool(dots.search(line)) for line in body) in (tile, 2 * tile)
    assert not any("%rsp" in line and "mm" in line for line in body), "a spill"
    assert not any("gather" in line or "vpinsr" in line for line in body)


TILE_PRODUCTS = {
    ("sapphirerapids", "int8", "int8"): "tdpbssd",
    ("sapphirerapids", "uint8", "int8"): "tdpbusd",
    ("sapphirerapids", "bfloat16", "bfloat16"): "tdpbf16ps",
    ("graniterapids", "float16", "float16"): "tdpfp16ps",
}


@pytest.mark.parametrize("case", TILE_PRODUCTS, ids="-".join)
def test_amx_loop(case):
    """As many loads as products, and the tiles are given back."""
    cpu, left, right = case
    target = target_of(cpu)
    func = matmul(240, 256, 4096, left, right, "int32" if left in BYTES else "float32")
    text = tvm.compile(tvm.IRModule({"main": scheduled(func, target)}), target).mod.inspect_source("asm")
    body = max(loops(text), key=lambda lines: sum(TILE_PRODUCTS[case] in line for line in lines))
    products = sum(TILE_PRODUCTS[case] in line for line in body)
    assert products and products == sum("tileloadd" in line for line in body)
    assert not any("tilestored" in line or "mm" in line.replace("tmm", "") for line in body)
    assert text.count("ldtilecfg") and text.count("tilerelease")


def test_amx_is_left_where_it_does_not_pay_or_was_not_tried():
    def instruction(m, k, **more):
        target = tvm.target.Target({"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2, **more})
        func = matmul(m, 64, k).with_attr("layout_free_buffers", [1])
        return decision(func, target)[1].plan.stages[-1].instruction

    linux = {"mtriple": "x86_64-linux-gnu"}
    assert instruction(64, 256, **linux) == "tdpbssd"
    assert instruction(64, 16, **linux) == "vpdpbusd"
    assert instruction(2, 256, **linux) == "vpdpbusd"
    assert instruction(64, 256, mtriple="x86_64-pc-windows-msvc") == "vpdpbusd"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_relax_products_of_half_precision_sum_in_float32(dtype):
    """4096 quarters: in bfloat16 their sum stops at 64, in float16 at 512."""
    builder, count = relax.BlockBuilder(), 4096
    x = relax.Var("x", relax.TensorType((2, count), dtype))
    image = relax.Var("image", relax.TensorType((1, count, 3, 3), dtype))
    with builder.function("main", [x, image]):
        with builder.dataflow():
            ones = relax.const(np.ones((count, 5), dtype))
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, ones)))
            kernel = relax.const(np.ones((2, count, 1, 1), dtype))
            z = builder.emit(relax.op.nn.conv2d(image, kernel))
            out = builder.emit_output(relax.Tuple([y, z]))
        builder.emit_func_output(out)
    target = dl.host_target()
    built = tvm.compile(builder.get(), target, relax_pipeline=dl.pipeline(target))
    machine = relax.VirtualMachine(built, tvm.cpu())
    args = [np.full(s, 1 / 4, dtype) for s in ((2, count), (1, count, 3, 3))]
    results = machine["main"](*(tvm.runtime.tensor(a) for a in args))
    for result, shape in zip(results, ((2, 5), (1, 2, 3, 3))):
        got = result.numpy()
        assert str(got.dtype) == dtype
        np.testing.assert_array_equal(got.astype("float32"), np.full(shape, count / 4, "float32"))


def test_the_best_instruction_of_a_machine():
    wanted = {
        "haswell": "vpmaddwd",
        "alderlake": "vpdpbusd",
        "arrowlake": "vpdpbssd",
        "cascadelake": "vpdpbusd",
        "znver3": "vpmaddwd",
        "znver4": "vpdpbusd",
        "sapphirerapids": "tdpbssd",
    }
    for cpu, instruction in wanted.items():
        machine = CpuMachine.from_target(target_of(cpu))
        assert {k.instruction for k in kernels_for(machine, "int8", "int8", "int32", 256)} == {instruction}
    narrow = tvm.target.Target(
        {"kind": "llvm", "mcpu": "cascadelake", "mtriple": "x86_64-linux-gnu", "vector-width": 256}
    )
    machine = CpuMachine.from_target(narrow)
    widest = {k.micro.lanes * dtype_bits("int32") for k in kernels_for(machine, "int8", "int8", "int32", 256)}
    assert widest == {256}


def test_an_intrinsic_is_registered_once():
    shape = DotShape(KERNELS[0], 3, 1, 5, True, "int32")
    assert dot_intrinsic(shape) == dot_intrinsic(shape)
    other = DotShape(KERNELS[0], 3, 1, 6, True, "int32")
    assert dot_intrinsic(other) != dot_intrinsic(shape)
