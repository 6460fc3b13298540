# SPDX-License-Identifier: Apache-2.0
"""Meta-schedule's own parts on our rules, and ours on its parts.

=============================  ====================================================================
part                           test that goes through it
=============================  ====================================================================
instruction, trace             test_a_trace_is_saved_loaded_and_applied
traced schedule, sampler       test_the_same_seed_samples_the_same
ScheduleFn                     test_its_tuner_searches_our_space
SpaceGeneratorUnion            test_spaces_can_be_united
replay-func, replay-trace      test_its_tuner_searches_our_space
evolutionary                   test_its_tuner_searches_our_space
round-robin, gradient          test_its_tuner_searches_our_space
tune context, arg info         test_features_are_the_same_number_for_every_point
per-store features             test_features_are_the_same_number_for_every_point
mutator                        test_the_mutator_moves_one_decision
builder, local runner          test_its_tuner_searches_our_space, tests/test_tune_measure.py
RPC runner                     test_a_board_behind_a_tracker
databases: JSON                test_winners_can_be_written_as_its_json_database
memory, union                  test_our_database_can_be_united_with_its_own
ScheduleFn                     test_rules_serve_its_schedule_fn_database
MetaScheduleApplyDatabase      test_its_pass_applies_our_winners
measure callbacks              test_its_tuner_searches_our_space (adds to the database)
=============================  ====================================================================
"""

from __future__ import annotations

import logging

import pytest
import tvm
import tvm_ffi
from tuning_cases import large_softmax as softmax
from tvm import te, topi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.schedule import Trace

import autotir_dlight as dl
from autotir_dlight.tune.builder import ExecutorBuilder
from autotir_dlight.tune.cost import Features
from autotir_dlight.tune.interop import CATEGORICAL, KnobDatabase, MutateKnob, as_schedule_fn, export_json
from autotir_dlight.tune.keys import key_of
from autotir_dlight.tune.lookup import record_of
from autotir_dlight.tune.measure import MeasureError, Measurer, evaluator, rpc_runner
from autotir_dlight.tune.meta_schedule import without_tensor_intrinsics
from autotir_dlight.tune.records import Database, Record
from autotir_dlight.tune.space import Space, schedule_fn
from autotir_dlight.tune.task import extract_tasks

pytestmark = pytest.mark.xdist_group("tune")


def other():
    x = te.placeholder((256, 1024), name="x")
    return te.create_prim_func([x, topi.exp(x)])


@pytest.fixture
def folder(tmp_path, target):
    """A database whose winner for softmax is its last point."""
    space = Space.of(softmax(), target)
    named = record_of(space, max(space.points()), key_of(space.view))
    Database(tmp_path / "db").add(Record(kind="best", cases=({},), seconds=(1.0,), **named))
    return tmp_path / "db"


def tuned(target):
    space = Space.of(softmax(), target)
    return space.build(max(space.points())).mod["main"]


def test_a_trace_is_saved_loaded_and_applied(target):
    space = Space.of(softmax(), target)
    for point in list(space.points())[:6]:
        sch = space.build(point, tunable=True)
        again = Schedule(space.func)
        Trace.apply_json_to_schedule(sch.trace.as_json(), again)
        assert tvm_ffi.structural_equal(again.mod, space.build(point).mod)


def test_the_same_seed_samples_the_same(target):
    space = Space.of(softmax(), target)
    trace = space.build(space.default, tunable=True).trace

    def sampled(seed):
        sch = Schedule(space.func, seed=seed)
        Trace(trace.insts, {}).apply_to_schedule(sch, remove_postproc=False)
        return [int(sch.trace.decisions[i]) for i in sch.trace.insts if i.kind.name == CATEGORICAL]

    assert sampled(3) == sampled(3)
    assert len({tuple(sampled(seed)) for seed in range(1, 9)}) > 1


def plain_space(target):
    return ms.space_generator.ScheduleFn(schedule_fn(target), sch_rules=[], postprocs=[], mutator_probs={})


