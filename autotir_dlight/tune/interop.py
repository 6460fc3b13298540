# SPDX-License-Identifier: Apache-2.0
"""Meta-schedule's own tools on our rules and records: a database, a mutator, a schedule function."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from .._tvm import IRModule, Schedule, ScheduleRule, Target, structural_equal
from ..blocks import FuncView
from ..knobs import constant, sampler
from ..normalise import normalise
from ..rule import Reject, Rule
from ..rules import rules as default_rules
from .lookup import TunedPlans
from .meta_schedule import (
    ArgInfo,
    MemoryDatabase,
    PyDatabase,
    PyMutator,
    TuningRecord,
    Workload,
    derived_object,
)
from .space import move_choice

CATEGORICAL = "SampleCategorical"


def as_schedule_fn(
    target: Target,
    rules: Sequence[ScheduleRule] | None = None,
    database: str | os.PathLike[str] | TunedPlans | None = None,
) -> Callable[[Schedule], bool]:
    """The rules as a function for ``tvm.s_tir.meta_schedule.database.ScheduleFnDatabase``: schedules what it
    is given in place, and says whether a rule took it.

    A function that has to be brought to a normal form first is not taken: a trace cannot say that.
    """
    chosen = default_rules(target) if rules is None else list(rules)
    tuned = None if database is None else TunedPlans.of(database)

    def schedule(sch: Schedule) -> bool:
        found = _decided(sch.mod["main"], target, chosen, tuned)
        if found is None:
            return False
        rule, decision, plan = found
        rule.schedule(sch, decision.match, plan, constant)
        return True

    return schedule


def _decided(
    func: Any, target: Target, rules: Sequence[ScheduleRule], tuned: TunedPlans | None
) -> tuple[Rule, Any, Any] | None:
    """The rule that takes ``func``, its decision, and the tuned or the default plan."""
    if not structural_equal(normalise(func), func):
        return None
    view = FuncView.of(func)
    choice = tuned.choose(func, target, view, rules) if tuned is not None else None
    if choice is not None:
        return choice.rule, choice.decision, choice.plan
    for rule in rules:
        if isinstance(rule, Rule):
            decision = rule.decide(func, target, view)
            if not isinstance(decision, Reject):
                return rule, decision, decision.plan
    return None


def tuning_record(func: Any, target: Target, tuned: TunedPlans) -> Any | None:
    """A winner as a meta-schedule record whose trace samples the knobs; ``None`` where there is none."""
    if not structural_equal(normalise(func), func):
        return None
    choice = tuned.choose(func, target, FuncView.of(func), default_rules(target))
    if choice is None:
        return None
    sch = Schedule(func)
    choice.rule.schedule(sch, choice.decision.match, choice.plan, sampler(sch))
    workload = Workload(IRModule({"main": func}))
    return TuningRecord(sch.trace, workload, [1.0], target, ArgInfo.from_prim_func(func))


@derived_object
class KnobDatabase(PyDatabase):
    """The winners in a folder as a meta-schedule database for reading.

    Traces are made anew by the rules whenever a function is asked for, for the target that is asked for:
    meta-schedule's own database looks at the function alone and hands out another target's schedules.
    """

    def __init__(self, work_dir: Any) -> None:
        super().__init__()
        self.tuned = TunedPlans.of(work_dir)
        self._workloads: list[Any] = []

    def has_workload(self, mod: IRModule) -> bool:
        """Whether there is a winner for the module's function and the current target."""
        return self.query_tuning_record(mod, Target.current(allow_none=True), "main") is not None

    def commit_workload(self, mod: IRModule) -> Any:
        """The workload itself: nothing is written here."""
        return Workload(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """Refused: records are written by tuning."""
        raise ValueError("this database is for reading: tune with autotir_dlight.tune")

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """The winner, where there is one for the current target."""
        record = self.query_tuning_record(workload.mod, Target.current(allow_none=True), "main")
        return [record][:top_k] if record is not None else []

    def get_all_tuning_records(self) -> list[Any]:
        """None: a winner is known by its function's key, from which the function cannot be had."""
        return []

    def query_tuning_record(self, mod: IRModule, target: Any, _name: str) -> Any | None:
        """The winner for the function of ``mod`` and ``target``."""
        func = mod["main"] if "main" in [v.name_hint for v in mod.get_global_vars()] else None
        return None if func is None or target is None else tuning_record(func, target, self.tuned)

    def query_schedule(self, mod: IRModule, target: Any, name: str) -> Any | None:
        """The same, applied."""
        record = self.query_tuning_record(mod, target, name)
        if record is None:
            return None
        sch = Schedule(mod)
        record.trace.apply_to_schedule(sch, remove_postproc=False)
        return sch

    def query_ir_module(self, mod: IRModule, target: Any, name: str) -> Any | None:
        """The same, as a module."""
        sch = self.query_schedule(mod, target, name)
        return None if sch is None else sch.mod

    def __len__(self) -> int:
        return len(self.tuned)


def export_json(work_dir: Any, mod: IRModule, target: Target, folder: str | os.PathLike[str]) -> int:
    """Write the winners for the functions of ``mod`` as meta-schedule's JSON database; returns how many."""
    from pathlib import Path

    from .._tvm import tirx
    from .meta_schedule import ms

    memory, tuned = MemoryDatabase(), TunedPlans.of(work_dir)
    for _, func in mod.functions_items():
        found = tuning_record(func, target, tuned) if isinstance(func, tirx.PrimFunc) else None
        if found is not None:
            workload = memory.commit_workload(found.workload.mod)
            memory.commit_tuning_record(
                TuningRecord(found.trace, workload, found.run_secs, target, found.args_info)
            )
    Path(folder).mkdir(parents=True, exist_ok=True)
    memory.dump_pruned(ms.database.JSONDatabase(work_dir=str(folder)))
    return len(memory.get_all_tuning_records())


@derived_object
class MutateKnob(PyMutator):
    """Meta-schedule's mutator for ``sample_categorical``, which it has none of: one decision moves to a
    neighbouring choice, now and then to any. For ``mutator_probs={MutateKnob(): 1.0}``."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed, self._random = seed, Random(seed)

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Nothing of the context is needed."""

    def apply(self, trace: Any, _: Any) -> Any | None:
        """The trace with one decision changed; ``None`` where it has none to change."""
        movable = [
            inst
            for inst in trace.insts
            if inst.kind.name == CATEGORICAL and inst in trace.decisions and len(inst.attrs[0]) > 1
        ]
        if not movable:
            return None
        inst = self._random.choice(movable)
        moved = move_choice(int(trace.decisions[inst]), len(inst.attrs[0]), self._random)
        return trace.with_decision(inst, moved, remove_postproc=True)

    def clone(self) -> Any:
        """A mutator of its own with the same seed."""
        return MutateKnob(self._seed)
