# SPDX-License-Identifier: Apache-2.0
"""Knobs of a plan, and the two ways to draw them: the constant, or a sample with the same default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

from .report import KnobValue


@dataclass(frozen=True)
class Knob:
    """A number of a plan that tuning may move.

    ``value`` is the default and one of ``choices`` (ascending). ``why`` says in a few words what fixed the
    default, ``source`` where it came from (``formula``, ``preset``, ``database`` or ``override``).
    """

    value: int
    choices: tuple[int, ...]
    why: str
    source: str = "formula"

    def __post_init__(self) -> None:
        if self.value not in self.choices:
            raise ValueError(f"the knob's value {self.value} is not among its choices {self.choices}")

    def override(self, value: int, source: str = "override") -> Knob:
        """The knob with another value, added to the choices where it is not one of them."""
        choices = tuple(sorted({*self.choices, value}))
        return replace(self, value=value, choices=choices, source=source)


def knob(value: int, choices: Iterator[int] | list[int] | tuple[int, ...], why: str) -> Knob:
    """A knob whose choices are sorted, unique, and hold ``value``."""
    return Knob(value, tuple(sorted({*choices, value})), why)


class Draw(Protocol):
    """Turns a knob into what a schedule primitive takes: a number, or a sampled variable."""

    def __call__(self, knob: Knob) -> Any: ...


def constant(knob: Knob) -> int:
    """Draw the default itself: the deterministic schedule."""
    return knob.value


def sampler(sch: Any) -> Draw:
    """Draw with ``sample_categorical`` on ``sch``, whose decision is the default: the design space."""

    def draw(knob: Knob) -> Any:
        count = len(knob.choices)
        return sch.sample_categorical(
            list(knob.choices), [1.0 / count] * count, decision=knob.choices.index(knob.value)
        )

    return draw


def nested_prefix(plan: Any, name: str, prefix: str) -> str:
    """Nested plans of the first field are named by position alone, those of the others by field as well."""
    tuples = [f.name for f in fields(plan) if isinstance(getattr(plan, f.name), tuple)]
    return prefix if name == tuples[0] else f"{prefix}{name}."


def _walk(plan: Any, prefix: str) -> Iterator[tuple[str, Knob]]:
    for item in fields(plan):
        value = getattr(plan, item.name)
        if isinstance(value, Knob):
            yield prefix + item.name, value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _walk(value, prefix)
        elif isinstance(value, tuple) and any(is_dataclass(v) for v in value):
            nested = [v for v in value if is_dataclass(v)]
            for position, child in enumerate(nested):
                outer = nested_prefix(plan, item.name, prefix)
                inner = f"{outer}{position}." if len(nested) > 1 else outer
                yield from _walk(child, inner)


def knobs_of(plan: Any) -> dict[str, Knob]:
    """The knobs of a plan and of the plans nested in it, by (dotted) name."""
    return dict(_walk(plan, ""))


def knob_values(plan: Any) -> list[KnobValue]:
    """The knobs of a plan as the report holds them."""
    return [KnobValue(name, k.value, k.source, k.why) for name, k in knobs_of(plan).items()]


def map_knobs(plan: Any, change: Callable[[str, Knob], Knob], prefix: str = "") -> Any:
    """``plan`` with ``change(name, knob)`` in place of each knob."""
    changed: dict[str, Any] = {}
    for item in fields(plan):
        value = getattr(plan, item.name)
        if isinstance(value, Knob):
            changed[item.name] = change(prefix + item.name, value)
        elif is_dataclass(value) and not isinstance(value, type):
            changed[item.name] = map_knobs(value, change, prefix)
        elif isinstance(value, tuple) and any(is_dataclass(v) for v in value):
            several = sum(is_dataclass(v) for v in value) > 1
            outer = nested_prefix(plan, item.name, prefix)
            position, items = 0, []
            for child in value:
                if is_dataclass(child):
                    items.append(map_knobs(child, change, f"{outer}{position}." if several else outer))
                    position += 1
                else:
                    items.append(child)
            changed[item.name] = tuple(items)
    return replace(plan, **changed)


def override_knobs(plan: Any, values: Mapping[str, int], source: str = "override") -> Any:
    """``plan`` with ``values`` (the user's, unless ``source`` says otherwise), matched by the full name or by
    its last part. A knob that the user has set is only changed by the user."""

    def change(name: str, knob: Knob) -> Knob:
        for key in (name, name.rpartition(".")[2]):
            if key in values:
                kept = knob.source == "override" and source != "override"
                return knob if kept else knob.override(values[key], source)
        return knob

    return map_knobs(plan, change) if values else plan
