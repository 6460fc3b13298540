# SPDX-License-Identifier: Apache-2.0
"""The command line in this process, and once as a program."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.reference
import pytest
import tvm
from tvm.s_tir.dlight import ScheduleRule

import autotir_dlight as dl
from autotir_dlight.artifact import CompiledModel
from autotir_dlight.benchmark.models import Result, Score
from autotir_dlight.benchmark.ops import OperatorResult, OperatorScore, OperatorsResult
from autotir_dlight.cli import main

MATMUL = """g (float[N,8] x, float[8] b) => (float[N,4] y, float[N,4] z) {
    w = Constant<value = float[8,4] {1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2,1,2,3,4,5,6,7,8,9,8,7,6,5,4,3,2}>()
    a = Add(x, b)
    z = MatMul(a, w)
    y = Relu(z)
}"""
DET = "g (float[2,2] x) => (float y) { y = Det(x) }"


@pytest.fixture
def model(onnx_file) -> str:
    return str(onnx_file(MATMUL))


@pytest.fixture
def arrays(tmp_path) -> list[str]:
    rng = np.random.default_rng(0)
    paths = []
    for name, shape in (("x", (2, 8)), ("b", (8,))):
        paths.append(str(tmp_path / f"{name}.npy"))
        np.save(paths[-1], rng.standard_normal(shape).astype("float32"))
    return paths


@pytest.fixture
def library(model, tmp_path, capsys) -> str:
    path = str(tmp_path / "model.so")
    assert main(["compile", model, "-o", path, "--shape", "x=2,8"]) == 0
    capsys.readouterr()
    return path


def fails(capsys, arguments: list[str], code: int = 2) -> str:
    """Run a command that must fail; returns the sentence that it says on stderr, and nothing on stdout."""
    assert main(arguments) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1, said.err
    assert "Traceback" not in said.err
    return said.err


def test_compile_and_run(model, library, arrays, tmp_path, capsys):
    assert main(["run", library, "--input", *arrays, "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("y: float32 2 x 4")
    want = onnx.reference.ReferenceEvaluator(model).run(
        None, {"x": np.load(arrays[0]), "b": np.load(arrays[1])}
    )
    for index, expected in enumerate(want):
        got = np.load(tmp_path / "out" / f"output_{index}.npy")
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_open_dimension_is_checked_when_run(model, arrays, tmp_path, capsys):
    path = str(tmp_path / "open.so")
    assert main(["compile", model, "-o", path]) == 0
    capsys.readouterr()
    assert main(["run", path, "--json", "--input", *arrays]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [2, 4]


def test_compile_says_what_it_made_as_one_json_document(model, tmp_path, capsys):
    path = tmp_path / "model.so"
    assert main(["compile", model, "-o", str(path), "--shape", "x=2,8", "--json", "--verify"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["inputs"][0] == {"name": "x", "shape": [2, 8], "dtype": "float32"}
    assert [output["name"] for output in answer["outputs"]] == ["y", "z"]
    assert set(answer["seconds"]) == {"import", "compile", "link", "verify"}
    assert answer["verify"]["error"] <= answer["verify"]["tolerance"]
    assert answer["target"]["kind"] == "llvm"


def test_compile_leaves_only_the_library(model, library, tmp_path):
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.so"}


def test_a_wrong_library_is_not_kept(model, tmp_path, monkeypatch, capsys):
    """A pipeline that computes something else: --verify must see it, and must not leave its work."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.onnx").write_bytes(Path(model).read_bytes().replace(b"Relu", b"Tanh"))
    output = tmp_path / "model.so"
    output.write_text("what was there before")
    from autotir_dlight.cli import commands

    real = commands.load_onnx
    monkeypatch.setattr(commands, "load_onnx", lambda path, shapes: real(other / "model.onnx", shapes))
    said = fails(capsys, ["compile", model, "-o", str(output), "--shape", "x=2,8", "--verify"], code=1)
    assert "disagrees with ONNX Runtime" in said
    assert output.read_text() == "what was there before"


