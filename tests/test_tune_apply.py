# SPDX-License-Identifier: Apache-2.0
"""A tuning database decides how functions are scheduled: the user's word first, then it, then the formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm
import tvm_ffi
from tuning_cases import dynamic_product, product, softmax
from tvm import te

import autotir_dlight as dl
from autotir_dlight import settings
from autotir_dlight.apply import apply_rules
from autotir_dlight.normalise import normalise
from autotir_dlight.tune.keys import key_of
from autotir_dlight.tune.lookup import TunedPlans, extent_ratio, point_of, record_of
from autotir_dlight.tune.records import Database, DatabaseError, Record
from autotir_dlight.tune.space import Point, Space


def last_point(space):
    """A point that differs from the default in its plan, and in a knob where there is one."""
    return max(space.points())


def winner(func, target, point=None, **changes):
    space = Space.of(func, target)
    point = last_point(space) if point is None else point
    named = record_of(space, point, key_of(space.view))
    fields = {"kind": "best", "cases": ({},), "seconds": (1.0,), "default_seconds": (2.0,)}
    return Record(**(fields | named | changes))


def database(folder, *records):
    for record in records:
        Database(folder).add(record)
    return folder


def scheduled(func, target, folder, rules=None):
    report = dl.Report()
    with target:
        step = dl.ApplyDefaultSchedule(*(rules or dl.rules(target)), database=folder, report=report)
        mod = step(tvm.IRModule({"main": func}))
    return mod["main"], report["main"]


@pytest.mark.parametrize("make", [softmax, product, dynamic_product])
def test_a_record_decides_plan_and_knobs(make, target, tmp_path):
    func = make()
    space = Space.of(func, target)
    point = last_point(space)
    assert point.plan != space.default.plan
    mod, entry = scheduled(func, target, database(tmp_path, winner(func, target)))
    expected = space.build(point).mod["main"].with_attr("tirx.is_scheduled", True)
    assert tvm_ffi.structural_equal(mod, expected)
    assert entry.note == "tuned"
    assert {k.name: k.value for k in entry.knobs} == space.values(point)
    assert all(k.source == "database" for k in entry.knobs)
    assert dl.verify(func, mod, target, shapes={"m": 7} if make is dynamic_product else None).ok


def test_the_users_word_wins_over_the_database(target, tmp_path):
    func = softmax()
    space = Space.of(func, target)
    name, knob = next((n, k) for n, k in space.options[-1].knobs.items() if len(k.choices) > 1)
    folder = database(tmp_path, winner(func, target))
    last = name.rpartition(".")[2]
    with settings.override(plan={"cpu.Reduction": {last: knob.choices[0]}}):
        _, entry = scheduled(func, target, folder)
    chosen = {k.name: (k.value, k.source) for k in entry.knobs}
    assert chosen[name] == (knob.choices[0], "override")
    assert "database" in {source for _, source in chosen.values()}


def test_without_a_record_the_default_stands(target, tmp_path):
    folder = database(tmp_path, winner(softmax(), target))
    for func in (product(), softmax(65)):
        mod, entry = scheduled(func, target, folder)
        with target:
            plain = dl.ApplyDefaultSchedule(*dl.rules(target))(tvm.IRModule({"main": func}))
        assert tvm_ffi.structural_equal(mod, plain["main"])
        assert entry.note == ""


@pytest.mark.parametrize(
    "changes",
    [{"machine": "another"}, {"rule_version": 99}, {"rule": "cpu.Other"}, {"dtype": "float16"}],
)
def test_what_does_not_fit_is_not_applied(changes, target, tmp_path):
    func = softmax()
    folder = database(tmp_path, winner(func, target, **changes))
    assert scheduled(func, target, folder)[1].note == ""


def test_another_machines_records_are_applied_when_asked(target, tmp_path):
    func = softmax()
    folder = database(tmp_path, winner(func, target, machine="another"))
    assert scheduled(func, target, TunedPlans(folder, any_machine=True))[1].note == "tuned"


def test_the_newest_record_wins(target, tmp_path):
    func = softmax()
    space = Space.of(func, target)
    folder = database(
        tmp_path,
        winner(func, target, last_point(space), created=1.0),
        winner(func, target, space.default, created=3.0),
        winner(func, target, last_point(space), created=2.0),
    )
    plain = space.build(space.default).mod["main"].with_attr("tirx.is_scheduled", True)
    assert tvm_ffi.structural_equal(scheduled(func, target, folder)[0], plain)


def test_a_record_of_other_extents_is_applied_when_asked(target, tmp_path):
    folder = database(tmp_path, winner(softmax(64, 200), target))
    mod, entry = scheduled(softmax(32, 300), target, TunedPlans(folder, transfer=True))
    assert "extents" in entry.note
    assert entry.plan == Space.of(softmax(32, 300), target).options[-1].plan.title
    assert dl.verify(softmax(32, 300), mod, target).ok
    assert scheduled(softmax(32, 200_000), target, TunedPlans(folder, transfer=True))[1].note == ""


def test_a_static_record_transfers_to_a_symbolic_extent(target, tmp_path):
    folder = database(tmp_path, winner(product(), target))
    _, entry = scheduled(dynamic_product(), target, TunedPlans(folder, transfer=True))
    assert entry.note


def test_a_plan_that_the_rule_no_longer_makes_is_not_applied(target):
    func = product()
    space = Space.of(func, target)
    record = winner(func, target)
    assert point_of(space, record) == last_point(space)
    changed = {**record.plan, "structure": {**record.plan["structure"], "rows": 3}}
    assert point_of(space, replace(record, plan=changed)) is None
    assert point_of(space, replace(record, plan={"title": "none", "structure": {}})) is None


def test_a_value_that_is_no_choice_becomes_the_nearest(target):
    space = Space.of(softmax(), target)
    plan = max(range(len(space.options)), key=lambda p: len(space.options[p].knobs))
    option = space.options[plan]
    name, knob = next((n, k) for n, k in option.knobs.items() if len(k.choices) > 1)
    assert space.values(space.point(plan, {name: 10**9}))[name] == max(knob.choices)
    assert space.values(space.point(plan, {name: 0}))[name] == min(knob.choices)
    assert space.point(plan, {}) == Point(plan, option.default)


def test_a_failing_tuned_plan_leaves_the_default(target, tmp_path, monkeypatch, caplog):
    func = softmax()
    folder = database(tmp_path, winner(func, target))
    build = dl.cpu.Reduction.build

    def fail(self, func, decision, plan, tunable=False):
        if plan not in decision.plans:
            raise dl.errors.RuleBug(self.name, plan, func, ValueError("no"))
        return build(self, func, decision, plan, tunable)

    monkeypatch.setattr(dl.cpu.Reduction, "build", fail)
    with settings.override(strict=False):
        _, entry = scheduled(func, target, folder)
    assert entry.rule == "cpu.Reduction"
    assert entry.bugs
    assert "the default is taken" in caplog.text
    with pytest.raises(RuntimeError, match="cannot schedule: no"):
        scheduled(func, target, folder)


def test_a_missing_database_is_one_sentence(target, tmp_path):
    with pytest.raises(DatabaseError, match="run tune first"):
        dl.ApplyDefaultSchedule(*dl.rules(target), database=tmp_path / "none")


def test_keys_know_no_names_and_no_extents(target):
    one, two = (key_of(Space.of(f, target).view) for f in (softmax(64, 200), softmax(3, 9)))
    assert one.pattern == two.pattern
    assert one.extents != two.extents
    renamed = tvm.script.from_source(softmax().with_attr("global_symbol", "f").script().replace("x_", "y_"))
    assert key_of(Space.of(renamed, target).view) == one
    others = {key_of(Space.of(f, target).view).pattern for f in (softmax(), product(), dynamic_product())}
    assert len(others) == 2
    assert key_of(Space.of(dynamic_product(), target).view).symbolic


def test_the_key_of_a_function_is_that_of_its_normal_form(target):
    x = te.placeholder((4, 6), name="x")
    func = te.create_prim_func(
        [x, te.compute((4, 6), lambda i, j: tvm.tirx.Select(i < 2, x[i, j] * 2.0, x[i, j]))]
    )
    assert key_of(Space.of(func, target).view) == key_of(Space.of(normalise(func), target).view)


def test_the_ratio_of_extents():
    assert extent_ratio((4, None, 3), (4, 8, 3)) == 1.0
    assert extent_ratio((4, 8), (8, 4)) == pytest.approx(2.0)
    assert extent_ratio((4,), (4, 4)) == float("inf")
    assert extent_ratio((0,), (4,)) == float("inf")


def test_the_database_reaches_a_whole_model(target, tmp_path):
    from tvm import relax

    x = relax.Var("x", relax.TensorType([64, 200], "float32"))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            out = block.emit_output(block.emit(relax.op.nn.softmax(x)))
        block.emit_func_output(out)
    folder = database(tmp_path, winner(softmax(), target))
    report = dl.Report()
    pipeline = dl.pipeline(target, database=folder, report=report)
    tvm.compile(block.finalize(), target, relax_pipeline=pipeline)
    assert [entry.note for entry in report] == ["tuned"]


def test_apply_rules_takes_no_database(target):
    report = dl.Report()
    apply_rules(tvm.IRModule({"main": softmax()}), target, dl.rules(target), report)
    assert report["main"].note == ""
