# SPDX-License-Identifier: Apache-2.0
"""The design space of a function: the plans of every rule that takes it, with the choices of their knobs,
and those of the first rule with other register tiles.

A point is a plan and a value for each of its knobs; the first plan at its knobs' defaults is what
:class:`~autotir_dlight.ApplyDefaultSchedule` takes without tuning. Every point is a right schedule, so a
search only needs to ask which one is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from random import Random
from typing import Any

from .._tvm import Schedule, ScheduleRule, Target
from ..blocks import FuncView
from ..cpu.blocking import tile_rank
from ..knobs import Knob, knobs_of, override_knobs
from ..normalise import normalise
from ..rule import Decision, Reject, Rule
from ..rules import rules as default_rules

# Odds of a change: the plan as a whole, else one knob, mostly to a neighbouring value.
PLAN_ODDS = 0.25
JUMP_ODDS = 0.2

# Register tiles that are looked at, the best by the formula first.
TILES = 8


@dataclass(frozen=True, order=True)
class Point:
    """A place in a space: the plan's position and the position of each knob's value among its choices."""

    plan: int
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Option:
    """One plan of one rule for the function."""

    rule: Rule
    decision: Decision
    plan: Any

    @cached_property
    def knobs(self) -> dict[str, Knob]:
        """The plan's knobs by name; one that the user has set is none."""
        return {name: k for name, k in knobs_of(self.plan).items() if k.source != "override"}

    @property
    def default(self) -> tuple[int, ...]:
        return tuple(k.choices.index(k.value) for k in self.knobs.values())

    def with_values(self, values: dict[str, int]) -> Any:
        """The plan with its knobs set as a database would."""
        return override_knobs(self.plan, values, "database")


@dataclass(frozen=True)
class Space:
    """The points of one function for one target. Build it with :meth:`of`.

    ``func`` is the function in the form that the rules see; ``options`` are its plans, the default first.
    """

    func: Any
    target: Target
    view: FuncView
    options: tuple[Option, ...]

    @classmethod
    def of(cls, func: Any, target: Target, rules: Sequence[ScheduleRule] | None = None) -> Space | Reject:
        """The space of ``func``, or why none of the rules has one for it.

        ``rules`` defaults to those of the target; upstream's and foreign rules have no plans and are passed
        over, unless one of them comes before ours: then ours never gets the function.
        """
        func = normalise(func)
        view = FuncView.of(func)
        options: list[Option] = []
        for rule in default_rules(target) if rules is None else rules:
            if not isinstance(rule, Rule):
                if not options and rule.apply(func, target, False) is not None:
                    return Reject("a rule that is not of this package takes the function")
                continue
            decision = rule.decide(func, target, view)
            if isinstance(decision, Reject):
                continue
            first = not options
            _extend(options, rule, decision)
            for rank in range(1, TILES) if first else ():
                with tile_rank(rank):
                    other = rule.decide(func, target, view)
                if not isinstance(other, Reject):
                    _extend(options, rule, other)
        if not options:
            return Reject("no rule takes the function")
        return cls(func, target, view, tuple(options))

    @property
    def default(self) -> Point:
        """What is scheduled without tuning."""
        return Point(0, self.options[0].default)

    @property
    def size(self) -> int:
        """How many points there are."""
        return sum(prod(len(k.choices) for k in option.knobs.values()) for option in self.options)

    def values(self, point: Point) -> dict[str, int]:
        """The knobs' values at ``point``, by name."""
        knobs = self.options[point.plan].knobs.items()
        return {name: k.choices[at] for (name, k), at in zip(knobs, point.choices, strict=True)}

    def plan(self, point: Point) -> Any:
        """The plan at ``point``."""
        return self.options[point.plan].with_values(self.values(point))

    def point(self, plan: int, values: dict[str, int]) -> Point:
        """The point of a plan whose knobs come nearest to ``values``; a knob not named keeps its default."""
        knobs = self.options[plan].knobs.items()
        return Point(plan, tuple(_nearest(k, values.get(name, k.value)) for name, k in knobs))

    def build(self, point: Point, tunable: bool = False) -> Schedule:
        """The schedule at ``point``; with ``tunable`` its trace samples each knob, decided as there."""
        option = self.options[point.plan]
        return option.rule.build(self.func, option.decision, self.plan(point), tunable)

    def points(self) -> Iterator[Point]:
        """Every point, plan by plan."""
        for position, option in enumerate(self.options):
            sizes = [len(k.choices) for k in option.knobs.values()]
            for number in range(prod(sizes)):
                choices = []
                for size in sizes:
                    number, at = divmod(number, size)
                    choices.append(at)
                yield Point(position, tuple(choices))

    def random(self, rng: Random) -> Point:
        """A random point: any plan, any values."""
        plan = rng.randrange(len(self.options))
        sizes = [len(k.choices) for k in self.options[plan].knobs.values()]
        return Point(plan, tuple(rng.randrange(size) for size in sizes))

    def mutate(self, point: Point, rng: Random) -> Point:
        """A change of ``point``: another plan, or one knob moved to a neighbouring value or, now and then,
        to any. Knobs of the same name keep their values when the plan changes. May be ``point`` itself."""
        sizes = [len(k.choices) for k in self.options[point.plan].knobs.values()]
        movable = [i for i, size in enumerate(sizes) if size > 1]
        if len(self.options) > 1 and (not movable or rng.random() < PLAN_ODDS):
            other = rng.choice([p for p in range(len(self.options)) if p != point.plan])
            return self.point(other, self.values(point))
        if not movable:
            return point
        moved, at = list(point.choices), rng.choice(movable)
        moved[at] = move_choice(moved[at], sizes[at], rng)
        return Point(point.plan, tuple(moved))

    def crossover(self, one: Point, two: Point, rng: Random) -> Point:
        """The plan of ``one`` with each knob's value taken from one of both; ``one`` where plans differ."""
        if one.plan != two.plan:
            return one
        return Point(one.plan, tuple(rng.choice(pair) for pair in zip(one.choices, two.choices)))


def _extend(options: list[Option], rule: Rule, decision: Decision) -> None:
    """Add the plans that are not among ``options``."""
    known = [option.plan for option in options]
    options.extend(Option(rule, decision, plan) for plan in decision.plans if plan not in known)


def _nearest(knob: Knob, value: int) -> int:
    """The position of the choice nearest to ``value`` in ratio; of two alike the smaller one."""
    ratios = [max(c, value, 1) / max(min(c, value), 1) for c in knob.choices]
    return ratios.index(min(ratios))


def move_choice(at: int, count: int, rng: Random) -> int:
    """Another of ``count`` (> 1) ordered choices: a neighbour of ``at``, or with ``JUMP_ODDS`` any."""
    if rng.random() < JUMP_ODDS:
        return rng.choice([i for i in range(count) if i != at])
    return rng.choice([i for i in (at - 1, at + 1) if 0 <= i < count])


def schedule_fn(
    target: Target, rules: Sequence[ScheduleRule] | None = None
) -> Callable[[Schedule], list[Schedule]]:
    """For ``tvm.s_tir.meta_schedule.space_generator.ScheduleFn``: the schedules of all plans, each knob a
    ``sample_categorical`` at its default.

    Raises ``ValueError`` for a function that none of the rules takes: meta-schedule has no word for it.
    """

    def generate(sch: Schedule) -> list[Schedule]:
        space = Space.of(sch.mod["main"], target, rules)
        if isinstance(space, Reject):
            raise ValueError(f"the function has no design space: {space.reason}")
        plans = range(len(space.options))
        return [space.build(Point(p, space.options[p].default), tunable=True) for p in plans]

    return generate
