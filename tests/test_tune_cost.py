# SPDX-License-Identifier: Apache-2.0
"""The cost model: what it learns, how it is judged, and that it saves trials."""

from __future__ import annotations

import math
import sys

import pytest
import tvm
from test_tune_search import Formula, cost_of, module, tune
from tuning_cases import large_softmax as softmax

import autotir_dlight as dl
from autotir_dlight.errors import MissingExtraError
from autotir_dlight.tune import tuner as tuner_module
from autotir_dlight.tune.cost import CostModel, Features, Sample, grouped_correlation, rank_correlation
from autotir_dlight.tune.records import Database
from autotir_dlight.tune.space import Space
from autotir_dlight.tune.tuner import samples_of


@pytest.fixture(autouse=True)
def no_roof(monkeypatch):
    monkeypatch.setattr(tuner_module.Roof, "seconds", lambda self, task, threads: 0.0)


@pytest.fixture(scope="module")
def sampled(target):
    """Every point of a softmax with a time that a formula gives."""
    space = Space.of(softmax(), target)
    features = Features(space)
    points = list(space.points())
    gains = [-math.log(cost_of(p, 0)) for p in points]
    return [Sample("f", tuple(features.of(p)), gain) for p, gain in zip(points, gains)]


def test_rank_correlation():
    assert rank_correlation([1, 2, 3], [10, 20, 90]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)


def test_correlation_is_the_mean_over_groups():
    pairs = [("a", float(k), float(k)) for k in range(5)] + [("b", float(k), -float(k)) for k in range(5)]
    assert grouped_correlation(pairs) == pytest.approx(0.0)
    assert grouped_correlation(pairs[:5]) == pytest.approx(1.0)
    assert grouped_correlation(pairs[:2]) == 0.0


def test_without_xgboost_it_names_the_extra(monkeypatch, target, tmp_path):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(MissingExtraError, match=r"autotir-dlight\[tune\]"):
        CostModel()
    result, _ = tune(module(f=softmax()), target, tmp_path, trials=5)
    assert result.correlation is None


def test_it_predicts_nothing_before_it_has_seen_enough(sampled):
    pytest.importorskip("xgboost")
    assert not CostModel().trained
    assert not CostModel(sampled[:3]).trained
    assert CostModel(sampled[:12]).trained


def test_it_orders_points_that_it_has_not_seen(sampled):
    pytest.importorskip("xgboost")
    train, test = sampled[::2], sampled[1::2]
    model = CostModel(train)
    predicted = model.predict([s.features for s in test])
    assert rank_correlation(predicted, [s.gain for s in test]) > 0.5
    assert model.correlation > 0.5
    assert model.objective in ("reg:squarederror", "rank:pairwise")


def test_the_kind_of_model_is_the_one_that_orders_better(sampled, monkeypatch):
    pytest.importorskip("xgboost")
    scores = {"reg:squarederror": 0.2, "rank:pairwise": 0.6}
    monkeypatch.setattr(CostModel, "_held_out", lambda self, objective: scores[objective])
    model = CostModel(sampled[:40])
    assert (model.objective, model.correlation) == ("rank:pairwise", 0.6)
    predicted = model.predict([s.features for s in sampled[:40]])
    assert rank_correlation(predicted, [s.gain for s in sampled[:40]]) > 0.8


def test_samples_with_other_features_are_left_out(sampled):
    pytest.importorskip("xgboost")
    model = CostModel([*sampled[:20], Sample("old", (1.0, 2.0), 0.5)])
    assert len(model.samples) == 20


def needed(target, folder, prior=()):
    """Trials until a softmax's best point is measured."""
    func = softmax(128, 1024)
    best = min(Space.of(func, target).points(), key=lambda p: (cost_of(p, 0), p))
    _, measurer = tune(module(f=func), target, folder, trials=85, prior=prior, model=True)
    return [point for _, point in measurer.asked].index(best) + 1


def test_records_of_another_shape_save_trials(target, tmp_path):
    pytest.importorskip("xgboost")
    alone = needed(target, tmp_path / "alone")
    tune(module(f=softmax(256, 1024)), target, tmp_path / "before", trials=85, model=True)
    prior = Database(tmp_path / "before").records()
    assert len(samples_of(prior)) > 20
    after = needed(target, tmp_path / "after", prior)
    assert after <= alone / 2


def test_the_same_seed_and_times_give_the_same_search_with_the_model(target, tmp_path):
    pytest.importorskip("xgboost")
    runs = [tune(module(f=softmax()), target, tmp_path / n, trials=30, model=True)[1].asked for n in "ab"]
    assert runs[0] == runs[1]


def test_predict_orders_plans_without_measuring(target, tmp_path):
    pytest.importorskip("xgboost")
    tune(module(f=softmax()), target, tmp_path, trials=60, model=True)
    ranked = dl.tune.predict(softmax(128, 1024), target, tmp_path)
    assert len(ranked) == 64
    assert [p.faster for p in ranked] == sorted((p.faster for p in ranked), reverse=True)
    assert {p.rule for p in ranked} == {"cpu.Reduction"}
    first = ranked[0].knobs
    space = Space.of(softmax(128, 1024), target)
    points = [p for p in space.points() if space.values(p) == first]
    assert cost_of(points[-1], 0) < 8


def test_predict_says_why_it_cannot(target, tmp_path):
    pytest.importorskip("xgboost")
    tune(module(f=softmax()), target, tmp_path, trials=3, model=True, measurer=Formula())
    with pytest.raises(ValueError, match="only 3 trials"):
        dl.tune.predict(softmax(), target, tmp_path)
    tune(module(f=softmax()), target, tmp_path, trials=20, model=True)
    with pytest.raises(ValueError, match="no design space"):
        dl.tune.predict(softmax(), target, tmp_path, rules=[dl.cpu.Matmul()])


def test_symbolic_functions_have_features_of_the_same_length(target):
    from tvm import te, topi

    x = te.placeholder((tvm.tirx.Var("m", "int64"), 64), name="x")
    func = te.create_prim_func([x, topi.nn.softmax(x)])
    space = Space.of(func, target)
    static = Space.of(softmax(), target)
    assert len(Features(space).of(space.default)) == len(Features(static).of(static.default))
