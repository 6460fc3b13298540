# SPDX-License-Identifier: Apache-2.0
"""Every Relax operator with a TensorIR form: scheduled by a rule, and equal to what plain TVM computes."""

from __future__ import annotations

import pytest
import tvm
from relax_cases import Case, check, compile_plain, module_of, run_function
from relax_ops import EXCLUDED, FAMILIES, OPAQUE, empty
from tvm import relax

import autotir_dlight as dl
from autotir_dlight.verify import compare

# Functions that share one module: most of the time of a small compilation is the same for one as for many.
BATCH = 24

ALL = {family: make() for family, make in FAMILIES.items()}


def fallback_group(case: Case) -> str:
    """The group of the cases that may end in the Fallback rule, ``""`` for those that must not."""
    if case.op in OPAQUE:
        return case.op
    return "empty" if any(0 in spec.dims for spec in case.inputs) else ""


def batches() -> dict[str, list[Case]]:
    """The cases in groups: up to :data:`BATCH` of a family, and those that may fall back."""
    groups: dict[str, list[Case]] = {}
    for family, cases in ALL.items():
        possible = [c for c in cases if not c.upstream]
        clear = [c for c in possible if not fallback_group(c)]
        for start in range(0, len(clear), BATCH):
            groups[f"{family}-{start // BATCH}"] = clear[start : start + BATCH]
        for case in possible:
            if fallback_group(case):
                groups.setdefault(fallback_group(case), []).append(case)
    return groups


BATCHES = batches()
UPSTREAM = [case for cases in ALL.values() for case in cases if case.upstream]


def legalised_operators() -> set[str]:
    """The Relax operators that TVM has a legalisation of, without ``relax.``."""
    names = [str(name) for name in tvm.ir.Op.list_op_names() if str(name).startswith("relax.")]
    return {n.removeprefix("relax.") for n in names if tvm.ir.Op.get(n).get_attr("FLegalize") is not None}


def test_every_operator_has_cases_or_a_reason():
    operators = legalised_operators()
    covered = {case.op for cases in ALL.values() for case in cases}
    assert len(operators) > 150
    assert operators - covered - set(EXCLUDED) == set()
    assert set(EXCLUDED) - operators == set()
    assert covered & set(EXCLUDED) == set()


def test_every_operator_has_three_shapes_one_of_them_dynamic():
    shapes: dict[str, set[tuple[tuple[int | str, ...], ...]]] = {}
    for cases in ALL.values():
        for case in cases:
            shapes.setdefault(case.op, set()).add(tuple(spec.dims for spec in case.inputs))
    dynamic = {
        op for op, found in shapes.items() if any(isinstance(d, str) for s in found for x in s for d in x)
    }
    assert {op: len(found) for op, found in shapes.items() if len(found) < 3} == {}
    assert set(shapes) - dynamic == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_scheduled_equals_unscheduled(name, target):
    cases = BATCHES[name]
    outcome = check(cases, target)
    assert not outcome.failed, f"\n{outcome}"
    assert outcome.impossible == {}
    if fallback_group(cases[0]):
        assert outcome.fallback, f"{name} never falls back: hold it to that"
    else:
        assert outcome.fallback == set()


@pytest.mark.parametrize("case", UPSTREAM, ids=lambda case: case.id)
def test_what_is_marked_as_impossible_fails_without_schedules_too(case, target):
    with pytest.raises(Exception):  # noqa: B017  whatever TVM raises
        compile_plain([case], target)


def test_reductions_of_nothing(target):
    cases = empty()
    built = tvm.compile(module_of(cases, target), target, relax_pipeline=dl.pipeline(target))
    machine = relax.VirtualMachine(built, tvm.cpu())
    for position, case in enumerate(cases):
        for run in case.runs:
            arrays = case.arrays(run)
            want = arrays[0] @ arrays[1] if case.op == "matmul" else arrays[0].sum(1)
            (got,) = run_function(machine, f"case{position}", arrays)
            assert compare(case.id, "output", {"run": run}, want, got, 1e-5).ok


def test_a_failure_is_reported_of_its_case_alone(target):
    """The harness must see a wrong result, and name the case that has it."""

    def different(x):
        different.count += 1
        return relax.op.add(x, relax.const(float(different.count), "float32"))

    different.count = 0
    good = ALL["unary"][:2]
    bad = Case("add", good[0].inputs, different, "grows on each build")
    outcome = check([good[0], bad, good[1]], target)
    assert list(outcome.failed) == [bad.id]
    assert "elements differ" in outcome.failed[bad.id]


def test_a_rule_that_fails_is_a_failure_of_its_case(target, monkeypatch):
    def broken(self, sch, match, plan, draw):
        raise ValueError("broken on purpose")

    monkeypatch.setattr(dl.cpu.Reduction, "schedule", broken)
    cases = [next(c for c in ALL["reductions"] if c.op == "sum"), ALL["unary"][1]]
    outcome = check(cases, target)
    assert list(outcome.failed) == [cases[0].id]
    assert "broken on purpose" in outcome.failed[cases[0].id]