def test_explain(model, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["explain", model, "--shape", "x=2,8", "--html", str(page)]) == 0
    assert str(page) in capsys.readouterr().out
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert main(["explain", model, "--shape", "x=2,8", "--json"]) == 0
    report = dl.Report.from_json(capsys.readouterr().out)
    assert any(entry.rule for entry in report)
    assert main(["explain", model, "--shape", "x=2,8"]) == 0
    said = capsys.readouterr().out
    assert all(entry.line() in said for entry in report)


@pytest.mark.slow
def test_bench(model, arrays, capsys):
    command = ["bench", "models", model, "--shape", "x=2,8", "--turns", "1", "--json"]
    command += ["--contender", "ours", "--contender", "plain TVM", "--input", *arrays]
    assert main(command) == 0
    (answer,) = json.loads(capsys.readouterr().out)["models"]
    assert answer["model"] == "model.onnx"
    assert [score["contender"] for score in answer["scores"]] == ["ours", "plain TVM"]
    assert answer["reference"] == "plain TVM"
    assert answer["verdict"] == "agrees"
    assert answer["scheduling"]["functions"] > 0


def fake_rows(operators, contenders, threads, target, turns, tell):
    scores = [OperatorScore("ours", "1", 1e-3, 1.0, None), OperatorScore("NumPy", "2", 2e-3, 2.0, None)]
    rows = [OperatorResult(op.name, op.flops, 1, scores, share=0.5) for op in operators]
    return OperatorsResult(threads, target, rows, None)


def test_bench_of_operators(tmp_path, monkeypatch, capsys):
    from autotir_dlight.cli import bench

    monkeypatch.setattr(bench, "bench_operators", fake_rows)
    assert main(["bench", "ops", "gemm-256", "gemm-512", "--threads", "2"]) == 0
    said = capsys.readouterr().out
    assert "| gemm-512 |" in said and "2.00×" in said and "2 threads" in said
    figures = tmp_path / "figures.json"
    assert main(["bench", "ops", "gemm-256", "--format", "json", "--out", str(figures)]) == 0
    assert str(figures) in capsys.readouterr().out
    assert [row["operator"] for row in json.loads(figures.read_text())["operators"]] == ["gemm-256"]


def test_a_model_that_fails_does_not_stop_the_others(model, onnx_file, monkeypatch, capsys):
    from autotir_dlight.cli import bench

    def fake(task, contenders, turns, tell):
        return Result("", task.threads, task.target, "", [Score("ours", "1", 2.0, 1.0, None, 1, None)])

    monkeypatch.setattr(bench, "bench_model", fake)
    closed = str(onnx_file("g (float[2] x) => (float[2] y) { y = Relu(x) }", "closed.onnx"))
    assert main(["bench", "models", model, closed, "--contender", "ours"]) == 1
    said = capsys.readouterr().out
    assert "| closed.onnx |" in said
    assert "model.onnx: the input x (float32, N x 8) has open dimensions" in said


