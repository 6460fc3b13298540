# SPDX-License-Identifier: Apache-2.0
"""Elementwise, broadcast, layout, padding, resize and gather functions."""

from __future__ import annotations

from ..blocks import FuncView
from ..machine import CpuMachine
from ..patterns import Stage
from ..rule import Reject
from .nest import StageMatch
from .staged import FunctionMatch, StagedRule


class Elementwise(StagedRule):
    """Takes functions all of whose blocks are injective: every element of the result on its own."""

    name = "cpu.Elementwise"

    def wanted(self, match: StageMatch) -> bool | Reject:
        return match.stage.kind == "map" or _refuse(match.stage)

    def match(self, view: FuncView, machine: CpuMachine) -> FunctionMatch | Reject:
        found = super().match(view, machine)
        if isinstance(found, Reject) or len(found.about) == len(found.staging.stages):
            return found
        return _refuse(next(s for k, s in enumerate(found.staging.stages) if k not in found.about))


def _refuse(stage: Stage) -> Reject:
    return Reject("a block is not injective: " + (stage.note or "it reduces"), stage.anchor.name)
