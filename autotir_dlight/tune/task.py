# SPDX-License-Identifier: Apache-2.0
"""What there is to tune in a module: its different functions, and how often each is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._tvm import IRModule, ScheduleRule, Target, ir, relax, structural_walk, tirx
from ..apply import IS_SCHEDULED, function_target
from ..element_ranges import symbols
from ..rule import Reject
from .keys import Key, key_of
from .space import Space

# Values at which a function with symbolic extents is measured where the caller names none.
REPRESENTATIVE = (1, 16, 128)


@dataclass(frozen=True)
class Task:
    """One function to tune.

    Attributes
    ----------
    name : the function's name in the module; the first of several alike
    space : its design space
    key : what it computes
    calls : how often the module's Relax functions call it, 1 in a module that has none
    extents : the choices of symbolic extents that it is measured at; one empty choice where it has none
    """

    name: str
    space: Space
    key: Key
    calls: int
    extents: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class Skipped:
    """A function that is not tuned, and why."""

    name: str
    reason: str


def extract_tasks(
    mod: IRModule,
    target: Target,
    rules: Sequence[ScheduleRule] | None = None,
    extents: Mapping[str, Sequence[int]] | None = None,
) -> tuple[list[Task], list[Skipped]]:
    """The tasks of a module of (fused) TensorIR functions, those that take most calls first.

    ``extents`` gives by name the values that symbolic extents are measured at (default: 1, 16, 128);
    functions that compute the same at the same extents are one task.
    """
    calls = _calls(mod)
    tasks: dict[Key, Task] = {}
    skipped: list[Skipped] = []
    for var, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if not isinstance(func, tirx.PrimFunc):
            continue
        times = calls[var.name_hint] if calls else 1
        made = _task(var.name_hint, func, target, times, rules, extents or {})
        if isinstance(made, Skipped):
            skipped.append(made)
        elif made.key in tasks:
            known = tasks[made.key]
            tasks[made.key] = replace(known, calls=known.calls + times)
        else:
            tasks[made.key] = made
    return sorted(tasks.values(), key=lambda task: -task.calls), skipped


def _task(
    name: str,
    func: Any,
    target: Target,
    calls: int,
    rules: Sequence[ScheduleRule] | None,
    extents: Mapping[str, Sequence[int]],
) -> Task | Skipped:
    if func.attrs and func.attrs.get(IS_SCHEDULED):
        return Skipped(name, "it is scheduled already")
    if not calls:
        return Skipped(name, "nothing calls it")
    with target:
        target = function_target(func)
    space = Space.of(func, target, rules)
    if isinstance(space, Reject):
        return Skipped(name, space.reason)
    if space.size < 2:
        return Skipped(name, "it has one schedule to choose from")
    return Task(name, space, key_of(space.view), calls, representative(func, extents))


def representative(func: Any, extents: Mapping[str, Sequence[int]]) -> tuple[dict[str, int], ...]:
    """The choices of symbolic extents: the k-th of each name's values together."""
    names = list(dict.fromkeys(var.name for var in symbols(func)))
    if not names:
        return ({},)
    given = [tuple(extents.get(name, REPRESENTATIVE)) for name in names]
    count = max(len(values) for values in given)
    return tuple(
        {name: int(values[min(k, len(values) - 1)]) for name, values in zip(names, given)}
        for k in range(count)
    )


def _calls(mod: IRModule) -> Counter[str]:
    """How often Relax functions call each TensorIR function; empty for a module without Relax functions."""
    counted: Counter[str] = Counter()
    call_tir = ir.Op.get("relax.call_tir")

    def on_call(call: Any) -> None:
        if call.op == call_tir or str(getattr(call.op, "name", "")) == "relax.call_tir_inplace":
            counted[call.args[0].name_hint] += 1

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            structural_walk(func, [(ir.Call, on_call)])
    return counted
