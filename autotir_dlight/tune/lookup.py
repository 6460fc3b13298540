# SPDX-License-Identifier: Apache-2.0
"""What a database says of a function: which of its rules' plans, and the knobs' values."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._tvm import ScheduleRule, Target
from ..blocks import FuncView
from ..rule import Decision, Reject, Rule, plan_structure
from .keys import Key, key_of, machine_key, machine_name
from .space import Option, Point, Space

if TYPE_CHECKING:
    from .records import Record

# How far extents may be from those of a record that is transferred: the mean ratio of the extents.
TRANSFER_RATIO = 8.0


@dataclass(frozen=True)
class TunedChoice:
    """A plan with its knobs set by a record; ``note`` says in a few words where it comes from."""

    rule: Rule
    decision: Decision
    plan: Any
    note: str


class TunedPlans:
    """The winners of a tuning database, ready to be asked for functions.

    Parameters
    ----------
    folder : the database's folder, which must exist
    any_machine : also apply what was tuned for other machines than the target's
    transfer : also apply the record of the nearest extents where a function has none of its own; that was
        never measured at the function's extents, so it may be slower than the default

    The records are read once, when this is made. Raises
    :class:`~autotir_dlight.tune.records.DatabaseError` where the folder holds no readable database.
    """

    def __init__(
        self, folder: str | os.PathLike[str], any_machine: bool = False, transfer: bool = False
    ) -> None:
        # SQLite is loaded where there is a database.
        from .records import Database

        self.any_machine, self.transfer = any_machine, transfer
        self._by_pattern: dict[str, list[Record]] = {}
        for record in Database(folder, read_only=True).records("best"):
            self._by_pattern.setdefault(record.pattern, []).append(record)

    @classmethod
    def of(cls, database: str | os.PathLike[str] | TunedPlans) -> TunedPlans:
        """``database`` itself, or the winners in that folder."""
        return database if isinstance(database, TunedPlans) else cls(database)

    def __len__(self) -> int:
        return sum(len(records) for records in self._by_pattern.values())

    def choose(
        self, func: Any, target: Target, view: FuncView, rules: Sequence[ScheduleRule]
    ) -> TunedChoice | None:
        """What to do with the (normalised) function; ``None`` where no record fits it."""
        key = key_of(view)
        if key.pattern not in self._by_pattern:
            return None
        record = self.record(key, target)
        space = Space.of(func, target, rules) if record is not None else None
        if record is None or space is None or isinstance(space, Reject):
            return None
        point = point_of(space, record)
        if point is None:
            return None
        option = space.options[point.plan]
        same = record.extents == key.extents
        how = "tuned" if same else f"tuned at extents {list(record.extents)}"
        return TunedChoice(option.rule, option.decision, space.plan(point), how)

    def record(self, key: Key, target: Target) -> Record | None:
        """The newest winner for exactly these extents, else with ``transfer`` the nearest one."""
        machine = machine_key(target)
        known = [
            r
            for r in self._by_pattern.get(key.pattern, [])
            if (self.any_machine or r.machine == machine) and r.dtype == key.dtype
        ]
        exact = [r for r in known if r.extents == key.extents]
        if exact:
            return max(exact, key=lambda r: (r.machine == machine, r.created))
        near = [(extent_ratio(r.extents, key.extents), -r.created, r) for r in known] if self.transfer else []
        best = min(near, key=lambda entry: entry[:2], default=None)
        return best[2] if best is not None and best[0] <= TRANSFER_RATIO else None


def existing(database: str | os.PathLike[str] | TunedPlans) -> Any:
    """``database``, once it is clear that it can be read.

    Raises :class:`~autotir_dlight.tune.records.DatabaseError` where it is missing or damaged.
    """
    if not isinstance(database, TunedPlans):
        from .records import Database

        Database(database, read_only=True)
    return database


def extent_ratio(one: Sequence[int | None], two: Sequence[int | None]) -> float:
    """The mean ratio (at least 1) of extents that differ; a symbolic one counts as alike; infinite where the
    numbers of iterators differ."""
    if len(one) != len(two):
        return math.inf
    pairs = [(a, b) for a, b in zip(one, two) if a is not None and b is not None and a != b]
    if any(min(pair) < 1 for pair in pairs):
        return math.inf
    logs = [abs(math.log(a / b)) for a, b in pairs]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def plan_facts(option: Option) -> dict[str, Any]:
    """A plan as a record names it: the kinds of its stages and its structure; costs are no part of it."""
    title = str(getattr(option.plan, "title", "") or type(option.plan).__name__)
    structure = plan_structure(option.plan)
    kept = {k: v for k, v in structure.items() if k.rpartition(".")[2] not in ("cost", "kind")}
    return {"title": title, "structure": kept}


def point_of(space: Space, record: Record) -> Point | None:
    """The point of ``space`` that is most like what the record says: the same rule, version and kinds of
    stages, then the most fields of the structure alike; ``None`` where no plan is of these kinds.

    At the record's own extents the structure must be alike in all fields.
    """
    same_extents = key_of(space.view).extents == record.extents
    wanted = record.plan.get("structure", {})
    ranked: list[tuple[int, int]] = []
    for position, option in enumerate(space.options):
        facts = plan_facts(option)
        if option.rule.name != record.rule or option.rule.version != record.rule_version:
            continue
        if facts["title"] != record.plan.get("title"):
            continue
        if same_extents and facts["structure"] != wanted:
            continue
        alike = sum(wanted.get(name) == value for name, value in facts["structure"].items())
        ranked.append((-alike, position))
    if not ranked:
        return None
    return space.point(min(ranked)[1], {str(k): int(v) for k, v in record.knobs.items()})


def record_of(space: Space, point: Point, key: Key) -> dict[str, Any]:
    """The fields of a record that name the function, the machine and the point."""
    option = space.options[point.plan]
    return {
        "rule": option.rule.name,
        "rule_version": option.rule.version,
        "plan": plan_facts(option),
        "knobs": space.values(point),
        "pattern": key.pattern,
        "dtype": key.dtype,
        "extents": key.extents,
        "machine": machine_key(space.target),
        "machine_name": machine_name(space.target),
    }
