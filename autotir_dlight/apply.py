# SPDX-License-Identifier: Apache-2.0
"""The module pass that applies rules to functions, and :func:`explain`, which only reports."""

from __future__ import annotations

import logging
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import settings
from ._tvm import IRModule, PassContext, ScheduleRule, Target, module_pass, tirx
from .blocks import FuncView
from .errors import RuleBug, last_line
from .knobs import knob_values
from .normalise import normalise
from .report import FunctionReport, Report, Verdict
from .rule import Decision, Reject, Rule, plan_structure
from .tune.lookup import TunedPlans, existing

logger = logging.getLogger("autotir_dlight")

IS_SCHEDULED = "tirx.is_scheduled"
# The bugs of rules that were warned of: one warning each, however many functions meet it.
_WARNED: set[str] = set()
# Fused functions have names longer than a file name may be.
MAX_FILE_STEM = 120


@module_pass(opt_level=0, name="autotir.ApplyDefaultSchedule")
class ApplyDefaultSchedule:
    """Schedule every TensorIR function of a module by the first rule that takes it.

    Parameters
    ----------
    *rules : rules in the order in which they are tried, ours, upstream's or the user's own
    database : a directory with tuning records, or :class:`~autotir_dlight.tune.TunedPlans` of one; what they
        say wins over the formulas and loses against ``AUTOTIR_PLAN``; ``None`` uses the formulas alone
    report : a :class:`Report` that is filled with what was decided

    The input module is not changed. Functions marked ``tirx.is_scheduled``, external functions and those
    whose own target no rule serves are left alone. A function's own ``target`` attribute wins over the
    current target; without either, the pass raises ``ValueError``. A rule that fails is a defect: it is
    reported and the next rule is tried, or with ``AUTOTIR_STRICT=1`` a ``RuleBug`` is raised.
    """

    def __init__(
        self,
        *rules: ScheduleRule,
        database: str | Path | TunedPlans | None = None,
        report: Report | None = None,
    ):
        if not rules:
            raise ValueError("ApplyDefaultSchedule needs at least one rule, such as *rules(target)")
        self.rules = list(rules)
        self.database = None if database is None else existing(database)
        self.report = report
        _check_overrides(self.rules)

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module with the scheduled functions."""
        # Read now: a pass before this one may have tuned.
        tuned = None if self.database is None else TunedPlans.of(self.database)
        updated = dict(mod.functions_items())
        entries: list[FunctionReport] = []
        for var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
            if not isinstance(func, tirx.PrimFunc):
                continue
            entry = FunctionReport(var.name_hint)
            scheduled = _schedule_one(func, self.rules, entry, tuned)
            if scheduled is not None:
                updated[var] = scheduled
            entries.append(entry)
            _log(entry)
            _dump(entry, func, scheduled)
        if self.report is not None:
            self.report.functions.extend(entries)
        return IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)


def _check_overrides(rules: list[ScheduleRule]) -> None:
    """Raise ``ValueError`` where AUTOTIR_PLAN names a rule that does not exist: a misspelling most likely."""
    from .rules import RULE_NAMES

    known = RULE_NAMES | {_name(rule) for rule in rules}
    unknown = sorted(set(settings.current().plan) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise ValueError(f"AUTOTIR_PLAN: there is no rule {', '.join(unknown)}; the rules are {names}")


def _log(entry: FunctionReport) -> None:
    """AUTOTIR_DEBUG=1: a line a function; 2 and more: the refusals too."""
    level = settings.current().debug
    if level >= 1:
        logger.warning("%s", entry.line())
    if level >= 2:
        for verdict in entry.rejected:
            logger.warning("  not %s: %s (%s)", verdict.rule, verdict.reason, verdict.where)


def _dump(entry: FunctionReport, before: Any, after: Any | None) -> None:
    """AUTOTIR_DUMP: write the function before and after as TVMScript, and its report."""
    if not settings.current().dump:
        return
    folder = Path(settings.current().dump)
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", entry.function)[:MAX_FILE_STEM]
    (folder / f"{stem}.before.py").write_text(before.script() + "\n")
    if after is not None:
        (folder / f"{stem}.after.py").write_text(after.script() + "\n")
    (folder / f"{stem}.report.json").write_text(Report(functions=[entry]).to_json() + "\n")


def function_target(func: Any) -> Target:
    """The function's own target, else the current one; ``ValueError`` where there is neither."""
    own = func.attrs.get("target") if func.attrs else None
    target = own if own is not None else Target.current(allow_none=True)
    if target is None:
        raise ValueError(
            "no target is known: run the pass inside `with target:` or give the function a target attribute"
        )
    return target


