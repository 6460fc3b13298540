# SPDX-License-Identifier: Apache-2.0
"""The models with random weights: what they are made of, and that they run and can be imported."""

import math

import numpy as np
import onnx
import onnxruntime
import pytest

from autotir_dlight.benchmark import transformers, vision, zoo
from autotir_dlight.benchmark.models import Result, Score, best_ratio
from autotir_dlight.errors import UserError
from autotir_dlight.frontend import TensorInfo, load_onnx


def parameters(model) -> int:
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) > 0)


# The published numbers of parameters, without the statistics of batch norms that are folded in.
@pytest.mark.parametrize(("build", "millions"), [(vision.resnet50, 25.5), (vision.mobilenet_v3, 5.46)])
def test_networks_have_their_parameters(build, millions):
    model = build()
    onnx.checker.check_model(model, full_check=True)
    assert parameters(model) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.fixture
def small(monkeypatch):
    """Networks of the same kinds that are small."""
    monkeypatch.setattr(transformers, "LAYERS", 1)
    monkeypatch.setattr(transformers, "VOCABULARY", 50)
    monkeypatch.setattr(transformers, "INNER", 32)
    monkeypatch.setattr(transformers, "SIZE", 24)
    monkeypatch.setattr(vision, "_RESNET_50", ((1, 8), (1, 8)))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTIR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv3", "vit-b16", "bert-base"])
def test_one_file_serves_every_batch(name, small, cache):
    known = zoo.known_models()
    for entry in (known[name], known[f"{name}-b8"]):
        session = onnxruntime.InferenceSession(str(entry.path()), providers=["CPUExecutionProvider"])
        types = {"tensor(float)": "float32", "tensor(int64)": "int64"}
        infos = [TensorInfo(i.name, entry.shapes[i.name], types[i.type]) for i in session.get_inputs()]
        arrays = entry.inputs(infos)
        outputs = session.run(None, {info.name: a for info, a in zip(infos, arrays, strict=True)})
        for output in outputs:
            assert output.shape[0] == (8 if entry.name.endswith("-b8") else 1)
            assert np.isfinite(output).all()
            assert 1e-2 < output.std() < 1e2, "values vanish or grow with the depth"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv3-b8", "vit-b16-b8", "bert-base"])
def test_importer_takes_them(name, small, cache):
    entry = zoo.known_models()[name]
    model = load_onnx(entry.path(), entry.shapes)
    assert {info.name: info.shape for info in model.inputs} == dict(entry.shapes)
    assert all(info.is_static for info in model.outputs)


def test_same_code_gives_the_same_model(small):
    assert vision.resnet50() == vision.resnet50()


def test_text_ends_in_padding():
    entry = zoo.known_models()["bert-base"]
    infos = [TensorInfo(name, shape, "int64") for name, shape in entry.shapes.items()]
    ids, mask, types = entry.inputs(infos)
    assert ids.max() < transformers.VOCABULARY and ids.shape == (1, 128)
    assert 0 < mask.sum() < mask.size and not mask[0, -1] and not types.any()


def test_selection():
    assert [m.name for m in zoo.select(["vit*", "det"])] == ["det", "vit-b16", "vit-b16-b8"]
    assert len(zoo.select([])) == 14
    with pytest.raises(UserError, match="no model is named 'resnet5'"):
        zoo.select(["resnet5"])


def test_geometric_mean_takes_the_fastest_other():
    def result(*ratios):
        scores = [Score(f"c{i}", "", 1.0, r, None, 1, None) for i, r in enumerate(ratios)]
        return Result("m", 2, "{}", "", [Score("ours", "", 1.0, 1.0, None, 1, None), *scores])

    assert best_ratio([result(2.0, 4.0), result(8.0, 9.0)]) == pytest.approx(4.0)
    assert best_ratio([result()]) is None
