# SPDX-License-Identifier: Apache-2.0
"""The space, the search in it and the budget over tasks, with times that a formula gives."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest
import tvm
import tvm_ffi
from tuning_cases import large_softmax as softmax
from tuning_cases import product
from tvm import te

import autotir_dlight as dl
from autotir_dlight.tune import tuner as tuner_module
from autotir_dlight.tune.lookup import TunedPlans
from autotir_dlight.tune.measure import Measured, MeasureError
from autotir_dlight.tune.records import Database, relative_time
from autotir_dlight.tune.search import Search
from autotir_dlight.tune.space import Point, Space, move_choice
from autotir_dlight.tune.task import extract_tasks, representative
from autotir_dlight.tune.tuner import Tuner


@pytest.fixture(scope="module")
def space(target):
    return Space.of(softmax(), target)


def cost_of(point, size):
    """A time with one valley: at the last plan, at the middle of every knob."""
    return 1.0 + sum((2 * c - 2) ** 2 for c in point.choices) + (0 if point.plan else 5.0)


class Formula:
    """A measurer whose times come from a formula; ``noise`` gives those of single measurements."""

    remote = False
    threads = 2

    def __init__(self, seconds=None, noise=None):
        self.seconds = seconds or (lambda task, point: 1e-3 * cost_of(point, task.space.size))
        self.noise = noise or (lambda task, point: 1.0)
        self.asked = []

    def prepare(self, wanted):
        self.prepared = wanted

    def measure(self, task, points):
        self.asked += [(task.name, point) for point in points]
        return [self._one(task, point, self.noise(task, point)) for point in points]

    def beside(self, task, points, default):
        base = self._one(task, default, 1.0).seconds
        return [(measured, base) for measured in self.measure(task, points)]

    def in_turns(self, task, points, rounds=5):
        return [[self._one(task, point, 1.0)] * rounds for point in points]

    def _one(self, task, point, noise):
        seconds = self.seconds(task, point)
        if isinstance(seconds, str):
            return Measured(error=seconds)
        return Measured((seconds * noise,) * len(task.extents))


@pytest.fixture(autouse=True)
def no_roof(monkeypatch):
    monkeypatch.setattr(tuner_module.Roof, "seconds", lambda self, task, threads: 0.0)


def test_the_space_begins_with_the_default(space, target):
    points = list(space.points())
    assert len(points) == len(set(points)) == space.size > 20
    assert space.default in points
    plain = dl.cpu.Reduction().apply(space.func, target, tunable=False)
    assert tvm_ffi.structural_equal(space.build(space.default).mod, plain.mod)


def test_mutation_stays_in_the_space_and_moves_one_step_mostly(space):
    rng, points = Random(0), set(space.points())
    point, steps = max(points), []
    for _ in range(300):
        moved = space.mutate(point, rng)
        assert moved in points
        if moved.plan == point.plan:
            distance = [abs(a - b) for a, b in zip(moved.choices, point.choices)]
            assert sum(d > 0 for d in distance) == 1
            steps += [max(distance)]
        point = moved
    assert steps.count(1) > len(steps) / 2


def test_a_choice_moves_to_a_neighbour_and_now_and_then_anywhere():
    moved = [move_choice(2, 6, Random(seed)) for seed in range(200)]
    assert set(moved) == {0, 1, 3, 4, 5}
    assert sum(m in (1, 3) for m in moved) > 150
    assert move_choice(0, 2, Random(1)) == 1


def test_crossover_takes_each_value_from_a_parent(space):
    plan = max(range(len(space.options)), key=lambda p: len(space.options[p].knobs))
    size = [len(k.choices) for k in space.options[plan].knobs.values()]
    one, two = Point(plan, (0,) * len(size)), Point(plan, tuple(s - 1 for s in size))
    child = space.crossover(one, two, Random(3))
    assert all(c in pair for c, pair in zip(child.choices, zip(one.choices, two.choices)))
    assert space.crossover(one, Point(plan - 1, ()), Random(0)) == one


def run(search, count, batch=4, predict=None):
    order = []
    while len(order) < count and not search.exhausted:
        for point in search.propose(batch, predict):
            order.append(point)
            search.update(point, cost_of(point, 0) / 10)
    return order


def test_the_same_seed_gives_the_same_search_and_no_point_twice(space):
    one, two, other = (run(Search(space, seed), 40) for seed in (1, 1, 2))
    assert one == two != other
    assert one[0] == space.default
    assert len(set(one)) == len(one)


def test_the_search_ends_with_the_space(space):
    order = run(Search(space, 0), 10**6)
    assert sorted(order) == sorted(space.points())


def test_the_search_finds_the_valley_in_fewer_points_than_chance(space):
    best = min(space.points(), key=lambda p: (cost_of(p, 0), p))
    needed = [run(Search(space, seed), space.size).index(best) for seed in range(20)]
    assert sorted(needed)[10] < space.size / 2


def test_a_right_model_finds_the_valley_at_once(space):
    best = min(space.points(), key=lambda p: (cost_of(p, 0), p))
    order = run(Search(space, 0), 30, predict=lambda points: [-cost_of(p, 0) for p in points])
    assert order.index(best) < 30


def test_points_that_won_elsewhere_come_first(space):
    wanted = max(space.points())
    assert Search(space, 0, [wanted]).propose(3)[:2] == [space.default, wanted]


def module(**functions):
    return tvm.IRModule(functions)


def tune(mod, target, folder, trials=40, measurer=None, **options):
    tasks, skipped = extract_tasks(mod, target)
    measurer = measurer or Formula()
    options.setdefault("model", False)
    result = Tuner(Database(folder), measurer, **options).tune(tasks, trials, skipped)
    return result, measurer


def test_the_default_is_measured_and_committed_first(target, tmp_path, monkeypatch):
    kinds = []
    add = Database.add
    monkeypatch.setattr(Database, "add", lambda self, r: (kinds.append((r.kind, r.knobs)), add(self, r)))
    result, measurer = tune(module(f=softmax()), target, tmp_path)
    default = Space.of(softmax(), target).default
    assert measurer.asked[0] == ("f", default)
    assert [kind for kind, _ in kinds[:2]] == ["trial", "best"]
    assert kinds[-1][0] == "best"
    assert result.states[0].gain == pytest.approx(6.0, rel=0.5)


def test_what_wins_is_what_the_pass_applies(target, tmp_path):
    result, _ = tune(module(f=softmax()), target, tmp_path)
    state = result.states[0]
    report = dl.Report()
    with target:
        dl.ApplyDefaultSchedule(*dl.rules(target), database=tmp_path, report=report)(module(f=softmax()))
    assert {k.name: k.value for k in report["f"].knobs} == state.task.space.values(state.winner)
    assert state.winner != state.task.space.default


def test_a_lucky_measurement_cannot_win(target, tmp_path):
    """Every other point looks twice as fast once, and is slower in turns."""
    default = Space.of(softmax(), target).default
    measurer = Formula(
        seconds=lambda task, point: 1e-3 if point == default else 1.5e-3,
        noise=lambda task, point: 1.0 if point == default else 0.3,
    )
    result, _ = tune(module(f=softmax()), target, tmp_path, measurer=measurer)
    assert result.states[0].winner == default
    assert result.gain == 1.0
    with target:
        tuned = dl.ApplyDefaultSchedule(*dl.rules(target), database=tmp_path)(module(f=softmax()))
        plain = dl.ApplyDefaultSchedule(*dl.rules(target))(module(f=softmax()))
    assert tvm_ffi.structural_equal(tuned, plain)


def test_a_failing_point_is_recorded_and_does_not_win(target, tmp_path):
    def seconds(task, point):
        return 1e-3 if point == task.space.default else "the process that ran the candidate died"

    result, _ = tune(module(f=softmax()), target, tmp_path, measurer=Formula(seconds))
    assert result.states[0].winner == result.states[0].task.space.default
    failed = [r for r in Database(tmp_path).records("trial") if r.error]
    assert len(failed) == result.states[0].failed == result.trials - 1
    assert all(not r.seconds for r in failed)


def test_functions_under_one_percent_are_left_alone_and_named(target, tmp_path):
    def seconds(task, point):
        return (1e-6 if task.name == "small" else 1e-2) * cost_of(point, 0)

    mod = module(small=product(128, 128, 64), large=softmax())
    result, measurer = tune(mod, target, tmp_path, measurer=Formula(seconds))
    assert [name for name, _ in measurer.asked].count("small") == 1
    assert [(s.name, "of the time" in s.reason) for s in result.skipped] == [("small", True)]


def test_trials_go_where_time_is_spent(target, tmp_path):
    def seconds(task, point):
        return (1e-3 if task.name == "small" else 9e-3) * cost_of(point, 0)

    mod = module(small=softmax(64, 1024), large=softmax(256, 1024))
    _, measurer = tune(mod, target, tmp_path, trials=34, measurer=Formula(seconds))
    asked = [name for name, _ in measurer.asked]
    assert asked.count("large") > asked.count("small")


def test_no_more_than_the_budget_is_measured_and_nothing_twice(target, tmp_path):
    _, measurer = tune(module(f=softmax()), target, tmp_path, trials=13)
    assert len(measurer.asked) == len(set(measurer.asked)) == 13


def test_an_interrupted_run_goes_on_where_it_stopped(target, tmp_path):
    class Stop(Exception):
        pass

    def stop(states, used, budget):
        if used > 8:
            raise Stop

    with pytest.raises(Stop):
        tune(module(f=softmax()), target, tmp_path, on_progress=stop)
    before = len(Database(tmp_path).records("trial"))
    _, measurer = tune(module(f=softmax()), target, tmp_path, trials=30)
    assert before > 8
    assert len(measurer.asked) == 30
    trials = [(r.plan["title"], tuple(r.knobs.items())) for r in Database(tmp_path).records("trial")]
    assert len(trials) == len({str(t) for t in trials})


def test_a_task_without_gains_is_given_up(target, tmp_path):
    result, measurer = tune(module(f=softmax()), target, tmp_path, 80, Formula(lambda task, point: 1e-3))
    assert result.states[0].stopped == f"no gain in {tuner_module.PATIENCE} batches"
    assert len(measurer.asked) < 40


def test_a_task_at_the_roof_is_left(target, tmp_path, monkeypatch):
    monkeypatch.setattr(tuner_module.Roof, "seconds", lambda self, task, threads: 0.95e-3)
    result, measurer = tune(module(f=softmax()), target, tmp_path, 80, Formula(lambda task, point: 1e-3))
    assert len(measurer.asked) == 1
    assert result.states[0].stopped == "near the roof"
    monkeypatch.setattr(tuner_module.Roof, "seconds", lambda self, task, threads: 1.05e-3)
    result, _ = tune(module(f=softmax()), target, tmp_path / "b", 80, Formula(lambda task, point: 1e-3))
    assert result.states[0].roof == 0.0


def test_where_nothing_can_be_measured_it_says_so(target, tmp_path):
    with pytest.raises(MeasureError, match="nothing can be measured: no compiler"):
        tune(module(f=softmax()), target, tmp_path, measurer=Formula(lambda task, point: "no compiler"))


def test_a_function_whose_default_fails_does_not_stop_the_others(target, tmp_path):
    def seconds(task, point):
        return "no memory" if task.name == "bad" else 1e-3 * cost_of(point, 0)

    mod = module(bad=product(128, 128, 64), good=softmax())
    result, _ = tune(mod, target, tmp_path, measurer=Formula(seconds))
    assert [s.task.name for s in result.states] == ["good"]
    assert "no memory" in next(s.reason for s in result.skipped if s.name == "bad")


def test_transfer_begins_with_the_winner_of_other_extents(target, tmp_path):
    first, _ = tune(module(f=softmax(256, 1024)), target, tmp_path / "a", trials=200)
    prior = Database(tmp_path / "a").records()
    _, measurer = tune(module(f=softmax(128, 1024)), target, tmp_path / "b", trials=4, prior=prior)
    assert [point for _, point in measurer.asked[:2]][1] == first.states[0].winner


def test_tasks_are_weighted_by_calls_and_alike_ones_are_one(target):
    from tvm import relax

    x = relax.Var("x", relax.TensorType([256, 1024], "float32"))
    block = relax.BlockBuilder()
    one, two = (block.add_func(softmax().with_attr("global_symbol", n), n) for n in ("one", "two"))
    with block.function("main", [x]):
        y = block.emit(relax.call_tir(one, [x], x.ty))
        y = block.emit(relax.call_tir(one, [y], x.ty))
        block.emit_func_output(block.emit(relax.call_tir(two, [y], x.ty)))
    mod = block.finalize()
    tasks, skipped = extract_tasks(mod, target)
    assert [(task.calls, task.name) for task in tasks if task.space.size > 1] == [(3, tasks[0].name)]
    assert skipped == []


def test_what_is_not_tuned_is_named(target):
    done = product(128, 128, 64).with_attr("tirx.is_scheduled", True)
    x = te.placeholder((4,), name="x")
    small = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0)])
    tasks, skipped = extract_tasks(module(done=done, small=small), target)
    assert tasks == []
    assert {s.name: s.reason for s in skipped} == {
        "done": "it is scheduled already",
        "small": "it has one schedule to choose from",
    }


def test_symbolic_extents_are_measured_at_representative_values():
    m, n = tvm.tirx.Var("m", "int64"), tvm.tirx.Var("n", "int64")
    x = te.placeholder((m, n), name="x")
    func = te.create_prim_func([x, te.compute((m, n), lambda i, j: x[i, j] + 1.0)])
    assert representative(func, {}) == ({"m": 1, "n": 1}, {"m": 16, "n": 16}, {"m": 128, "n": 128})
    assert representative(func, {"m": [3], "n": [4, 5]}) == ({"m": 3, "n": 4}, {"m": 3, "n": 5})
    assert representative(softmax(), {}) == ({},)


def test_relative_times():
    assert relative_time((1.0, 4.0), (2.0, 2.0)) == pytest.approx(1.0)
    assert relative_time((), (1.0,)) == math.inf


def test_a_damaged_prior_point_is_passed_over(target, tmp_path):
    tune(module(f=softmax()), target, tmp_path, trials=20)
    records = [replace(r, knobs={"no such": 1}, plan={"title": "none"}) for r in Database(tmp_path).records()]
    result, _ = tune(module(f=softmax(64)), target, tmp_path / "b", trials=20, prior=records)
    assert result.trials == 20
    assert len(TunedPlans(tmp_path / "b")) >= 1


def test_a_winner_is_faster_in_most_rounds_and_in_the_median():
    def rounds(*times):
        return [Measured((t,)) for t in times]

    default = rounds(1.0, 1.0, 2.0, 2.0, 2.0)
    assert tuner_module._ratio(rounds(0.9, 0.9, 1.8, 1.8, 1.8), default) == pytest.approx(0.9)
    assert tuner_module._ratio(rounds(0.9, 0.9, 0.9, 2.2, 2.2), default) == pytest.approx(0.9)
    # Faster in three rounds of five, when the default had the slow ones: slower at the median.
    default = rounds(1.0, 1.0, 1.0, 2.0, 2.0)
    assert tuner_module._ratio(rounds(0.9, 1.2, 1.2, 1.8, 1.8), default) == pytest.approx(1.2)
    assert tuner_module._ratio([*rounds(0.1), Measured(error="died")], default[:2]) == math.inf