def _schedule_one(
    func: Any, rules: list[ScheduleRule], entry: FunctionReport, tuned: TunedPlans | None = None
) -> Any | None:
    """The scheduled function, or ``None`` where it is left alone; fills ``entry``."""
    if func.attrs and func.attrs.get(IS_SCHEDULED):
        entry.status, entry.note = "left alone", "already scheduled"
        return None
    target = function_target(func)
    start = time.perf_counter()
    func = normalise(func)
    view = FuncView.of(func)
    if tuned is not None:
        scheduled = _apply_tuned(tuned, func, target, view, rules, entry)
        if scheduled is not None:
            entry.seconds = time.perf_counter() - start
            return scheduled.with_attr(IS_SCHEDULED, True)
    for rule in rules:
        if not rule.is_target_available(target):
            entry.rejected.append(Verdict(_name(rule), f"not for targets of kind {target.kind.name}"))
            continue
        scheduled = _try_rule(rule, func, target, view, entry)
        if scheduled is not None:
            entry.seconds = time.perf_counter() - start
            return scheduled.with_attr(IS_SCHEDULED, True)
    entry.seconds = time.perf_counter() - start
    if entry.rejected and all(v.reason.startswith("not for targets") for v in entry.rejected):
        entry.status, entry.note = "left alone", f"no rule serves the target {target.kind.name}"
    return None


def _apply_tuned(
    tuned: TunedPlans, func: Any, target: Target, view: FuncView, rules: list[ScheduleRule], entry: Any
) -> Any | None:
    """The function as the database schedules it; ``None`` where it has nothing for it."""
    choice = tuned.choose(func, target, view, rules)
    if choice is None:
        return None
    try:
        scheduled = choice.rule.build(func, choice.decision, choice.plan).mod["main"]
    except RuleBug as err:
        if settings.current().strict:
            raise
        logger.warning("the tuned plan of %s fails, the default is taken: %s", entry.function, err)
        entry.bugs.append(f"tuned plan: {last_line(err)}")
        return None
    _record(choice.rule, replace(choice.decision, plans=(choice.plan,)), entry)
    entry.note = choice.note
    return scheduled


def _name(rule: ScheduleRule) -> str:
    return rule.name if isinstance(rule, Rule) else type(rule).__name__


def _try_rule(
    rule: ScheduleRule, func: Any, target: Target, view: FuncView, entry: FunctionReport
) -> Any | None:
    strict = settings.current().strict
    try:
        if isinstance(rule, Rule):
            return _apply_ours(rule, func, target, view, entry)
        return _apply_foreign(rule, func, target, entry)
    except Exception as err:
        if strict:
            raise
        message = f"{_name(rule)}: {last_line(err)}"
        if message not in _WARNED:
            _WARNED.add(message)
            logger.warning("%s in function %s; the next rule is tried", message, entry.function)
        if isinstance(err, RuleBug):
            logger.debug("%s", err.details())
        entry.bugs.append(message)
        return None


def _apply_ours(rule: Rule, func: Any, target: Target, view: FuncView, entry: FunctionReport) -> Any | None:
    decision = rule.decide(func, target, view)
    if isinstance(decision, Reject):
        entry.rejected.append(Verdict(rule.name, decision.reason, decision.where))
        return None
    scheduled = rule.build(func, decision, decision.plan).mod["main"]
    _record(rule, decision, entry)
    return scheduled


def _apply_foreign(rule: ScheduleRule, func: Any, target: Target, entry: FunctionReport) -> Any | None:
    space = rule.apply(func, target, False)
    if isinstance(space, list):
        space = space[0] if space else None
    if space is None:
        entry.rejected.append(Verdict(_name(rule), "the rule returned nothing"))
        return None
    entry.status, entry.rule, entry.plan = "scheduled", _name(rule), "the rule's own"
    return space.mod["main"]


def _record(rule: Rule, decision: Decision, entry: FunctionReport) -> None:
    plan = decision.plan
    entry.status, entry.rule = "scheduled", rule.name
    entry.recognised = rule.describe(decision.match)
    entry.plan = getattr(plan, "title", "") or getattr(plan, "kind", type(plan).__name__)
    entry.structure = plan_structure(plan)
    entry.knobs = knob_values(plan)


def run_pass(step: Any, mod: IRModule) -> IRModule:
    """``step(mod)``: TVM's class decorator makes a pass of a class, which a type checker cannot see."""
    return step(mod)


def apply_rules(mod: IRModule, target: Target, rules: list[ScheduleRule], report: Report) -> IRModule:
    """Run the pass on ``mod`` under ``target`` and fill ``report``."""
    with target:
        return run_pass(ApplyDefaultSchedule(*rules, report=report), mod)
