# SPDX-License-Identifier: Apache-2.0
"""TVM's own list of operators (``te_workload``): each taken by a rule for it, and right in numbers."""

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.testing import te_workload

import autotir_dlight as dl
from autotir_dlight.blocks import FuncView
from autotir_dlight.cpu.map import SerialPlan
from autotir_dlight.patterns import stage_function
from autotir_dlight.rule import Reject

NAMES = "C1D C2D C3D CAP DEP DIL GMM GRP T2D NRM SFM CBR TBG".split()
CASES = [(name, index) for name in NAMES for index in range(len(te_workload.CONFIGS[name][1]))]
# Cases that without any schedule run for a third of a second to a minute.
HEAVY = {
    *((name, index) for name in ("C3D",) for index in range(4)),
    *(("C2D", 2), ("C2D", 3), ("GMM", 3), ("DIL", 2), ("DIL", 3), ("T2D", 0), ("CBR", 2), ("CBR", 3)),
}
# Iterations of a nest that may stay serial.
LIGHT = 1 << 16


def workload(name, index):
    return te_workload.create_te_workload(name, index)


def volume(func):
    return sum(block.volume() for block in FuncView.of(func).blocks)


def decide(func, target):
    for rule in dl.rules(target):
        decision = rule.decide(func, target)
        if not isinstance(decision, Reject):
            return rule, decision
    raise AssertionError("no rule took the function")


@pytest.mark.parametrize(("name", "index"), CASES)
def test_taken_by_a_rule_for_it(name, index):
    func, target = workload(name, index), dl.host_target()
    rule, decision = decide(func, target)
    assert rule.name != "cpu.Fallback"
    stages = stage_function(FuncView.of(func)).stages
    row_by_row = decision.plan.title == "rowwise"
    for stage, plan in zip(stages, decision.plan.stages, strict=not row_by_row):
        if isinstance(plan, SerialPlan):
            assert stage.anchor.volume() <= LIGHT, f"a heavy nest stays serial: {plan.reason}"
    scheduled = rule.build(func, decision, decision.plan).mod["main"].script()
    if volume(func) > LIGHT * 16:
        assert "T.parallel" in scheduled


def columns_innermost(func):
    """``func`` with the last axis of each reduction's result innermost: as plain, and 40 times faster."""
    schedule = Schedule(func)
    for block in FuncView.of(func).blocks:
        if block.is_reduction:
            loops = schedule.get_loops(schedule.get_sblock(block.name))
            last = block.iters[block.spatial[-1]].loop
            schedule.reorder(*loops[last + 1 :], loops[last])
    return schedule.mod["main"]


@pytest.mark.parametrize(("name", "index"), CASES)
def test_numbers(name, index):
    func = workload(name, index)
    target = dl.host_target()
    with target:
        scheduled = dl.ApplyDefaultSchedule(*dl.rules(target))(tvm.IRModule({"main": func}))
    reference = columns_innermost(func) if (name, index) in HEAVY else func
    report = dl.verify(reference, scheduled, target, rtol=2e-3 if name == "NRM" else None)
    assert report.ok, str(report)


def test_norm_is_nearer_to_float64_than_a_serial_sum():
    func, target = workload("NRM", 0), dl.host_target()
    with target:
        scheduled = dl.ApplyDefaultSchedule(*dl.rules(target))(tvm.IRModule({"main": func}))
    shape = [int(d) for d in func.params[0].shape]
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    out = tvm.runtime.tensor(np.zeros([int(d) for d in func.params[1].shape], "float32"))
    tvm.compile(scheduled, target=target)["main"](tvm.runtime.tensor(x), out)
    exact = np.sqrt((x.astype("float64") ** 2).sum(axis=(1, 2)))
    np.testing.assert_allclose(out.numpy().ravel(), exact.ravel(), rtol=1e-5)
