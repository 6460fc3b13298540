# SPDX-License-Identifier: Apache-2.0
"""Matrix-vector products, the weights either way round (K×N or N×K)."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch
from .staged import StagedRule


class GEMV(StagedRule):
    """Takes functions with a sum of products in which one operand has a single row or column."""

    name = "cpu.GEMV"

    def wanted(self, match: StageMatch) -> bool | Reject:
        roles, block = match.stage.contraction, match.stage.anchor
        if roles is None:
            return Reject("no sum of products of two operands", block.name)
        if roles.window:
            return Reject("the operand is read through a window: a convolution", block.name)
        if block.volume(roles.rows) != 1 and block.volume(roles.columns) != 1:
            return Reject("both operands are matrices: a matrix product", block.name)
        return True
