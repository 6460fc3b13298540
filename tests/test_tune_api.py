# SPDX-License-Identifier: Apache-2.0
"""Tuning as it is used: the pass, the three functions, the command line, and a process that comes after."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from test_html import Page
from tuning_cases import dynamic_product, softmax
from tvm import relax, te, topi

import autotir_dlight as dl
from autotir_dlight.artifact import CompiledModel
from autotir_dlight.cli import main
from autotir_dlight.frontend import load_onnx
from autotir_dlight.tune.builder import ExecutorBuilder
from autotir_dlight.tune.measure import local_runner
from autotir_dlight.tune.records import Database
from autotir_dlight.tune.summary import Summary
from autotir_dlight.tune.tuner import Roof
from autotir_dlight.verify import run_primfunc

pytestmark = pytest.mark.xdist_group("tune")


@pytest.fixture(autouse=True)
def no_roof(monkeypatch):
    """The machine's limits take seconds to measure, and a busy machine would end the searches early."""
    monkeypatch.setattr(Roof, "seconds", lambda self, task, threads: 0.0)


@pytest.fixture(scope="module")
def runner():
    return local_runner(timeout_sec=60)


@pytest.fixture
def quick(runner):
    """Options that make tuning quick: one runner for all tests, candidates built in this process."""
    with ThreadPoolExecutor(2) as pool:
        builder = ExecutorBuilder(pool)
        yield {"runner": runner, "builder": builder, "model": False}
        builder.close()


def model():
    x = relax.Var("x", relax.TensorType([16, 64], "float32"))
    w = relax.const(np.random.default_rng(0).standard_normal((64, 200)).astype("float32"))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            y = block.emit(relax.op.matmul(x, w))
            out = block.emit_output(block.emit(relax.op.nn.softmax(y)))
        block.emit_func_output(out)
    return block.finalize()


def test_tensors(target, quick, tmp_path):
    x = te.placeholder((64, 200), name="x")
    result = dl.tune.tune_te([x, topi.nn.softmax(x)], target, tmp_path, trials=6, **quick)
    assert result.trials == 6
    assert [s.task.calls for s in result.states] == [1]
    kinds = [record.kind for record in Database(tmp_path).records()]
    assert kinds[:2] == ["trial", "best"]
    assert kinds.count("trial") == 6


