# SPDX-License-Identifier: Apache-2.0
"""The benchmark of operators: every form says the same, the bounds do what they say, turns and tables."""

import json
import sys
from functools import partial

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir.meta_schedule.testing import te_workload

from autotir_dlight.benchmark import dense_operators, moving_operators, ops, plot, roofline, te_operators
from autotir_dlight.benchmark import operator_contenders as contenders
from autotir_dlight.benchmark.check import target_json
from autotir_dlight.benchmark.compare import compare
from autotir_dlight.benchmark.contenders import Job
from autotir_dlight.benchmark.memory import LINE_BYTES, PAGE_BYTES, aligned
from autotir_dlight.benchmark.names import BOUND, NUMPY, ON_OPERATORS, ONNX_RUNTIME, OURS, PLAIN, TORCH
from autotir_dlight.benchmark.operator_table import operators_table
from autotir_dlight.benchmark.operators import Operator, Tensor, all_operators, can_express, select
from autotir_dlight.benchmark.ops import OperatorResult, OperatorScore, OperatorsResult
from autotir_dlight.errors import ArtifactError, MissingExtraError, UserError, WorkerError
from autotir_dlight.host import host_target

# Of each of TVM's operators a small relative: strides, padding, dilation and groups as they occur.
SMALL = {
    "C1D": (1, 9, 4, 6, 3, 2, 1),
    "C2D": (1, 7, 8, 3, 5, 3, 2, 1),
    "C3D": (1, 4, 5, 6, 3, 4, 3, 2, 1),
    "CAP": (1, 5, 6, 3, 2, 3, 2, 1),
    "DEP": (1, 6, 7, 5, 3, 2, 1),
    "DIL": (1, 9, 8, 3, 4, 3, 1, 1, 2),
    "GMM": (2, 4, 5, 6),
    "GRP": (1, 6, 6, 8, 12, 3, 2, 1, 1, 4),
    "T2D": (1, 3, 4, 5, 6, 4, 2, 1),
    "NRM": (2, 5, 6),
    "SFM": (4, 7),
    "CBR": (1, 6, 5, 3, 4, 3, 2, 1),
    "TBG": (2, 5, 3, 4),
}


def small_te(name) -> Operator:
    function = te_workload.CONFIGS[name][0]
    tir = partial(lambda *sizes: te.create_prim_func(function(*sizes)), *SMALL[name])
    return te_operators._MAKERS[name](name, tir, *SMALL[name])


@pytest.fixture
def small_sizes(monkeypatch):
    """The other operators at sizes that run at once without any schedule."""
    monkeypatch.setattr(moving_operators, "SIDE", 12)
    monkeypatch.setattr(moving_operators, "CUBE", 6)
    monkeypatch.setattr(moving_operators, "POOL", (1, 2, 8, 10))
    monkeypatch.setattr(moving_operators, "PART", (1, 2, 3, 4))
    monkeypatch.setattr(dense_operators, "SQUARE", (8,))
    monkeypatch.setattr(dense_operators, "RAGGED", ((3, 5, 7),))
    monkeypatch.setattr(dense_operators, "GEMV", 9)
    monkeypatch.setattr(dense_operators, "BATCHED", ((3, 4, 5, 6),))
    monkeypatch.setattr(dense_operators, "INTEGER", 32)


def outputs(operator, contender, monkeypatch):
    monkeypatch.setattr(contenders, "all_operators", lambda: {operator.name: operator})
    runs = contenders.ON_OPERATORS[contender]()
    runs.load(Job(contender, threads=2, target=target_json(host_target()), operator=operator.name))
    runs.run()
    return runs.outputs()


def check_forms(operator, monkeypatch):
    """Every form that can be run here says what the unscheduled function says."""
    want = outputs(operator, PLAIN, monkeypatch)
    said = []
    for contender in (OURS, NUMPY, TORCH, ONNX_RUNTIME):
        if contenders.available(contender) and contenders.expressed_by(operator, contender):
            difference = compare(outputs(operator, contender, monkeypatch), want, ["y"])
            assert difference.passed, f"{contender}: {difference}"
            said.append(contender)
    assert ONNX_RUNTIME in said


