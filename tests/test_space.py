# SPDX-License-Identifier: Apache-2.0
"""A plan's design space: its default is the default schedule, and every choice in it is a right schedule."""

from __future__ import annotations

import json
import re

import corpus
import pytest
import tvm
import tvm_ffi
from corpus import WORKLOADS
from tvm import te, topi

import autotir_dlight as dl
from autotir_dlight.knobs import knob_values, knobs_of, map_knobs, override_knobs
from autotir_dlight.rule import Reject

RULES = [dl.cpu.Conv, dl.cpu.Matmul, dl.cpu.GEMV, dl.cpu.Reduction, dl.cpu.Elementwise, dl.cpu.Fallback]
# Plans of every kind that has knobs: elementwise with and without a ragged end, rows, a product's rows.
TUNED = [
    ("add relu", "aligned"),
    ("add relu", "prime"),
    ("add relu", "dynamic"),
    ("broadcast", "long"),
    ("transpose", "prime"),
    ("sum of rows", "aligned"),
    ("sum of rows", "long"),
    ("sum of rows", "dynamic"),
    ("softmax", "aligned"),
    ("gemv nk", "long"),
]


@pytest.mark.parametrize("name", [w.name for w in WORKLOADS])
def test_the_space_at_its_default_is_the_default_schedule(name, target):
    taken = 0
    for case in (c for c in corpus.cases() if c.workload.name == name):
        func = case.build()
        for rule in (kind() for kind in RULES):
            decision = rule.decide(func, target)
            space = rule.apply(func, target, tunable=True)
            if isinstance(decision, Reject):
                assert space is None
                assert rule.apply(func, target, tunable=False) is None
                continue
            taken += 1
            assert len(space) == len(decision.plans)
            for plan, tuned in zip(decision.plans, space):
                default = rule.build(func, decision, plan, tunable=False)
                assert tvm_ffi.structural_equal(tuned.mod, default.mod), f"{case.id}: {rule.name} {plan}"
            first = rule.apply(func, target, tunable=False)
            assert tvm_ffi.structural_equal(first.mod, space[0].mod), f"{case.id}: {rule.name}"
    assert taken


def samples(sch):
    return [inst for inst in sch.trace.insts if inst.kind.name.startswith("Sample")]


@pytest.mark.parametrize("name", [w.name for w in WORKLOADS])
def test_every_knob_is_drawn(name, target):
    """A knob of the plan that the schedule never asks for would be tuned and overridden in vain."""
    rule = dl.cpu.Fallback()
    for case in (c for c in corpus.cases() if c.workload.name == name and c.dtype == "float32"):
        func = case.build()
        plans = rule.decide(func, target).plans
        for plan, sch in zip(plans, rule.apply(func, target, tunable=True)):
            assert len(samples(sch)) == len(knobs_of(plan)), f"{case.id}: {plan}"


@pytest.mark.parametrize(("name", "kind"), TUNED)
def test_a_knob_is_drawn_with_its_choices_and_the_trace_can_be_saved(name, kind, target):
    func = corpus.func(name, kind)
    rule = dl.cpu.Fallback()
    decision = rule.decide(func, target)
    drawn = 0
    for plan, sch in zip(decision.plans, rule.apply(func, target, tunable=True)):
        knobs = knobs_of(plan)
        found = [tuple(int(c) for c in inst.attrs[0]) for inst in samples(sch)]
        assert sorted(found) == sorted(k.choices for k in knobs.values()), plan
        default = [int(sch.trace.decisions[inst]) for inst in samples(sch)]
        assert [f[d] for f, d in zip(found, default)] == [k.value for k in knobs.values()]
        assert json.dumps(tvm_ffi.core.String(str(sch.trace.as_json())))
        drawn += len(knobs)
    assert drawn, "the case has no knob: take another"


def two_chains():
    """Two reductions, each with a nest of its own after it: four stages' knobs with one name."""
    x = te.placeholder((64, 1000), name="x")
    total = topi.sqrt(topi.sum(x, 1, keepdims=True))
    return te.create_prim_func([x, total, topi.exp(topi.max(topi.subtract(x, total), 1))])


def test_knobs_of_one_plan_have_different_names(target):
    """Each can be overridden alone; none hides another."""
    functions = [two_chains(), *(c.build() for c in corpus.cases() if c.dtype == "float32")]
    several = 0
    for func in functions:
        for plan in dl.cpu.Fallback().decide(func, target).plans:
            seen = []
            map_knobs(plan, lambda name, knob, seen=seen: seen.append(name) or knob)
            assert len(set(seen)) == len(seen) == len(knobs_of(plan)), seen
            for name in seen:
                moved = [
                    k.name for k in knob_values(override_knobs(plan, {name: 1})) if k.source == "override"
                ]
                assert moved == [name]
            several += len(seen) > 3
    assert several


@pytest.mark.parametrize(("name", "kind"), TUNED)
def test_every_choice_of_a_knob_computes_the_same(name, kind, target):
    func = corpus.func(name, kind)
    rule = dl.cpu.Fallback()
    decision = rule.decide(func, target)
    before, after = {}, {}
    for position, plan in enumerate(decision.plans):
        for key, knob in knobs_of(plan).items():
            for choice in knob.choices:
                scheduled = rule.build(func, decision, override_knobs(plan, {key: choice})).mod["main"]
                variant = re.sub(r"\W", "_", f"plan{position}_{key}_{choice}")
                before[variant], after[variant] = func, scheduled
    quick = tvm.target.Target({**target.export(), "opt-level": 0})
    report = dl.verify(tvm.IRModule(before), tvm.IRModule(after), quick)
    assert report.ok, str(report)
    assert len(after) > 1
