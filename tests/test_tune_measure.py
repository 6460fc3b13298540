# SPDX-License-Identifier: Apache-2.0
"""Building, running and checking candidates on this machine, and what happens when any of it fails."""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tuning_cases import softmax
from tvm import te, topi

import autotir_dlight as dl
from autotir_dlight.tune import build as build_module
from autotir_dlight.tune.build import compile_candidate, load_calls, split_packing
from autotir_dlight.tune.builder import ExecutorBuilder
from autotir_dlight.tune.case import Case, check, evaluate, make_case
from autotir_dlight.tune.measure import MeasureError, Measurer, _told, local_runner, rpc_runner
from autotir_dlight.tune.meta_schedule import BuilderInput, EvaluatorConfig, RunnerInput, TensorInfo
from autotir_dlight.tune.space import Point, Space
from autotir_dlight.tune.task import extract_tasks
from autotir_dlight.verify import run_primfunc

pytestmark = pytest.mark.xdist_group("tune")


@pytest.fixture(scope="module")
def runner():
    """One process that runs all candidates of this file."""
    return local_runner(timeout_sec=60)


@pytest.fixture
def measurer(runner):
    with ThreadPoolExecutor(2) as pool:
        builder = ExecutorBuilder(pool)
        with Measurer(builder, runner) as measurer:
            yield measurer
        builder.close()


def product(m=32, n=48, k=16, dtype="float32"):
    m, n, k = (tvm.tirx.IntImm("int64", e) if isinstance(e, int) else e for e in (m, n, k))
    a, b = te.placeholder((m, k), dtype, "a"), te.placeholder((k, n), dtype, "b")
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def lookup(rows=50, columns=8):
    """Rows of a table by index."""
    table = te.placeholder((rows, columns), name="table")
    index = te.placeholder((6,), "int32", name="index")
    return te.create_prim_func([table, index, topi.take(table, index, axis=0)])


def task_of(func, target):
    tasks, _ = extract_tasks(tvm.IRModule({"main": func}), target)
    return tasks[0]


def test_points_are_built_checked_and_timed(measurer, target):
    task = task_of(softmax(), target)
    points = list(task.space.points())[:6]
    for measured in measurer.measure(task, points):
        assert measured.error == ""
        assert 1e-7 < measured.seconds[0] < 1e-1


def test_symbolic_extents_are_timed_at_each_case(measurer, target):
    task = task_of(product(m=tvm.tirx.Var("m", "int64")), target)
    assert task.key.symbolic
    for measured in measurer.measure(task, list(task.space.points())[:4]):
        assert measured.error == ""
        assert len(measured.seconds) == 3


def test_constant_weights_are_packed_before_the_clock_starts(measurer, target):
    task = task_of(product(64, 96, 32).with_attr("layout_free_buffers", [1]), target)
    points = [p for p in task.space.points() if task.space.options[p.plan].plan.title == "packed"][:3]
    functions, calls = split_packing(task.space.build(points[0]).mod["main"])
    assert len(functions) == len(calls) == 2
    assert calls[0].args == (1,)
    assert calls[1].args == (0, 3, 2)
    assert [m.error for m in measurer.measure(task, points)] == [""] * len(points)


def test_in_turns_every_point_is_timed_in_every_round(measurer, target):
    task = task_of(softmax(), target)
    turns = measurer.in_turns(task, list(task.space.points())[:2], rounds=3)
    assert [[m.error for m in rounds] for rounds in turns] == [[""] * 3] * 2


def test_indices_are_in_range_and_results_are_the_functions():
    func = lookup()
    case = make_case(func, {})
    assert case.reference == "the function as written"
    assert set(case.results) == {2}
    assert 0 <= case.args[1].min() <= case.args[1].max() < 50
    np.testing.assert_array_equal(case.results[2], case.args[0][case.args[1]])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_a_case_comes_back_from_its_file(dtype, tmp_path):
    x = te.placeholder((5, 3), dtype, name="x")
    func = te.create_prim_func([x, te.compute((5, 3), lambda i, j: x[4 - i, j])])
    case = make_case(func, {})
    case.save(tmp_path / "case.npz")
    back = Case.load(str(tmp_path / "case.npz"))
    assert back.params == case.params
    assert back.args[0].dtype == case.args[0].dtype
    np.testing.assert_array_equal(back.args[0], case.args[0])
    np.testing.assert_array_equal(back.results[1], case.results[1])
    assert back.results[1].tobytes() == case.args[0][::-1].tobytes()