@pytest.mark.parametrize("name", SMALL)
def test_forms_of_tvms_operators_agree(name, monkeypatch):
    check_forms(small_te(name), monkeypatch)


def test_forms_of_the_other_operators_agree(small_sizes, monkeypatch):
    operators = [*dense_operators.operators(), *moving_operators.operators()]
    assert len({operator.name for operator in operators}) == len(operators)
    for operator in operators:
        check_forms(operator, monkeypatch)


@pytest.mark.parametrize("name", all_operators())
def test_operators_say_what_their_functions_take(name):
    operator = all_operators()[name]
    shapes = [tuple(int(d) for d in parameter.shape) for parameter in operator.tir().params]
    assert shapes == [tensor.shape for tensor in (*operator.inputs, operator.output)]
    assert can_express(operator, "onnx") and operator.onnx_model()
    assert operator.work.flops or operator.name.startswith(("transpose", "concat"))


def test_multiplications_are_counted():
    known = all_operators()
    assert known["gemm-127x513x255"].flops == 2 * 127 * 513 * 255
    assert known["C2D-0"].flops == 2 * 112 * 112 * 64 * 3 * 49
    assert known["GRP-1"].flops == 2 * 56 * 56 * 64 * 16
    assert known["add-4096x4096"].work.read == 2 * known["add-4096x4096"].work.written == 2 * 4 * 4096**2


def test_selection():
    assert [op.name for op in select(["c2d-[01]", "gemm-512", "C2D-0"])] == ["C2D-0", "C2D-1", "gemm-512"]
    assert len(select([])) == len(all_operators())
    with pytest.raises(UserError, match="no operator is named 'gem': bench ops --list"):
        select(["gem"])


@pytest.mark.parametrize(("shape", "boundary"), [((3, 5), LINE_BYTES), ((1024, 1025), PAGE_BYTES)])
def test_arrays_start_at_a_boundary(shape, boundary):
    array = aligned(shape, "float32")
    assert array.ctypes.data % boundary == 0
    assert array.shape == shape and array.flags.c_contiguous and not array.any()


def test_operands_follow_the_seed_and_fill_their_type():
    operator = Operator("o", (Tensor((40, 50), "int8"), Tensor((9, 9))), Tensor((1,)), lambda: None)
    first, again, other = operator.arrays(), operator.arrays(), operator.arrays(seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[1], other[1])
    assert first[0].min() < -120 and first[0].max() > 120


def run_kernel(kernel, x):
    out = np.zeros([int(d) for d in kernel.params[1].shape], "float32")
    tensors = [tvm.runtime.tensor(x), tvm.runtime.tensor(out)]
    tvm.compile(tvm.IRModule({"main": kernel}), target=host_target())["main"](*tensors)
    return tensors[1].numpy()


@pytest.mark.parametrize("streams", roofline.STREAMS)
def test_bounds_move_every_byte(streams):
    threads, lanes, steps = 2, 4, 3
    x = np.arange(threads * lanes * steps * streams, dtype="float32")
    assert np.array_equal(run_kernel(roofline.copy_kernel(threads, lanes, steps, streams), x), x)
    x = np.arange(threads * lanes * steps * roofline.READ_CHAINS, dtype="float32")
    assert run_kernel(roofline.read_kernel(threads, lanes, steps, streams), x).sum() == x.sum()


def test_bound_of_arithmetic_is_multiply_adds_in_registers():
    kernel = roofline.fma_kernel(2, 8, 100)
    x = np.repeat(np.float32([0.5, 1]), 8)
    np.testing.assert_allclose(run_kernel(kernel, x), 2, rtol=1e-6)
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"})
    code = tvm.compile(tvm.IRModule({"main": kernel}), target=target).mod.inspect_source("asm")
    products = [line for line in code.splitlines() if "vfmadd" in line]
    assert len(products) >= roofline.CHAINS
    assert all("ymm" in line and "(" not in line for line in products), "an operand comes from memory"


