# SPDX-License-Identifier: Apache-2.0
"""What a command gives back, and the exit codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

OK, FAILED, BAD_INPUT = 0, 1, 2


@dataclass(frozen=True)
class Answer:
    """What a command found: ``data`` for ``--json``, ``text`` for a person, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = OK


def plain(value: Any) -> Any:
    """``value`` with ``None`` for infinities and NaN, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
