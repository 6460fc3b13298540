# SPDX-License-Identifier: Apache-2.0
"""Reductions over any axes and chains of them: norms, softmax, pooling, argmax, full sums."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch
from .staged import StagedRule


class Reduction(StagedRule):
    """Takes functions with at least one reduction block."""

    name = "cpu.Reduction"

    def wanted(self, match: StageMatch) -> bool | Reject:
        if match.stage.kind in ("reduction", "contraction"):
            return True
        return Reject("no reduction iterator", match.stage.anchor.name)