def test_torch_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setattr(contenders, "installed", lambda module: True)
    monkeypatch.setattr(contenders, "_cxx", lambda: None)
    assert "torch.compile" not in contenders.chosen([])
    with pytest.raises(UserError, match="it needs a C\\+\\+ compiler"):
        contenders.chosen(["torch.compile"])
    monkeypatch.setattr(contenders, "installed", lambda module: False)
    assert contenders.chosen([]) == [OURS, PLAIN, "upstream dlight", NUMPY]
    with pytest.raises(UserError, match="PyTorch is not installed: pip install torch"):
        contenders.chosen([TORCH])
    assert set(contenders.ON_OPERATORS) == {*ON_OPERATORS, BOUND}


class FakeWorker:
    """Gives a fixed output and fixed times; keeps the order of the turns."""

    def __init__(self, name, seconds, log, output=1.0, fails=False):
        self.name, self.seconds, self.log = name, seconds, log
        self.output, self.fails = output, fails

    def run(self, seconds, at_most):
        if self.fails:
            raise WorkerError(f"{self.name} died")
        self.log.append(self.name)
        return [self.seconds]

    def outputs(self):
        return [np.full(3, self.output, "float32")]


class FakeCrew:
    """Contenders that were made before."""

    def __init__(self, workers, facts):
        self.workers, self.facts, self.dropped = workers, facts, []

    def load(self, contender, operator):
        return self.workers[contender], self.facts.get(contender, {"version": "1"})

    def drop(self, contender):
        self.dropped.append(contender)


def fake_row(monkeypatch, *workers):
    monkeypatch.setattr(ops, "PAUSE_SECONDS", 0)
    log = []
    made = {w[0]: FakeWorker(w[0], w[1], log, **(w[2] if len(w) > 2 else {})) for w in workers}
    made[BOUND] = FakeWorker(BOUND, 1e-3, log)
    bound = {"binds": "compute", "scale": 0.5, "peaks": [100.0, 10.0, 20.0]}
    report = {"functions": [{"rule": "cpu.Matmul"}]}
    crew = FakeCrew(made, {BOUND: bound, OURS: {"version": "1", "report": report}})
    names = [name for name in made if name != BOUND]
    row, peaks = ops._bench_operator(crew, all_operators()["gemm-256"], names, 3)
    assert peaks == (100.0, 10.0, 20.0)
    return row, log, crew


def test_a_row(monkeypatch):
    row, log, _ = fake_row(monkeypatch, (OURS, 1e-3), (NUMPY, 2e-3), (TORCH, 3e-3))
    assert log[-3 * 4 :] == [OURS, NUMPY, TORCH, BOUND] * 3
    assert (row.score(NUMPY).ratio, row.score(TORCH).ratio) == (2, 3)
    assert row.best_other.contender == NUMPY
    assert (row.share, row.binds, row.rule) == (0.5, "compute", "cpu.Matmul")
    assert row.rate == pytest.approx(2 * 256**3 / 1e-3 / 1e9)


def test_limits_are_the_best_that_was_seen():
    operator = all_operators()["gemm-256"]
    bound = {"binds": "compute", "scale": 0.5, "peaks": [100.0, 10.0, 20.0]}
    fast = operator.flops / 0.5 / 150e9
    assert ops._peaks(operator, bound, [2 * fast, fast]) == (pytest.approx(150.0), 10.0, 20.0)
    assert ops._peaks(operator, bound | {"binds": "memory"}, [fast]) == (100.0, 10.0, 20.0)
    assert ops._best((1, 5, 3), (4, 2, 6)) == (4, 5, 6)
    assert ops._best(None, (1, 2, 3)) == (1, 2, 3)


