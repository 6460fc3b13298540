# SPDX-License-Identifier: Apache-2.0
"""What a command gives back, and the exit codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK, FAILED, BAD_INPUT = 0, 1, 2


@dataclass(frozen=True)
class Answer:
    """What a command found: ``data`` for ``--json``, ``text`` for a person, and the exit code."""

    data: dict[str, Any]
    text: str
    code: int = OK
