# SPDX-License-Identifier: Apache-2.0
"""Every plan of every rule computes what the function computes without a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import corpus
import numpy as np
import pytest
import tvm
from corpus import WORKLOADS, Case

import autotir_dlight as dl
from autotir_dlight.cpu import blocking
from autotir_dlight.errors import RuleBug
from autotir_dlight.rule import Reject
from autotir_dlight.verify import run_primfunc

RULES = [dl.cpu.Conv, dl.cpu.Matmul, dl.cpu.GEMV, dl.cpu.Reduction, dl.cpu.Elementwise, dl.cpu.Fallback]
# Without a schedule a reduction over nothing leaves its result unwritten: there is nothing to compare with.
UNWRITTEN = [
    *((name, "no depth") for name in ("matmul nn", "matmul nt", "matmul bias relu")),
    *((name, "zero") for name in ("gemv kn", "sum of rows", "sum of all", "mean of all")),
]


@pytest.fixture(scope="module")
def target():
    return dl.host_target()


def compile_plain(functions: dict[str, Any], target: Any) -> Any:
    """The functions without schedules; only their numbers are wanted, so LLVM does not optimise."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.compile(tvm.IRModule(named), target=tvm.target.Target({**target.export(), "opt-level": 0}))


def all_plans(case: Case, func: Any, target: Any, patch: pytest.MonkeyPatch) -> dict[Any, dict[str, Any]]:
    """Plan -> rule and decision, of all rules, with few and with many threads worth their start."""
    found: dict[Any, dict[str, Any]] = {}
    for least in (blocking.PARALLEL_MIN_CYCLES, 0):
        with patch.context() as inside:
            inside.setattr(blocking, "PARALLEL_MIN_CYCLES", least)
            for rule in (kind() for kind in reversed(RULES)):
                decision = rule.decide(func, target)
                if isinstance(decision, Reject):
                    continue
                for plan in decision.plans:
                    found.setdefault(plan, {"rule": rule, "decision": decision})
    assert found, f"no rule has a plan for {case.id}"
    return found


def identifier(case: Case, position: int) -> str:
    return re.sub(r"\W", "_", f"{case.id}_{position}")


def variants(case: Case, target: Any, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, Any, str]]:
    """Name, function, scheduled function and complaint, for each plan of a case."""
    func = case.build()
    for position, (plan, how) in enumerate(all_plans(case, func, target, patch).items()):
        name = identifier(case, position)
        try:
            yield name, func, how["rule"].build(func, how["decision"], plan).mod["main"], ""
        except RuleBug as bug:
            yield name, func, None, f"{case.id}: {bug}"


def cases_of(name: str) -> list[Case]:
    return [c for c in corpus.cases() if c.workload.name == name and (name, c.kind) not in UNWRITTEN]


@pytest.mark.parametrize("name", [w.name for w in WORKLOADS])
def test_every_plan_computes_what_the_function_does(name, target, monkeypatch):
    plain: dict[str, Any] = {}
    scheduled: dict[str, Any] = {}
    complaints = []
    for case in cases_of(name):
        for variant, before, after, complaint in variants(case, target, monkeypatch):
            if complaint:
                complaints.append(complaint)
            else:
                plain[variant], scheduled[variant] = before, after
    report = dl.verify(compile_plain(plain, target), tvm.IRModule(scheduled), target)
    complaints += [str(entry) for entry in report.entries if not entry.ok]
    assert not complaints, "\n".join(complaints)
    assert {entry.function for entry in report.entries} == set(scheduled)
