# SPDX-License-Identifier: Apache-2.0
"""Elementwise, broadcast, layout, padding, resize and gather functions."""

from __future__ import annotations

from ..blocks import FuncView
from ..machine import CpuMachine
from ..rule import Reject
from .nest import StageMatch
from .staged import FunctionMatch, StagedRule


class Elementwise(StagedRule):
    """Takes functions all of whose blocks are injective: every element of the result on its own."""

    name = "cpu.Elementwise"

    def wanted(self, match: StageMatch) -> bool | Reject:
        if match.stage.kind == "map":
            return True
        return Reject(
            "a block is not injective: " + (match.stage.note or "it reduces"), match.stage.anchor.name
        )

    def match(self, view: FuncView, machine: CpuMachine) -> FunctionMatch | Reject:
        found = super().match(view, machine)
        if isinstance(found, Reject) or len(found.about) == len(found.staging.stages):
            return found
        other = next(s for k, s in enumerate(found.staging.stages) if k not in found.about)
        return Reject("a block is not injective: " + (other.note or "it reduces"), other.anchor.name)
