# SPDX-License-Identifier: Apache-2.0
"""Matrix products in every transposition, batched, of all types, with their epilogues."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch, product_of
from .staged import StagedRule


class Matmul(StagedRule):
    """Takes functions with a sum of products that has rows and columns and no window."""

    name = "cpu.Matmul"

    def wanted(self, match: StageMatch) -> bool | Reject:
        roles, block = product_of(match, window=False), match.stage.anchor
        if isinstance(roles, Reject):
            return roles
        if block.volume(roles.rows) == 1 or block.volume(roles.columns) == 1:
            return Reject("one operand is a vector: a matrix-vector product", block.name)
        return True