def test_a_symbolic_product_is_one_function_for_every_extent(target, quick, tmp_path):
    func = dynamic_product()
    result = dl.tune.tune_tir(func, target, tmp_path, trials=8, **quick)
    state = result.states[0]
    assert [case["m"] for case in state.task.extents] == [1, 16, 128]
    assert len(state.default) == 3
    report = dl.Report()
    with target:
        tuned = dl.ApplyDefaultSchedule(*dl.rules(target), database=tmp_path, report=report)(
            tvm.IRModule({"main": func})
        )
    assert report["main"].note == "tuned"
    compiled = tvm.compile(tuned, target)
    rng = np.random.default_rng(0)
    b = rng.standard_normal((32, 48)).astype("float32")
    for m in (1, 2, 7, 16, 33, 128, 512):
        a = rng.standard_normal((m, 32)).astype("float32")
        out = run_primfunc(compiled, [a, b, np.zeros((m, 48), "float32")])[2]
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_a_model_with_its_weights(target, quick, tmp_path):
    result = dl.tune.tune_relax(model(), None, target, tmp_path, trials=12, **quick)
    assert {s.task.calls for s in result.states} == {1}
    assert len(result.states) + len(result.skipped) == 2
    report = dl.Report()
    x = np.random.default_rng(1).standard_normal((16, 64)).astype("float32")
    outputs = []
    for folder in (None, tmp_path):
        pipeline = dl.pipeline(target, database=folder, report=report)
        machine = relax.VirtualMachine(tvm.compile(model(), target, relax_pipeline=pipeline), tvm.cpu())
        outputs.append(machine["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-7)
    assert "tuned" in {entry.note for entry in report}


def test_the_pass_leaves_the_module_and_what_follows_reads_the_database(target, quick, tmp_path):
    mod = tvm.IRModule({"f": softmax()})
    tuning = dl.tune.TuneSchedules(work_dir=tmp_path, trials=5, **quick)
    report = dl.Report()
    with target:
        assert tvm_ffi.structural_equal(tuning(mod), mod)
        dl.ApplyDefaultSchedule(*dl.rules(target), database=tmp_path, report=report)(mod)
    assert tuning.result.trials == 5
    assert report["f"].note == "tuned"


def test_the_pass_says_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        dl.tune.TuneSchedules(work_dir=tmp_path, trials=0)
    with pytest.raises(TypeError, match="no_such_option"):
        dl.tune.TuneSchedules(work_dir=tmp_path, no_such_option=1)
    with pytest.raises((ValueError, RuntimeError), match="inside `with target:`"):
        dl.tune.TuneSchedules(work_dir=tmp_path)(tvm.IRModule({"f": softmax()}))


def test_names_that_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dl.tune.nothing  # noqa: B018
    assert set(dl.tune.__all__) <= set(dir(dl.tune))


GRAPH = """g (float[32,64] x) => (float[32,96] y) {
    w = RandomNormal<shape = [64,96], seed = 1.0>()
    z = MatMul(x, w)
    y = Softmax<axis = -1>(z)
}"""
AGAIN = """
import json, sys
import autotir_dlight as dl
from autotir_dlight.frontend import load_onnx
report, target = dl.Report(), dl.host_target()
import tvm
tvm.compile(load_onnx(sys.argv[1], {}).module, target,
            relax_pipeline=dl.pipeline(target, database=sys.argv[2], report=report))
rows = [[e.function, e.rule, e.plan, e.note, [[k.name, k.value] for k in e.knobs]] for e in report]
print(json.dumps(rows))
"""


def said(capsys, arguments):
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def onnx_model(onnx_file):
    values = np.random.default_rng(0).integers(1, 9, 64 * 96)
    weight = ",".join(str(v) for v in values)
    return onnx_file(
        GRAPH.replace(
            "RandomNormal<shape = [64,96], seed = 1.0>()", f"Constant<value = float[64,96] {{{weight}}}>()"
        )
    )


def test_the_command_line_from_tuning_to_a_new_process(onnx_model, tmp_path, capsys, quick, monkeypatch):
    monkeypatch.setattr("autotir_dlight.cli.tune.local_runner", lambda cold: quick["runner"])
    monkeypatch.setattr("autotir_dlight.tune.measure.ExecutorBuilder", lambda compiler: quick["builder"])
    folder = tmp_path / "db"
    tune = ["tune", onnx_model, "--trials", 8, "--work-dir", folder, "--no-model"]
    text = said(capsys, tune)
    assert "8 trials" in text
    assert "default ms" in text
    assert main([str(a) for a in tune]) == 2
    assert "--resume" in capsys.readouterr().err
    answer = json.loads(said(capsys, [*tune, "--resume", "--json"]))
    assert answer["trials"] <= 8
    assert all(task["gain"] >= 1.0 for task in answer["tasks"])

    text = said(capsys, ["tune", "report", folder])
    assert "model: too few predictions" in text
    page = tmp_path / "out.html"
    records = tmp_path / "records.json"
    said(capsys, ["tune", "report", folder, "--html", page, "--export", records])
    assert Page(page.read_text()).count("polyline") >= 1
    assert len(records.read_text().splitlines()) == len(Database(folder).records())

    library = tmp_path / "model.so"
    said(capsys, ["compile", onnx_model, "-o", library, "--database", folder])
    plain = tmp_path / "plain.so"
    said(capsys, ["compile", onnx_model, "-o", plain])
    x = np.random.default_rng(0).standard_normal((32, 64)).astype("float32")
    outputs = [CompiledModel.load(path).run([x])[0] for path in (plain, library)]
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6)

    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(onnx_model), str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    assert any(entry[3] == "tuned" for entry in rows)
    report = dl.Report()
    pipeline = dl.pipeline(dl.host_target(), database=folder, report=report)
    tvm.compile(load_onnx(str(onnx_model), {}).module, dl.host_target(), relax_pipeline=pipeline)
    assert [[k.name, k.value] for e in report for k in e.knobs] == [knob for row in rows for knob in row[4]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["tune", "{model}", "--work-dir", "{tmp}/db", "--tracker", "127.0.0.1:1"], "given together"),
        (
            ["tune", "{model}", "--work-dir", "{tmp}/db", "--tracker", "127.0.0.1:1", "--key", "k"],
            "does not answer",
        ),
        (["tune", "report", "{tmp}/none"], "run tune first"),
        (["compile", "{model}", "-o", "{tmp}/m.so", "--database", "{tmp}/none"], "run tune first"),
        (["tune", "{tmp}/none.onnx", "--work-dir", "{tmp}/db"], "none.onnx"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, onnx_model, tmp_path, capsys):
    filled = [a.format(model=onnx_model, tmp=tmp_path) for a in arguments]
    assert main(filled) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_the_report_judges_the_model_by_what_it_foresaw(tmp_path, target, monkeypatch):
    from test_tune_search import Formula, module, tune

    pytest.importorskip("xgboost")
    tune(module(f=softmax(256, 1024)), target, tmp_path, trials=60, model=True, measurer=Formula())
    summary = Summary.of(Database(tmp_path))
    assert summary.correlation is not None
    assert f"rank correlation {summary.correlation:.2f}" in summary.text()
    task = summary.tasks[0]
    assert task.gain > 1
    assert list(task.curve) == sorted(task.curve, reverse=True)
    assert len(task.foreseen) > 20
    page = Page(summary.html("<db>"))
    assert page.count("circle") == len(task.foreseen)
    assert "<db>" in page.text
