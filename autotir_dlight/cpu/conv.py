# SPDX-License-Identifier: Apache-2.0
"""Convolutions of one to three dimensions in any layout: grouped, depthwise, dilated, strided, transposed."""

from __future__ import annotations

from ..rule import Reject
from .nest import StageMatch, product_of
from .staged import StagedRule


class Conv(StagedRule):
    """Takes functions with a sum of products in which an operand is read through a window."""

    name = "cpu.Conv"

    def wanted(self, match: StageMatch) -> bool | Reject:
        roles = product_of(match, window=True)
        return roles if isinstance(roles, Reject) else True
