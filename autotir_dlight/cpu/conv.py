# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three dimensions in any layout: grouped, depthwise, dilated, strided, transposed."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch
from .staged import StagedRule


class Conv(StagedRule):
    """Takes functions with a sum of products in which an operand is read through a window."""

    name = "cpu.Conv"

    def wanted(self, match: StageMatch) -> bool | Reject:
        roles, block = match.stage.contraction, match.stage.anchor
        if roles is None:
            return Reject("no sum of products of two operands", block.name)
        if not roles.window:
            return Reject("no index mixes a spatial with a reduced iterator: no window", block.name)
        return True
