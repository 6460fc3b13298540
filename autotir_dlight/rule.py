# SPDX-License-Identifier: Apache-2.0
"""A rule: ``match -> plans -> schedule``, three parts that never mix.

``match`` reads, ``plans`` does integer arithmetic, ``schedule`` transforms. A new rule subclasses
:class:`Rule` and writes the three; everything else (overrides, the report, upstream's interface, the design
space) comes with the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from . import settings
from ._tvm import Schedule, ScheduleRule, Target
from .blocks import FuncView
from .errors import RuleBug
from .knobs import Draw, constant, nested_prefix, override_knobs, sampler
from .machine import CpuMachine


@dataclass(frozen=True)
class Reject:
    """Why a rule does not take a function, and which block or iterator stands in the way."""

    reason: str
    where: str = ""


@dataclass(frozen=True)
class Decision:
    """A match with its ranked plans; the first plan is the default."""

    match: Any
    plans: tuple[Any, ...]

    @property
    def plan(self) -> Any:
        return self.plans[0]


class Rule(ScheduleRule):
    """Base of every rule of this package; also a rule for ``tvm.s_tir.dlight.ApplyDefaultSchedule``.

    Subclasses set ``name`` (as in ``AUTOTIR_PLAN`` and the report) and write :meth:`match`, :meth:`plans`
    and :meth:`schedule`. ``version`` goes up when a plan or knob of the same name comes to mean something
    else: tuning records of other versions are then not applied.
    """

    name: ClassVar[str] = "Rule"
    version: ClassVar[int] = 1
    knob_names: ClassVar[frozenset[str] | None] = None

    def match(self, view: FuncView, machine: CpuMachine) -> Any | Reject:
        """What the function computes, or a :class:`Reject`. Reads only."""
        raise NotImplementedError

    def plans(self, match: Any, machine: CpuMachine) -> Sequence[Any] | Reject:
        """The ways to schedule ``match``, best first. Integer arithmetic only."""
        raise NotImplementedError

    def schedule(self, sch: Schedule, match: Any, plan: Any, draw: Draw) -> None:
        """Transform ``sch`` by ``plan``. Must succeed on whatever :meth:`match` took."""
        raise NotImplementedError

    def describe(self, match: Any) -> dict[str, Any]:
        """What was recognised, for the report: operator, dtypes, extents, epilogue."""
        return {}

    def is_target_available(self, target: Target) -> bool:
        """Whether the rule schedules for this kind of target."""
        return target.kind.name in ("llvm", "c")

    def decide(self, func: Any, target: Target, view: FuncView | None = None) -> Decision | Reject:
        """Match ``func`` and rank the plans, with the user's overrides applied."""
        if not self.is_target_available(target):
            return Reject(f"the rule is for CPUs and the target is {target.kind.name}")
        machine = machine_of(target)
        match = self.match(FuncView.of(func) if view is None else view, machine)
        if isinstance(match, Reject):
            return match
        plans = self.plans(match, machine)
        if isinstance(plans, Reject):
            return plans
        wanted = settings.current().plan.get(self.name, {})
        self._check_overrides(wanted)
        return Decision(match, tuple(override_knobs(p, wanted) for p in plans))

    def _check_overrides(self, wanted: Mapping[str, int]) -> None:
        """Raise ``ValueError`` for a knob that is not in ``knob_names`` (where the rule gives them)."""
        if self.knob_names is None:
            return
        unknown = sorted(k for k in wanted if k.rpartition(".")[2] not in self.knob_names)
        if unknown:
            known = ", ".join(sorted(self.knob_names))
            raise ValueError(f"AUTOTIR_PLAN: {self.name} has no knob {', '.join(unknown)}; it has {known}")

    def build(self, func: Any, decision: Decision, plan: Any, tunable: bool = False) -> Schedule:
        """The scheduled function. Raises :class:`RuleBug` where ``schedule`` fails: that is a defect."""
        sch = Schedule(func)
        try:
            self.schedule(sch, decision.match, plan, sampler(sch) if tunable else constant)
        except Exception as err:
            raise RuleBug(self.name, plan, func, err) from err
        return sch

    def apply(self, func: Any, target: Target, tunable: bool) -> Schedule | list[Schedule] | None:
        """Upstream's interface: the default schedule, or with ``tunable`` one schedule a plan."""
        decision = self.decide(func, target)
        if isinstance(decision, Reject):
            return None
        if tunable:
            return [self.build(func, decision, plan, tunable=True) for plan in decision.plans]
        return self.build(func, decision, decision.plan)


_MACHINES: dict[str, CpuMachine] = {}


def machine_of(target: Target) -> CpuMachine:
    """The machine of a target, worked out once a target and process."""
    key = str(target)
    if key not in _MACHINES:
        _MACHINES[key] = CpuMachine.from_target(target)
    return _MACHINES[key]


def plan_structure(plan: Any, prefix: str = "") -> dict[str, Any]:
    """The plain fields of a plan (and of nested plans), for the report."""
    facts: dict[str, Any] = {}
    for item in fields(plan):
        value = getattr(plan, item.name)
        if isinstance(value, (bool, int, str)):
            facts[prefix + item.name] = value
        elif isinstance(value, tuple) and value and all(isinstance(v, (int, str)) for v in value):
            facts[prefix + item.name] = list(value)
        elif isinstance(value, tuple) and any(is_dataclass(v) for v in value):
            nested = [v for v in value if is_dataclass(v)]
            several = len(nested) > 1
            for position, child in enumerate(nested):
                outer = nested_prefix(plan, item.name, prefix)
                facts.update(plan_structure(child, f"{outer}{position}." if several else outer))
    return facts
