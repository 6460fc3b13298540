# SPDX-License-Identifier: Apache-2.0
"""All settings of the package, read from the environment at the moment they are used.

=================  ============================================================================
``AUTOTIR_DEBUG``  0 to 5: how much is logged (0: warnings only)
``AUTOTIR_STRICT`` 1: a bug of a rule is raised instead of reported
``AUTOTIR_PLAN``   knob values that win over all others: ``cpu.Elementwise:inner=64;cpu.Reduction:width=16``
``AUTOTIR_DUMP``   a directory for the functions before and after scheduling
=================  ============================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

MAX_DEBUG = 5


@dataclass(frozen=True)
class Settings:
    """The settings in force.

    Attributes
    ----------
    debug : 0 (warnings only) to 5
    strict : raise a rule's bug instead of reporting it and trying the next rule
    plan : rule name -> knob name -> value
    dump : directory for dumps; ``""`` is none

    Raises ``ValueError`` for a value out of range.
    """

    debug: int = 0
    strict: bool = False
    plan: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    dump: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.debug <= MAX_DEBUG:
            raise ValueError(f"AUTOTIR_DEBUG must be 0 to {MAX_DEBUG}, not {self.debug}")
        frozen = {rule: MappingProxyType(dict(knobs)) for rule, knobs in self.plan.items()}
        object.__setattr__(self, "plan", MappingProxyType(frozen))


_overrides: ContextVar[Mapping[str, Any]] = ContextVar("autotir_settings", default=MappingProxyType({}))


def current() -> Settings:
    """The settings at this moment: the environment's, with those of the enclosing :func:`override` on top.

    Raises ``ValueError`` where a variable does not have the form above.
    """
    overrides = _overrides.get()
    readers: dict[str, Callable[[], Any]] = {
        "debug": _read_debug,
        "strict": _read_strict,
        "plan": _read_plan,
        "dump": _read_dump,
    }
    return Settings(
        **{name: overrides[name] if name in overrides else read() for name, read in readers.items()}
    )


@contextmanager
def override(**values: Any) -> Iterator[Settings]:
    """Settings for the code inside a ``with``, in this thread or task only.

    >>> with override(strict=True):
    ...     current().strict
    True

    Raises ``TypeError`` for a name that is no setting and ``ValueError`` for a value out of range.
    """
    known = {item.name for item in fields(Settings)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise TypeError(f"no setting is named {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    replace(Settings(), **values)
    token = _overrides.set({**_overrides.get(), **values})
    try:
        yield current()
    finally:
        _overrides.reset(token)


def _read_debug() -> int:
    text = os.environ.get("AUTOTIR_DEBUG", "").strip() or "0"
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(f"AUTOTIR_DEBUG must be a number from 0 to {MAX_DEBUG}, not {text!r}")
    return int(text)


def _read_strict() -> bool:
    text = os.environ.get("AUTOTIR_STRICT", "").strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("", "0", "false", "no", "off"):
        return False
    raise ValueError(f"AUTOTIR_STRICT must be 0 or 1, not {text!r}")


def _read_plan() -> dict[str, dict[str, int]]:
    return parse_plan(os.environ.get("AUTOTIR_PLAN", ""))


def _read_dump() -> str:
    return os.environ.get("AUTOTIR_DUMP", "").strip()


def parse_plan(text: str) -> dict[str, dict[str, int]]:
    """Parse ``"cpu.Matmul:kc=256,mr=4;cpu.Conv:nr=16"`` to ``{rule: {knob: value}}``.

    Raises ``ValueError``, with the part that is wrong, where ``text`` has another form or names a knob twice.
    """
    plan: dict[str, dict[str, int]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        rule, colon, knobs = (piece.strip() for piece in part.partition(":"))
        if not colon or not re.fullmatch(r"[A-Za-z_][\w.]*", rule):
            raise ValueError(f"AUTOTIR_PLAN: {part!r} is not of the form 'rule:knob=value,knob=value'")
        for item in knobs.split(","):
            found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(-?[0-9]+)\s*", item)
            if not found:
                raise ValueError(
                    f"AUTOTIR_PLAN: {item.strip()!r} in {part!r} is not of the form 'knob=integer'"
                )
            name, value = found.group(1), int(found.group(2))
            if name in plan.setdefault(rule, {}):
                raise ValueError(f"AUTOTIR_PLAN: {rule} is given {name} twice")
            plan[rule][name] = value
    return plan