@pytest.mark.parametrize(
    ("strategy", "scheduler"),
    [("replay-func", "round-robin"), ("replay-trace", "gradient"), ("evolutionary", "round-robin")],
)
def test_its_tuner_searches_our_space(strategy, scheduler, target, tmp_path, measuring, monkeypatch):
    """Whatever it draws, what it records are schedules of our space."""
    # It names the handlers that its logger has already, and pytest's have no names.
    monkeypatch.setattr(logging.getLogger("tvm.s_tir.meta_schedule"), "handlers", [])
    builder, runner = measuring
    made = ms.SearchStrategy.create(strategy) if strategy != "evolutionary" else _small_evolution()
    space = ms.space_generator.ScheduleFn(
        schedule_fn(target), sch_rules=[], postprocs=[], mutator_probs={MutateKnob(): 1.0}
    )
    with without_tensor_intrinsics():
        database = ms.tune_tir(
            tvm.IRModule({"main": softmax().with_attr("global_symbol", "main")}),
            target,
            str(tmp_path),
            max_trials_global=4,
            num_trials_per_iter=4,
            builder=builder,
            runner=runner,
            cost_model="random",
            strategy=made,
            task_scheduler=scheduler,
            space=space,
            num_tuning_cores=1,
            seed=1,
        )
    records = database.get_all_tuning_records()
    assert records
    space = Space.of(softmax(), target)
    for record in records:
        sch = Schedule(record.workload.mod)
        record.trace.apply_to_schedule(sch, remove_postproc=False)
        found = sch.mod["main"].without_attr("global_symbol")
        ours = (space.build(p).mod["main"].without_attr("global_symbol") for p in space.points())
        assert any(tvm_ffi.structural_equal(found, func) for func in ours)


def _small_evolution():
    return ms.search_strategy.EvolutionarySearch(population_size=8, init_min_unmeasured=4)


@pytest.fixture(scope="module")
def measuring():
    builder = ExecutorBuilder()
    yield (
        builder,
        ms.runner.LocalRunner(
            timeout_sec=60, evaluator_config=ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
        ),
    )
    builder.close()


def test_spaces_can_be_united(target):
    union = ms.space_generator.SpaceGeneratorUnion(
        [plain_space(target), plain_space(target)], sch_rules=[], postprocs=[], mutator_probs={}
    )
    with without_tensor_intrinsics():
        context = ms.TuneContext(mod=softmax(), target=target, space_generator=union)
    designs = union.generate_design_space(context.mod)
    assert len(designs) == 2 * len(Space.of(softmax(), target).options)


def test_a_function_without_a_space_is_refused(target):
    with pytest.raises(ValueError, match="no design space"):
        schedule_fn(target, rules=[dl.cpu.Matmul()])(Schedule(softmax()))


def test_features_are_the_same_number_for_every_point(target):
    space, others = Space.of(softmax(), target), Space.of(other(), target)
    features = Features(space)
    rows = [features.of(point) for point in list(space.points())[:5]]
    assert len({len(row) for row in rows}) == 1
    assert len({tuple(row) for row in rows}) == 5
    assert len(Features(others).of(others.default)) == len(rows[0])
    m = tvm.tirx.Var("m", "int64")
    x = te.placeholder((m, 64), name="x")
    symbolic = Space.of(te.create_prim_func([x, topi.exp(x)]), target)
    assert len(Features(symbolic).of(symbolic.default)) == len(rows[0])
    assert any(rows[0][:100])


def test_the_mutator_moves_one_decision(target):
    space = Space.of(softmax(), target)
    trace = space.build(space.default, tunable=True).trace
    mutator = MutateKnob(seed=5)
    before = {i: int(trace.decisions[i]) for i in trace.insts if i.kind.name == CATEGORICAL}
    seen = set()
    for _ in range(20):
        moved = mutator.apply(trace)
        after = [int(moved.decisions[i]) for i in moved.insts if i.kind.name == CATEGORICAL]
        assert sum(a != b for a, b in zip(after, before.values())) == 1
        seen.add(tuple(after))
    assert len(seen) > 1
    assert MutateKnob(seed=5).clone().apply(trace) is not None
    plain = Space.of(softmax(), target).build(space.default).trace
    assert mutator.apply(plain) is None


def test_rules_serve_its_schedule_fn_database(target, folder):
    mod = tvm.IRModule({"main": softmax().with_attr("global_symbol", "main")})
    for database, expected in (
        (None, dl.cpu.Reduction().apply(softmax(), target, False).mod["main"]),
        (folder, tuned(target)),
    ):
        served = ms.database.ScheduleFnDatabase(as_schedule_fn(target, database=database))
        found = served.query_ir_module(mod, target, "main")["main"]
        assert tvm_ffi.structural_equal(
            found.without_attr("global_symbol"), expected.without_attr("global_symbol")
        )
    none = ms.database.ScheduleFnDatabase(as_schedule_fn(target, rules=[dl.cpu.Matmul()]))
    assert none.query_ir_module(mod, target, "main") is None