def test_a_very_long_function_is_computed_as_the_rules_schedule_it(monkeypatch):
    monkeypatch.setattr("autotir_dlight.tune.case.PLAIN_ITERATIONS", 0)
    case = make_case(product(), {})
    assert case.reference == "the default schedule"
    plain = run_primfunc(product(), list(case.args))
    np.testing.assert_allclose(case.results[2], plain[2], rtol=1e-5)


class Tensor:
    def __init__(self, array):
        self.array = array

    def numpy(self):
        return self.array


def test_a_wrong_result_is_no_candidate():
    case = make_case(product(), {})
    right = [Tensor(a) for a in (*case.args[:2], case.results[2])]
    check(case, right)
    wrong = case.results[2].copy()
    wrong[3, 4] += 1.0
    with pytest.raises(ValueError, match="wrong result: parameter 2 is off by 1"):
        check(case, [*right[:2], Tensor(wrong)])


def test_a_wrong_candidate_is_refused_by_the_runner(measurer, target, monkeypatch):
    task = task_of(softmax(), target)
    other = te.create_prim_func([x := te.placeholder((64, 200), name="x"), topi.exp(x)])
    space = task.space

    class Wrong:
        def __getattr__(self, name):
            return getattr(space, name)

        def build(self, point):
            return tvm.s_tir.Schedule(other)

    bad = type(task)("bad", Wrong(), task.key, 1, task.extents)
    (measured,) = measurer.measure(bad, [space.default])
    assert measured.seconds == ()
    assert "wrong result" in measured.error


def test_evaluating_times_the_last_call_only(tmp_path, target):
    func = product(64, 96, 32).with_attr("layout_free_buffers", [1])
    task = task_of(func, target)
    make_case(func, {}).save(tmp_path / "case.npz")
    module = tvm.IRModule({"main": task.space.build(task.space.default).mod["main"]})
    path = str(tmp_path / "candidate.so")
    compile_candidate(tvm.ir.save_json(module), str(target), path)
    case, device = Case.load(str(tmp_path / "case.npz")), tvm.cpu()
    args = [tvm.runtime.tensor(a) for a in case.args]
    config = EvaluatorConfig(number=1, repeat=2, min_repeat_ms=0)
    loaded = tvm.runtime.load_module(path)
    costs = evaluate(str(tmp_path / "case.npz"), load_calls(path), loaded, device, config, [args])
    assert len(costs) == 2
    assert min(costs) > 0


def inputs(target, count=1):
    func = softmax().with_attr("global_symbol", "main")
    return [BuilderInput(tvm.IRModule({"main": func}), target)] * count


def test_the_builder_runs_on_any_executor(target):
    class Immediate(Executor):
        count = 0

        def submit(self, fn, *args):
            self.count += 1
            future = Future()
            future.set_result(fn(*args))
            return future

    executor = Immediate()
    builder = ExecutorBuilder(executor)
    results = builder.build(inputs(target, 2))
    assert [r.error_msg for r in results] == [None, None]
    assert executor.count == 2
    assert len({r.artifact_path for r in results}) == 2
    builder.close()
    assert not any(os.path.exists(r.artifact_path) for r in results)  # noqa: PTH110


# Functions of this file cannot be imported where they run: lambdas are sent as they are.
hang = lambda *_: __import__("time").sleep(100)  # noqa: E731
die = lambda *_: __import__("os").abort()  # noqa: E731
fail = lambda *_: int("no number")  # noqa: E731


