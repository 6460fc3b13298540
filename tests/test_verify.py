# SPDX-License-Identifier: Apache-2.0
"""verify: what it must find, what it must not, and how it draws inputs."""

from __future__ import annotations

import importlib
import json

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import tirx as T

from autotir_dlight.element_ranges import relax_spans
from autotir_dlight.host import HostCpu
from autotir_dlight.random_inputs import environments, random_args
from autotir_dlight.verify import compare, run_primfunc, verify

TARGET = tvm.target.Target({"kind": "llvm"})


def unary(dtype, step, extent=37, written=37):
    """B[i] = A[i] + step for the first ``written`` of ``extent`` elements."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((extent,), dtype), B: T.Buffer((extent,), dtype)):
        for i in range(written):
            with T.sblock("add"):
                vi = T.axis.spatial(extent, i)
                B[vi] = A[vi] + T.Cast(dtype, step)

    return func


def negation(extent=37, written=37):
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((extent,), "bool"), B: T.Buffer((extent,), "bool")):
        for i in range(written):
            with T.sblock("not"):
                vi = T.axis.spatial(extent, i)
                B[vi] = not A[vi]

    return func


def doubled(factor):
    """B = factor * A over a symbolic number of rows."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 3), "float32")
        B = T.match_buffer(b, (n * 2, 3), "float32")
        for i, j in T.grid(n * 2, 3):
            with T.sblock("scale"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi // 2, vj] * T.float32(factor)

    return func


@T.prim_func(s_tir=True)
def matmul(A: T.Buffer((5, 8), "float32"), B: T.Buffer((8, 6), "float32"), C: T.Buffer((5, 6), "float32")):
    for i, j, k in T.grid(5, 6, 8):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func(s_tir=True)
def accumulate(A: T.Buffer((9,), "float32"), C: T.Buffer((9,), "float32")):
    for i in range(9):
        with T.sblock("add"):
            vi = T.axis.spatial(9, i)
            C[vi] = C[vi] + A[vi]


@T.prim_func(s_tir=True)
def gather(A: T.Buffer((11, 4), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64, 4), "float32")):
    for i, j in T.grid(64, 4):
        with T.sblock("gather"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[idx[vi], vj]


@T.prim_func(s_tir=True)
def flat_gather(
    A: T.Buffer((44,), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64, 4), "float32")
):
    for i, j in T.grid(64, 4):
        with T.sblock("gather"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[idx[vi] * 4 + vj]


@T.prim_func(s_tir=True)
def gather_cast(A: T.Buffer((11,), "float32"), idx: T.Buffer((64,), "int64"), B: T.Buffer((64,), "float32")):
    narrow = T.sblock_alloc_buffer((64,), "int32")
    for i in range(64):
        with T.sblock("cast"):
            vi = T.axis.spatial(64, i)
            narrow[vi] = T.Cast("int32", idx[vi])
    for i in range(64):
        with T.sblock("gather"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[T.if_then_else(narrow[vi] < 0, narrow[vi] + 11, narrow[vi])]


@T.prim_func(s_tir=True)
def scatter(A: T.Buffer((64,), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((11,), "float32")):
    for i in range(64):
        with T.sblock("scatter"):
            vi = T.axis.opaque(64, i)
            T.reads(A[vi], idx[vi])
            T.writes(B[0:11])
            B[idx[vi]] = A[vi]


@T.prim_func(s_tir=True)
def divide(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
    for i in range(64):
        with T.sblock("div"):
            vi = T.axis.spatial(64, i)
            C[vi] = T.truncdiv(A[vi], B[vi])


@T.prim_func(s_tir=True)
def gpu_only(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        with T.sblock("copy"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi]


def the_entry(report):
    assert len(report.entries) == 1, str(report)
    return report.entries[0]


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "int8", "uint8", "int32", "int64"]
)
def test_equal_functions_agree_and_a_wrong_one_is_found(dtype):
    assert verify(unary(dtype, 1), unary(dtype, 1), TARGET)
    entry = the_entry(verify(unary(dtype, 1), unary(dtype, 2), TARGET))
    assert entry.mismatches > 30
    assert not entry.ok
    assert not entry.error


def test_one_wrong_element_is_counted_and_located():
    @T.prim_func(s_tir=True)
    def wrong(A: T.Buffer((37,), "float32"), B: T.Buffer((37,), "float32")):
        for i in range(37):
            with T.sblock("add"):
                vi = T.axis.spatial(37, i)
                B[vi] = A[vi] + T.if_then_else(vi == 29, T.float32(1.5), T.float32(1))

    entry = the_entry(verify(unary("float32", 1), wrong, TARGET))
    assert (entry.mismatches, entry.first) == (1, (29,))
    assert entry.max_error == pytest.approx(0.5, rel=1e-5)
    assert entry.tolerance < 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32"])
def test_an_unwritten_tail_is_found(dtype):
    entry = the_entry(verify(unary(dtype, 1), unary(dtype, 1, written=32), TARGET))
    assert (entry.mismatches, entry.first) == (5, (32,))


def test_an_unwritten_boolean_tail_is_found_whole():
    assert verify(negation(), negation(), TARGET)
    assert the_entry(verify(negation(), negation(written=32), TARGET)).mismatches == 5


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_outputs_without_dimensions_are_compared(dtype):
    def copy(write):
        @T.prim_func(s_tir=True)
        def func(A: T.Buffer((), dtype), B: T.Buffer((), dtype)):
            with T.sblock("copy"):
                T.reads(A[()])
                T.writes(B[()])
                if write:
                    B[()] = A[()]

        return func

    report = verify(copy(True), copy(True), TARGET)
    assert report, str(report)
    assert the_entry(verify(copy(True), copy(False), TARGET)).first == ()


def test_elements_that_neither_writes_are_no_difference():
    assert verify(unary("float32", 1, written=32), unary("float32", 1, written=32), TARGET)


def test_a_function_that_adds_to_its_output_agrees_with_itself():
    assert verify(accumulate, accumulate, TARGET)
    entry = the_entry(verify(accumulate, unary("float32", 0, extent=9, written=9), TARGET))
    assert entry.mismatches > 5


def test_a_reduction_that_forgets_to_initialise_is_found():
    sch = tvm.s_tir.Schedule(matmul)
    block = sch.get_sblock("matmul")
    loops = sch.get_loops(block)
    sch.decompose_reduction(block, loops[2])
    assert verify(matmul, sch.mod["main"], TARGET)

    @T.prim_func(s_tir=True)
    def bare(A: T.Buffer((5, 8), "float32"), B: T.Buffer((8, 6), "float32"), C: T.Buffer((5, 6), "float32")):
        for i, j, k in T.grid(5, 6, 8):
            with T.sblock("matmul"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    assert the_entry(verify(matmul, bare, TARGET)).mismatches == 30


@pytest.mark.parametrize(
    "func",
    [gather, flat_gather, gather_cast, scatter],
    ids=["gather", "flat", "by way of a buffer", "scatter"],
)
def test_indices_are_drawn_over_the_whole_indexed_range(func):
    args = random_args(func, rng=np.random.default_rng(3))
    assert (args[1].min(), args[1].max()) == (0, 10)
    assert verify(func, func, TARGET)


def test_a_gather_from_the_wrong_row_is_found():
    @T.prim_func(s_tir=True)
    def wrong(
        A: T.Buffer((11, 4), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64, 4), "float32")
    ):
        for i, j in T.grid(64, 4):
            with T.sblock("gather"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[10 - idx[vi], vj]

    assert the_entry(verify(gather, wrong, TARGET)).mismatches > 100


def renamed_gather(written):
    """A gather whose block only knows its buffers by other names."""

    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((11,), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")):
        for i in range(written):
            with T.sblock("gather"):
                vi = T.axis.spatial(64, i)
                T.reads(A[0:11], idx[vi])
                T.writes(B[vi])
                x = T.match_buffer(idx[vi : vi + 1], (1,), "int32", offset_factor=1)
                y = T.match_buffer(B[vi : vi + 1], (1,), "float32", offset_factor=1)
                y[0] = A[x[0]]

    return func


def test_buffers_are_known_by_their_other_names():
    args = random_args(renamed_gather(64), rng=np.random.default_rng(3))
    assert (args[1].min(), args[1].max()) == (0, 10)
    assert verify(renamed_gather(64), renamed_gather(64), TARGET)
    assert the_entry(verify(renamed_gather(64), renamed_gather(60), TARGET)).mismatches == 4


@T.prim_func(s_tir=True)
def gather_by_let(
    A: T.Buffer((11,), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")
):
    for i in range(64):
        with T.sblock("gather"):
            vi = T.axis.spatial(64, i)
            j: T.let = idx[vi]
            B[vi] = A[j]


@T.prim_func(s_tir=True)
def gather_from_one(
    A: T.Buffer((11,), "float32"), idx: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")
):
    for i in range(64):
        with T.sblock("gather"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[idx[vi] - 1]


@T.prim_func(s_tir=True)
def narrow_gather(
    A: T.Buffer((999,), "float32"), idx: T.Buffer((4096,), "uint8"), B: T.Buffer((4096,), "float32")
):
    for i in range(4096):
        with T.sblock("gather"):
            vi = T.axis.spatial(4096, i)
            B[vi] = A[T.Cast("int32", idx[vi])]


@T.prim_func(s_tir=True)
def nested_gather(
    A: T.Buffer((2,), "float32"),
    idx: T.Buffer((11,), "int32"),
    far: T.Buffer((64,), "int32"),
    B: T.Buffer((64,), "float32"),
):
    for i in range(64):
        with T.sblock("gather"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[idx[far[vi]]]


@T.prim_func(s_tir=True)
def ragged_sum(
    A: T.Buffer((64, 8), "float32"), length: T.Buffer((64,), "int32"), B: T.Buffer((64,), "float32")
):
    for i in range(64):
        for j in range(length[i]):
            with T.sblock("sum"):
                vi = T.axis.spatial(64, i)
                vj = T.axis.reduce(8, j)
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vj]


@pytest.mark.parametrize(
    ("func", "spans"),
    [
        (gather_by_let, {1: (0, 10)}),
        (gather_from_one, {1: (1, 11)}),
        (narrow_gather, {1: (0, 255)}),
        (nested_gather, {1: (0, 1), 2: (0, 10)}),
        (ragged_sum, {1: (0, 8)}),
    ],
    ids=["let", "from one", "8 bits", "nested", "loop extent"],
)
def test_elements_reach_an_index_in_many_ways(func, spans):
    args = random_args(func, rng=np.random.default_rng(3))
    assert {k: (args[k].min(), args[k].max()) for k in spans} == spans
    assert verify(func, func, TARGET)


def test_a_scalar_that_is_an_index_is_in_range():
    @T.prim_func(s_tir=True)
    def pick(A: T.Buffer((2,), "float32"), k: T.int32, B: T.Buffer((1,), "float32")):
        for i in range(1):
            with T.sblock("pick"):
                vi = T.axis.spatial(1, i)
                B[vi] = A[k]

    drawn = {random_args(pick, rng=np.random.default_rng(seed))[1] for seed in range(20)}
    assert drawn == {0, 1}


def binary(compute):
    @T.prim_func(s_tir=True)
    def func(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
        for i in range(64):
            with T.sblock("binary"):
                vi = T.axis.spatial(64, i)
                C[vi] = compute(A[vi], B[vi])

    return func


@pytest.mark.parametrize(
    ("compute", "low", "high"),
    [
        (lambda a, b: T.truncmod(a, b), 1, 6),
        (lambda a, b: T.floordiv(a, b - 3), 4, 9),
        (lambda a, b: T.floordiv(a, b * b + 1), 0, 2),
        (lambda a, b: T.shift_left(a, b), 1, 6),
        (lambda a, b: T.shift_right(a, b), 1, 6),
    ],
    ids=["mod", "offset", "square", "left", "right"],
)
def test_no_divisor_is_zero_and_no_shift_is_wide(compute, low, high):
    func = binary(compute)
    args = random_args(func, rng=np.random.default_rng(0))
    assert (args[1].min(), args[1].max()) == (low, high)
    assert args[0].min() < 0
    assert verify(func, func, TARGET)


def test_divisors_are_positive():
    args = random_args(divide, rng=np.random.default_rng(0))
    assert args[1].min() >= 1
    assert args[0].min() < 0
    assert verify(divide, divide, TARGET)


def test_eight_bit_integers_use_their_whole_range():
    args = random_args(unary("int8", 1, extent=4096, written=4096))
    assert (args[0].min(), args[0].max()) == (-128, 127)


def test_open_extents_are_tried_at_several_values():
    report = verify(doubled(2), doubled(2), TARGET)
    assert report, str(report)
    assert [entry.shapes for entry in report.entries] == [{"n": 1}, {"n": 7}, {"n": 33}]
    assert not verify(doubled(2), doubled(2.001), TARGET)


@pytest.mark.parametrize("n", [0, 5])
def test_a_given_extent_is_used(n):
    report = verify(doubled(2), doubled(2), TARGET, shapes={"n": n})
    assert report, str(report)
    assert the_entry(report).shapes == {"n": n}
    assert random_args(doubled(2), {"n": n})[1].shape == (2 * n, 3)


def test_two_open_extents_differ():
    @T.prim_func(s_tir=True)
    def transpose(a: T.handle, b: T.handle):
        n, m = T.int64(), T.int64()
        A = T.match_buffer(a, (n, m), "float32")
        B = T.match_buffer(b, (m, n), "float32")
        for i, j in T.grid(m, n):
            with T.sblock("transpose"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vj, vi]

    shapes = [entry.shapes for entry in verify(transpose, transpose, TARGET).entries]
    assert shapes == [{"n": 1, "m": 1}, {"n": 7, "m": 8}, {"n": 33, "m": 34}]


def test_scalar_parameters_get_values():
    @T.prim_func(s_tir=True)
    def scale(A: T.Buffer((4,), "float32"), alpha: T.float32, k: T.int32, B: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("scale"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * alpha + T.Cast("float32", k)

    assert verify(scale, scale, TARGET)
    assert not isinstance(random_args(scale)[1], np.ndarray)


def test_a_failure_to_build_is_an_entry_and_spares_the_others():
    before = tvm.IRModule({"good": unary("float32", 1), "bad": unary("float32", 1, extent=4, written=4)})
    after = tvm.IRModule({"good": unary("float32", 1), "bad": gpu_only})
    report = verify(before, after, TARGET)
    by_name = {entry.function: entry for entry in report.entries}
    assert not report
    assert by_name["good"].ok
    assert by_name["bad"].error.startswith("after failed: ")


def test_a_function_that_is_missing_is_an_entry():
    before = tvm.IRModule({"f": unary("float32", 1), "g": unary("float32", 1)})
    report = verify(before, tvm.IRModule({"f": unary("float32", 1)}), TARGET)
    assert [entry.function for entry in report.entries if not entry.ok] == ["g"]
    assert "no function named g" in str(report)


def test_an_argument_that_does_not_fit_is_an_entry():
    entry = the_entry(verify(unary("float32", 1), unary("float32", 1, extent=38, written=38), TARGET))
    assert entry.error.startswith("after failed: ")


def test_a_built_side_is_accepted_and_two_are_not():
    built = tvm.compile(unary("float32", 1), target=TARGET)
    assert verify(unary("float32", 1), built, TARGET)
    assert not verify(built, unary("float32", 2), TARGET)
    with pytest.raises(TypeError, match="both programs are built"):
        verify(built, built, TARGET)
    with pytest.raises(TypeError, match="cannot run a str"):
        verify("a", built, TARGET)


def test_bad_extents_are_refused():
    with pytest.raises(ValueError, match="no extent is named m; there are: n"):
        verify(doubled(2), doubled(2), TARGET, shapes={"m": 3})
    with pytest.raises(ValueError, match="cannot be -1"):
        verify(doubled(2), doubled(2), TARGET, shapes={"n": -1})


def test_a_target_that_cannot_run_here_is_refused():
    with pytest.raises(ValueError, match="give an llvm target"):
        verify(matmul, matmul, tvm.target.Target({"kind": "c"}))
    with pytest.raises(ValueError, match="this machine is"):
        verify(matmul, matmul, {"kind": "llvm", "mtriple": "riscv64-linux-gnu"})


def test_code_for_features_that_this_cpu_lacks_is_refused(monkeypatch):
    module = importlib.import_module("autotir_dlight.verify")
    monkeypatch.setattr(module, "detect_cpu", lambda: HostCpu("x86_64", frozenset({"sse", "sse2"})))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mattr": ["+avx"]}
    with pytest.raises(ValueError, match="this CPU lacks avx, sse3"):
        verify(matmul, matmul, target)


def test_the_same_seed_gives_the_same_report():
    one, two = (verify(matmul, unary("float32", 1), TARGET, seed=4).to_json() for _ in range(2))
    assert one == two
    draws = [random_args(matmul, rng=np.random.default_rng(seed))[0] for seed in (0, 0, 1)]
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_the_report_as_text_and_json():
    report = verify(doubled(2), doubled(3), TARGET, shapes={"n": 2})
    document = json.loads(report.to_json())
    assert document["ok"] is False
    assert document["entries"][0]["mismatches"] == 12
    assert document["entries"][0]["first"] == [0, 0]
    assert "main(n=2) B: 12 elements differ, first at [0, 0]" in str(report)


def test_rtol_overrides_the_tolerance():
    assert not verify(doubled(2), doubled(2.001), TARGET, shapes={"n": 2})
    assert verify(doubled(2), doubled(2.001), TARGET, shapes={"n": 2}, rtol=1e-2)


def test_run_primfunc_returns_buffers_and_leaves_arguments_alone():
    a = np.arange(40, dtype="float32").reshape(5, 8)
    b = np.ones((8, 6), "float32")
    c = np.zeros((5, 6), "float32")
    for func in (matmul, tvm.IRModule({"main": matmul}), tvm.compile(matmul, target=TARGET)):
        result = run_primfunc(func, [a, b, c], TARGET)
        np.testing.assert_allclose(result[2], a @ b)
        assert not c.any()


@pytest.mark.parametrize(
    ("want", "got", "mismatches", "max_error"),
    [
        ([np.nan, np.inf, 1], [np.nan, np.inf, 1], 0, 0.0),
        ([np.nan, 0, 1], [0, 0, 1], 1, np.inf),
        ([0, 0, 1], [0, np.inf, 1], 1, np.inf),
        ([np.inf, 0, 1], [-np.inf, 0, 1], 1, np.inf),
        ([0, 0, 100], [5e-4, 0, 100], 0, 5e-4),
        ([0, 0, 0], [0, 1e-6, 0], 0, 1e-6),
    ],
)
def test_compare(want, got, mismatches, max_error):
    entry = compare("f", "o", {}, np.array(want, "float32"), np.array(got, "float32"), 1e-5)
    assert entry.mismatches == mismatches
    assert entry.max_error == pytest.approx(max_error, rel=1e-5)


def test_compare_wants_the_same_shape_and_reports_infinity_as_json():
    entry = compare("f", "o", {}, np.zeros(3, "float32"), np.zeros((1, 3), "float32"), 1e-5)
    assert entry.error == "the output is float32[1, 3] and should be float32[3]"
    assert json.loads(verify(matmul, gpu_only, TARGET).to_json())["entries"][0]["ok"] is False


def relax_module(scale=1.0, index_dtype="int64"):
    """relu(x @ w) * scale and rows of w picked by an integer input, over a symbolic batch."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 16), "float32"))
    w = relax.Var("w", relax.TensorType((16, 4), "float32"))
    i = relax.Var("i", relax.TensorType((64,), index_dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, i]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.matmul(x, w)))
            y = builder.emit(relax.op.multiply(y, relax.const(scale, "float32")))
            picked = builder.emit(relax.op.take(w, relax.op.astype(i, "int32"), axis=0))
            out = builder.emit_output((y, picked))
        builder.emit_func_output(out)
    return builder.get()


def test_relax_modules_are_run_whole():
    report = verify(relax_module(), relax.transform.LegalizeOps()(relax_module()), TARGET)
    assert report, str(report)
    assert [entry.shapes["n"] for entry in report.entries] == [1, 1, 7, 7, 33, 33]
    wrong = verify(relax_module(), relax_module(1.01), TARGET, shapes={"n": 5})
    assert [entry.output for entry in wrong.entries if not entry.ok] == ["output 0"]


def test_relax_index_inputs_are_in_range():
    module = relax_module()
    env = environments(module["main"], {"n": 3})[0]
    spans = relax_spans(module, "main", env)
    assert {param.name: span for param, span in spans.items()} == {"i": (0, 15)}


def relax_function(build, *types, name="main", builder=None):
    builder = builder or relax.BlockBuilder()
    params = [relax.Var(f"p{k}", ty) for k, ty in enumerate(types)]
    with builder.function(name, params, private=name != "main"):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(build(builder, *params)))
        builder.emit_func_output(result)
    return builder


def tensor(shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


def called(builder, w, i):
    """``take`` in a Relax function of its own, whose extents go by other names."""
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    relax_function(
        lambda _, x, j: relax.op.take(x, j, axis=0),
        tensor((m, 4)),
        tensor((n,), "int64"),
        name="inner",
        builder=builder,
    )
    return relax.Call(builder.get().get_global_var("inner"), [w, i])


def divided(builder, a, b):
    shifted = builder.emit(relax.op.add(b, relax.const(-3, "int32")))
    return relax.op.floor_divide(a, shifted)


@pytest.mark.parametrize(
    ("build", "types", "spans"),
    [
        (
            lambda _, x, i, j: relax.op.index_tensor(x, relax.Tuple([i, j])),
            [tensor((5, 9)), tensor((40,), "int64"), tensor((40,), "int64")],
            {"p1": (0, 4), "p2": (0, 8)},
        ),
        (
            lambda b, x, i: relax.op.take(x, b.emit(relax.TupleGetItem(i, 1)), axis=1),
            [tensor((5, 9)), relax.TupleType([tensor((3,), "int32"), tensor((40,), "int64")])],
            {"p1": (0, 8)},
        ),
        (called, [tensor((7, 4)), tensor((40,), "int64")], {"p1": (0, 6)}),
        (divided, [tensor((40,), "int32"), tensor((40,), "int32")], {"p1": (4, 9)}),
    ],
    ids=["tuple", "item of a tuple", "call", "divisor"],
)
def test_relax_inputs_are_traced_to_where_they_matter(build, types, spans):
    module = relax_function(build, *types).get()
    found = relax_spans(module, "main", {})
    assert {param.name: span for param, span in found.items()} == spans
    assert verify(module, module, TARGET)


def test_relax_extents_may_be_parameters_themselves():
    n = tvm.tirx.Var("n", "int64")
    x, shape = relax.Var("x", tensor((n, 4))), relax.Var("shape", relax.ShapeType([n]))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, n, shape]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    report = verify(builder.get(), builder.get(), TARGET)
    assert report, str(report)
    assert [entry.shapes["n"] for entry in report.entries] == [1, 7, 33]


def test_inputs_that_cannot_be_made_are_an_entry():
    module = relax_function(lambda _, x: relax.op.exp(x), relax.TensorType(dtype="float32", ndim=2)).get()
    entry = the_entry(verify(module, module, TARGET))
    assert entry.error.startswith("inputs cannot be made: verify cannot make an argument of type ")


def test_a_relax_module_may_be_built():
    built = tvm.compile(relax_module(), target=TARGET)
    assert verify(relax_module(), built, TARGET, shapes={"n": 4})
    assert not verify(built, relax_module(2.0), TARGET, shapes={"n": 4})
