# SPDX-License-Identifier: Apache-2.0
"""The default rules of a target."""

from __future__ import annotations

from . import cpu
from ._tvm import ScheduleRule, Target
from .errors import TargetError

_CPU_RULES = (cpu.Conv, cpu.Matmul, cpu.GEMV, cpu.Reduction, cpu.Elementwise, cpu.Fallback)
RULE_NAMES = frozenset(rule.name for rule in _CPU_RULES)


def rules(target: Target) -> list[ScheduleRule]:
    """The ordered default rules for ``target``; the last one, a fallback, takes every function.

    Raises :class:`TargetError` (a ``ValueError``) for a kind of target that has no rules.
    """
    if target.kind.name in ("llvm", "c"):
        return [rule() for rule in _CPU_RULES]
    raise TargetError(f"there are no rules for targets of kind {target.kind.name}: use an llvm target")