def test_its_pass_applies_our_winners(target, folder):
    from tvm import relax

    mod = tvm.IRModule({"softmax": softmax(), "other": other()})
    with target, dl.tune.database(folder):
        after = relax.transform.MetaScheduleApplyDatabase()(mod)
    assert tvm_ffi.structural_equal(
        after["softmax"].without_attr("tirx.is_scheduled"), tuned(target).without_attr("tirx.is_scheduled")
    )
    assert tvm_ffi.structural_equal(after["other"], mod["other"])
    with tvm.target.Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 3}), dl.tune.database(folder):
        elsewhere = relax.transform.MetaScheduleApplyDatabase()(mod)
    assert tvm_ffi.structural_equal(elsewhere, mod)


def test_our_database_can_be_united_with_its_own(target, folder):
    mod = tvm.IRModule({"main": softmax().with_attr("global_symbol", "main")})
    ours = KnobDatabase(folder)
    assert len(ours) == 1
    with target:
        assert ours.has_workload(mod)
        assert not ours.has_workload(tvm.IRModule({"main": other()}))
        assert len(ours.get_top_k(ours.commit_workload(mod), 3)) == 1
    with pytest.raises(Exception, match="for reading"):
        ours.commit_tuning_record(ours.query_tuning_record(mod, target, "main"))
    for kind in ("union", "ordered_union"):
        united = ms.database.Database.create(kind, ms.database.MemoryDatabase(), ours)
        found = united.query_ir_module(mod, target, "main")
        assert tvm_ffi.structural_equal(
            found["main"].without_attr("global_symbol"), tuned(target).without_attr("global_symbol")
        )


def test_winners_can_be_written_as_its_json_database(target, folder, tmp_path):
    mod = tvm.IRModule({"main": softmax().with_attr("global_symbol", "main"), "other": other()})
    assert export_json(folder, mod, target, tmp_path / "json") == 1
    database = ms.database.JSONDatabase(work_dir=str(tmp_path / "json"))
    found = database.query_ir_module(tvm.IRModule({"main": mod["main"]}), target, "main")
    assert tvm_ffi.structural_equal(
        found["main"].without_attr("global_symbol"), tuned(target).without_attr("global_symbol")
    )


def test_a_board_behind_a_tracker(target, measuring):
    pytest.importorskip("tornado")
    from tvm.rpc import Server
    from tvm.rpc.tracker import Tracker

    tracker = Tracker("127.0.0.1", port=9190, port_end=9290, silent=True)
    address = f"127.0.0.1:{tracker.port}"
    try:
        with pytest.raises(MeasureError, match="no board under the key 'board'"):
            rpc_runner(address, "board")
        server = Server("127.0.0.1", key="board", tracker_addr=("127.0.0.1", tracker.port), silent=True)
        try:
            tasks, _ = extract_tasks(tvm.IRModule({"main": softmax()}), target)
            with Measurer(measuring[0], rpc_runner(address, "board")) as measurer:
                assert measurer.remote
                point = tasks[0].space.default
                (measured,) = measurer.measure(tasks[0], [point])
        finally:
            server.terminate()
    finally:
        tracker.terminate()
    assert measured.error == ""
    assert measured.seconds[0] > 0


def test_intrinsics_are_parsed_where_they_are_wanted():
    import sys

    name = "tvm.s_tir.tensor_intrin"
    loaded = sys.modules.pop(name, None)
    with without_tensor_intrinsics():
        assert sys.modules[name].__file__ is None if hasattr(sys.modules[name], "__file__") else True
    assert name not in sys.modules
    if loaded is not None:
        sys.modules[name] = loaded
        with without_tensor_intrinsics():
            assert sys.modules[name] is loaded


def test_local_runner_measures_cold_caches(target, measuring, monkeypatch):
    runner = measuring[1]
    monkeypatch.setattr(runner._inst, "evaluator_config", evaluator(cold_cache=True))
    assert runner.evaluator_config.enable_cpu_cache_flush
    tasks, _ = extract_tasks(tvm.IRModule({"main": softmax()}), target)
    with Measurer(measuring[0], runner) as measurer:
        (measured,) = measurer.measure(tasks[0], [tasks[0].space.default])
    assert measured.error == ""