def test_bench_lists_what_has_a_name(capsys):
    assert main(["bench", "ops", "C2D-*", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["C2D-0", "C2D-1", "C2D-2", "C2D-3"]
    assert main(["bench", "models", "--list", "--json"]) == 0
    assert {"det", "resnet50", "resnet50-b8"} <= set(json.loads(capsys.readouterr().out)["models"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["compil"], "invalid choice: 'compil'"),
        (["compile", "{model}"], "-o/--output"),
        (["compile", "nothing.onnx", "-o", "{tmp}/m.so"], "there is no file 'nothing.onnx'"),
        (["compile", "{text}", "-o", "{tmp}/m.so"], "is not an ONNX file"),
        (["compile", "{det}", "-o", "{tmp}/m.so"], "does not support the operator Det"),
        (["compile", "{model}", "-o", "{tmp}/no/m.so"], "which is not a directory"),
        (["compile", "{model}", "-o", "{tmp}"], "it is a directory"),
        (["compile", "{model}", "-o", "{tmp}/m.txt"], "must end in .so"),
        (["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "q=1,2"], "has no input 'q'; its inputs are"),
        (["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "x=1"], "has 1 dimensions instead of 2"),
        (["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "x=1,9"], "which the model fixes at 8"),
        (["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "x=0,8"], "dimensions are positive"),
        (
            ["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "x:1,8"],
            "is not of the form NAME=1,3,320,320",
        ),
        (
            ["compile", "{model}", "-o", "{tmp}/m.so", "--shape", "x=1,8", "--shape", "x=2,8"],
            "more than once",
        ),
        (["explain", "{model}", "--target", "znver9"], "'znver9' is unknown: did you mean znver"),
        (["explain", "{model}", "--target", ""], "is unknown"),
        (["explain", "{model}", "--target", '{"kind": "lvm"}'], "is not one that TVM knows"),
        (
            ["explain", "{model}", "--target", '{"kind": "llvm", "mcpu": "znver9"}'],
            "mcpu 'znver9' is unknown",
        ),
        (
            ["explain", "{model}", "--target", '{"kind": "llvm", "mtriple": "zork-x-y"}'],
            "'zork-x-y' is unknown",
        ),
        (["explain", "{model}", "--target", "{"], "is not one that TVM knows"),
        (["bench"], "the following arguments are required: ops|models"),
        (["bench", "models", "{model}", "--target", "neoverse-n2"], "does not run on this machine"),
        (["bench", "models", "{model}"], "has open dimensions: give it a shape with --shape x="),
        (["bench", "models", "{model}", "--turns", "0"], "'0' is not a positive number"),
        (["bench", "models", "{model}", "--contender", "nobody"], "invalid choice: 'nobody'"),
        (["bench", "models", "nothing.onnx"], "there is no file 'nothing.onnx'"),
        (["bench", "models", "resnet5"], "no model is named 'resnet5' and there is no such file"),
        (["bench", "models", "resnet50", "--shape", "x=1"], "--input and --shape describe one ONNX file"),
        (["bench", "models", "{model}", "--shape", "x=2,8", "--out", "{tmp}/no/r.md"], "is not a directory"),
        (["bench", "ops", "gem"], "no operator is named 'gem': bench ops --list names them all"),
        (["bench", "ops", "gemm-256", "--plot", "r.txt"], "it must end in .png, .svg, .pdf"),
        (["bench", "ops", "gemm-256", "--target", "neoverse-n2"], "does not run on this machine"),
        (["bench", "ops", "gemm-256", "--out", "{tmp}/no/r.md"], "is not a directory"),
        (["run", "{tmp}/none.so"], "there is no file"),
        (["run", "{model}"], "must end in .so"),
        (["run", "{garbage}"], "is not a compiled model for this machine"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, model, onnx_file, tmp_path, capsys):
    text, garbage = tmp_path / "text.onnx", tmp_path / "garbage.so"
    text.write_text("this is not a model")
    garbage.write_bytes(b"\x7fELF and then nothing")
    names = {
        "{model}": model,
        "{det}": str(onnx_file(DET, "det.onnx")),
        "{text}": str(text),
        "{garbage}": str(garbage),
    }
    before = sorted(tmp_path.iterdir())
    filled = [names.get(argument, argument.replace("{tmp}", str(tmp_path))) for argument in arguments]
    assert words in fails(capsys, filled)
    assert sorted(tmp_path.iterdir()) == before, "something was left behind"


def test_arrays_that_do_not_fit(library, arrays, tmp_path, capsys):
    x, b = arrays
    wrong_type, wrong_shape, pickled = (
        str(tmp_path / f"{name}.npy") for name in ("type", "shape", "pickled")
    )
    np.save(wrong_type, np.zeros((2, 8)))
    np.save(wrong_shape, np.zeros((3, 8), "float32"))
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for given, words in (
        ([], "takes 2 inputs but 0 were given; it takes: x (float32, 2 x 8); b (float32, 8)"),
        ([x], "takes 2 inputs but 1 were given"),
        ([wrong_type, b], "given an array of float64: convert it to float32"),
        ([wrong_shape, b], "given an array of shape 3 x 8"),
        ([b, x], "given an array of shape 8"),
        ([pickled, b], "is not a .npy file of numbers"),
        ([str(tmp_path / "none.npy"), b], "there is no file"),
        ([library, b], "is not a .npy file of numbers"),
    ):
        assert words in fails(capsys, ["run", library, *(["--input", *given] if given else [])])


def test_a_library_of_something_else(tmp_path, capsys):
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def nothing(a: T.Buffer((1,), "float32")):
        a[0] = T.float32(1)

    path = tmp_path / "other.so"
    tvm.compile(nothing, target="llvm").export_library(str(path))
    assert "is not a compiled model" in fails(capsys, ["run", str(path)])


def test_no_compiler_to_link_with(model, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = fails(capsys, ["compile", model, "-o", str(tmp_path / "m.so"), "--shape", "x=2,8"])
    assert "no C++ compiler was found" in said


def test_a_compiler_that_fails_is_named(model, tmp_path, capsys):
    arguments = ["compile", model, "-o", str(tmp_path / "m.so"), "--shape", "x=2,8", "--cc", "/bin/false"]
    assert "/bin/false could not link" in fails(capsys, arguments)


def test_missing_extra_is_named(model, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install 'autotir-dlight[onnx]'" in fails(capsys, ["explain", model])


def test_error_as_json(model, capsys):
    assert main(["explain", model, "--json", "--target", "znver9"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out) == {"error": said.err.strip()}
    assert main(["explain", "--json"]) == 2
    assert "MODEL.onnx" in json.loads(capsys.readouterr().out)["error"]


def test_debug_shows_the_traceback(capsys):
    assert main(["explain", "nothing.onnx", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_bad_setting(model, monkeypatch, capsys):
    monkeypatch.setenv("AUTOTIR_DEBUG", "9")
    assert "AUTOTIR_DEBUG must be 0 to 5" in fails(capsys, ["explain", model])


class _Broken(ScheduleRule):
    """A rule of a user that raises on every function."""

    def apply(self, func, target, tunable):
        raise IndexError("this rule is broken")


@pytest.fixture
def broken_rule(monkeypatch):
    """The default rules with a broken one before them."""
    for module, name in (("explain", "rules"), ("relax.pipeline", "default_rules")):
        place = importlib.import_module(f"autotir_dlight.{module}")
        monkeypatch.setattr(place, name, lambda target: [_Broken(), *dl.rules(target)])


def test_a_rule_that_raises_fails_in_strict_mode(broken_rule, model, tmp_path, capsys):
    said = fails(capsys, ["compile", model, "-o", str(tmp_path / "m.so"), "--shape", "x=2,8"], code=1)
    assert "this rule is broken" in said
    assert not (tmp_path / "m.so").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_rule_that_raises_is_reported_and_the_next_is_tried(
    broken_rule, model, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("AUTOTIR_STRICT", "0")
    assert main(["explain", model, "--shape", "x=2,8", "--json"]) == 0
    report = dl.Report.from_json(capsys.readouterr().out)
    scheduled = [entry for entry in report if entry.status != "left alone"]
    assert scheduled
    assert all(entry.rule.startswith("cpu.") for entry in scheduled)
    assert all("this rule is broken" in "".join(entry.bugs) for entry in scheduled)


def test_signature_travels_inside_the_library(library):
    signature = CompiledModel.load(library).signature
    assert [str(info) for info in signature.inputs] == ["x (float32, 2 x 8)", "b (float32, 8)"]
    assert tvm.target.Target(json.loads(signature.target)).kind.name == "llvm"


def test_as_a_program(tmp_path):
    command = [sys.executable, "-m", "autotir_dlight"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, cwd=root)
    assert all(name in done.stdout for name in ("compile", "run", "explain", "bench"))
    done = subprocess.run(
        [*command, "explain", "none.onnx"], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "autotir-dlight explain: there is no file 'none.onnx': give the path of an ONNX file"
    )


def test_threads_beyond_the_limit_are_bad_input(monkeypatch, tmp_path, capsys):
    import argparse

    from autotir_dlight.cli import commands
    from autotir_dlight.errors import UserError

    class Model:
        """Stands for a compiled model: the threads are set before it runs."""

    monkeypatch.setattr(commands.CompiledModel, "load", lambda path: Model())
    np.save(tmp_path / "x.npy", np.zeros(1, "float32"))
    args = argparse.Namespace(library="m.so", threads=0, input=[str(tmp_path / "x.npy")], output=None)
    with pytest.raises(UserError):
        commands.run(args)