@pytest.mark.parametrize(
    ("work", "sentence"),
    [(hang, "longer than 1 s"), (die, "died"), (fail, "invalid literal")],
)
def test_a_candidate_that_cannot_be_built_is_one_sentence_in_bounded_time(
    work, sentence, target, monkeypatch
):
    """In processes of the builder's own, and the candidates beside it are built."""
    builder = ExecutorBuilder(timeout_sec=1.0)
    pool = builder._pool()
    pool._timeout = 60  # a process that starts imports TVM first
    assert pool.submit(os.getpid).result(60) != os.getpid()
    pool._timeout = 1.0
    monkeypatch.setattr("autotir_dlight.tune.builder.compile_candidate", work)
    start = time.monotonic()
    (result,) = builder.build(inputs(target))
    assert time.monotonic() - start < 15
    assert result.artifact_path is None
    assert sentence in result.error_msg
    builder.close()


def test_an_executor_that_is_gone_is_one_sentence(target):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    (result,) = ExecutorBuilder(pool).build(inputs(target))
    assert "takes no work" in result.error_msg


def test_an_executor_that_never_answers_does_not_hang_the_builder(target, monkeypatch):
    class Silent(Executor):
        def submit(self, fn, *args):
            return Future()

    monkeypatch.setattr("autotir_dlight.tune.builder.GRACE_SECONDS", 0.0)
    (result,) = ExecutorBuilder(Silent(), timeout_sec=0.2).build(inputs(target))
    assert "longer than" in result.error_msg


def run_with(runner, evaluate_, target, tmp_path):
    path = str(tmp_path / "candidate.so")
    compile_candidate(tvm.ir.save_json(inputs(target)[0].mod), str(target), path)
    runner.f_alloc_argument = lambda device, info, repeat: [[]]
    runner.f_run_evaluator = evaluate_
    (future,) = runner.run([RunnerInput(path, "cpu", [TensorInfo("float32", [1])])])
    return future.result()


def test_a_candidate_that_never_ends_or_kills_its_process_is_one_sentence(target, tmp_path):
    runner = local_runner(timeout_sec=60)
    runner.pool._timeout = 1.0
    start = time.monotonic()
    result = run_with(runner, hang, target, tmp_path)
    assert time.monotonic() - start < 20
    assert _told(str(result.error_msg)) == "running took too long and was ended"
    runner.pool._timeout = 60
    result = run_with(runner, die, target, tmp_path)
    assert _told(str(result.error_msg)) == "the process that ran the candidate died"
    result = run_with(runner, lambda *_: [1.0], target, tmp_path)
    assert [float(s) for s in result.run_secs] == [1.0]


def test_an_exception_of_a_worker_is_told_by_its_last_line(runner, target, tmp_path):
    result = run_with(runner, fail, target, tmp_path)
    assert "invalid literal" in _told(str(result.error_msg))


def test_a_tracker_that_is_gone_or_misspelt_is_one_sentence():
    start = time.monotonic()
    with pytest.raises(MeasureError, match="does not answer"):
        rpc_runner("127.0.0.1:9", "board")
    assert time.monotonic() - start < 30
    with pytest.raises(MeasureError, match="host:port"):
        rpc_runner("localhost", "board")


def test_a_function_without_packing_is_called_as_it_is():
    functions, calls = split_packing(softmax())
    assert list(functions) == [build_module.MAIN]
    assert calls[0].args == (0, 1)
    assert load_calls("/no/such/file") == ()


def convolution():
    x = te.placeholder((1, 14, 14, 16), name="x")
    w = te.placeholder((3, 3, 16, 24), name="w")
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nhwc(x, w, 1, 1, 1))])


def depthwise():
    x = te.placeholder((1, 12, 12, 8), name="x")
    w = te.placeholder((3, 3, 8, 1), name="w")
    return te.create_prim_func([x, w, topi.nn.depthwise_conv2d_nhwc(x, w, 1, 1, 1)])


def prime_product():
    return product(37, 29, 11)


@pytest.mark.parametrize("make", [convolution, depthwise, prime_product])
def test_every_register_tile_computes_the_same(make, target):
    func = make()
    space = Space.of(func, target)
    defaults = [Point(k, option.default) for k, option in enumerate(space.options)]
    after = {f"plan{p.plan}": space.build(p).mod["main"] for p in defaults}
    assert len(after) > 4
    quick = tvm.target.Target({**target.export(), "opt-level": 0})
    report = dl.verify(tvm.IRModule(dict.fromkeys(after, space.func)), tvm.IRModule(after), quick)
    assert report.ok, str(report)
