# SPDX-License-Identifier: Apache-2.0
"""Whatever no other rule takes: each nest gets what it can, and what must stay as it is stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._tvm import Schedule
from ..blocks import FuncView
from ..knobs import Draw
from ..machine import CpuMachine
from ..patterns import Staging
from ..rule import Reject
from .nest import StageMatch
from .staged import FunctionMatch, FunctionPlan, StagedRule


@dataclass(frozen=True)
class Untouched:
    """A function whose statements cannot be seen as blocks; ``reason`` says what stands in the way."""

    kind: str
    reason: str


class Fallback(StagedRule):
    """Always accepts. Functions without readable blocks (external calls, sorts, scans) stay as they are."""

    name = "cpu.Fallback"

    def wanted(self, match: StageMatch) -> bool | Reject:
        return True

    def match(self, view: FuncView, machine: CpuMachine) -> FunctionMatch:
        found = super().match(view, machine)
        if isinstance(found, Reject):
            return FunctionMatch(view, Staging((), ()), machine, ())
        return found

    def plans(self, match: FunctionMatch, machine: CpuMachine) -> Sequence[Any]:
        if not match.staging.stages:
            return [Untouched("untouched", match.view.unreadable or "the function has no computation block")]
        return super().plans(match, machine)

    def schedule(self, sch: Schedule, match: FunctionMatch, plan: Any, draw: Draw) -> None:
        if isinstance(plan, FunctionPlan):
            super().schedule(sch, match, plan, draw)