def test_a_slow_contender_runs_once(monkeypatch):
    row, log, _ = fake_row(monkeypatch, (OURS, 1.0), (PLAIN, 30.0))
    assert log.count(PLAIN) == 2, "once to be checked, once to be timed"
    assert row.score(PLAIN).ratio == 30


def test_contenders_that_fail_or_differ_are_named_and_left_out(monkeypatch):
    row, _, crew = fake_row(
        monkeypatch, (OURS, 1.0), (NUMPY, 2.0, {"output": 1.5}), (PLAIN, 1.0), (TORCH, 1.0, {"fails": True})
    )
    assert row.failures[TORCH] == "PyTorch died"
    assert "ours disagrees with NumPy" in row.failures[OURS]
    assert [score.contender for score in row.scores] == [NUMPY]
    assert set(crew.dropped) == {TORCH, OURS, PLAIN}


def result() -> OperatorsResult:
    def row(name, ours, other, **changes):
        scores = [OperatorScore(OURS, "1", ours, 1.0, None)]
        scores.append(OperatorScore(TORCH, "2", other, other / ours, None))
        flops = all_operators()[name].flops
        return OperatorResult(name, flops, 10**6, scores, share=0.8, rule="cpu.Matmul", **changes)

    rows = [
        row("gemm-1024", 4e-3, 8e-3, binds="compute"),
        row("int8-s8s8-1024", 1e-3, 5e-4, failures={NUMPY: "NumPy died"}),
        row("transpose-4096x4096", 1e-3, 1e-3),
    ]
    return OperatorsResult(2, "{}", rows, (100.0, 10.0, 20.0))


def test_table_and_notes():
    text = operators_table(result())
    first, second = (line for line in text.splitlines() if line.startswith(("| gemm", "| int8")))
    cells = [cell.strip() for cell in first.strip("|").split("|")]
    assert cells == [
        *("gemm-1024", "4000", "536.9 GFLOP/s", "80%", "PyTorch", "8000", "2.00×", "2.00×", "cpu.Matmul")
    ]
    assert "1.0 GB/s" in second and "500.0" in second and "0.50×" in second
    assert "int8-s8s8-1024: 4.00 times as fast as our gemm-1024 in float32" in text
    assert "int8-s8s8-1024: NumPy died" in text
    assert "geometric mean of 3: 1.00×" in text
    assert "100 GFLOP/s of float32 multiply-adds, 10.0 GB/s of a copy" in text


def test_result_as_json():
    plain = json.loads(json.dumps(result().to_dict()))
    assert plain["peaks"] == {"gflops": 100.0, "copy_gbs": 10.0, "read_gbs": 20.0}
    assert plain["operators"][0]["best"] == TORCH
    assert plain["geometric_mean"] == pytest.approx(1.0)


def test_picture(tmp_path):
    pytest.importorskip("matplotlib")
    plot.draw(result(), str(tmp_path / "roofline.svg"))
    drawn = (tmp_path / "roofline.svg").read_text()
    assert drawn.startswith("<?xml") and "gemm-1024" in drawn and "transpose" not in drawn


def test_picture_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(ArtifactError, match=r"it must end in \.png, \.svg, \.pdf"):
        plot.check("roofline.txt")
    with pytest.raises(ArtifactError, match="which is not a directory"):
        plot.check(str(tmp_path / "none" / "r.png"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'autotir-dlight\[bench\]'"):
        plot.check(str(tmp_path / "r.png"))


@pytest.mark.slow
def test_processes(tmp_path):
    found = ops.bench_operators(select(["gemm-256"]), [OURS, NUMPY], 2, target_json(host_target()), turns=1)
    (row,) = found.rows
    assert not row.failures and row.score(NUMPY).ratio > 0
    assert row.score(OURS).difference.passed
    assert all(peak > 0 for peak in found.peaks) and row.share > 0
