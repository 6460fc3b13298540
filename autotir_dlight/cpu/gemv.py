# SPDX-License-Identifier: Apache-2.0
"""Matrix-vector products, the weights either way round (K×N or N×K)."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch, product_of
from .staged import StagedRule


class GEMV(StagedRule):
    """Takes functions with a sum of products in which one operand has a single row or column."""

    name = "cpu.GEMV"

    def wanted(self, match: StageMatch) -> bool | Reject:
        roles, block = product_of(match, window=False), match.stage.anchor
        if isinstance(roles, Reject):
            return roles
        if block.volume(roles.rows) != 1 and block.volume(roles.columns) != 1:
            return Reject("both operands are matrices: a matrix product", block.name)
        return True
