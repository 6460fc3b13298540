# SPDX-License-Identifier: Apache-2.0
"""What each rule did with each function, and why: the answer of :func:`autotir_dlight.explain`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class KnobValue:
    """One number of a plan: its value, where that came from and why it is what it is.

    ``source`` is one of ``"formula"``, ``"preset"``, ``"database"``, ``"override"``.
    """

    name: str
    value: int
    source: str = "formula"
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """A rule's refusal of a function: the reason and the block or iterator it is about."""

    rule: str
    reason: str
    where: str = ""


@dataclass
class FunctionReport:
    """How one TensorIR function was scheduled.

    ``status`` is ``"scheduled"`` (a rule took it), ``"left alone"`` (already scheduled, extern or for
    another target, see ``note``), or ``"unscheduled"`` (no rule took it).
    """

    function: str
    status: str = "unscheduled"
    note: str = ""
    recognised: dict[str, Any] = field(default_factory=dict)
    rejected: list[Verdict] = field(default_factory=list)
    rule: str = ""
    plan: str = ""
    structure: dict[str, Any] = field(default_factory=dict)
    knobs: list[KnobValue] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        """The function in one line: rule, plan and knobs."""
        if not self.rule:
            return f"{self.function}: {self.status}" + (f" ({self.note})" if self.note else "")
        knobs = ", ".join(f"{k.name}={k.value}" for k in self.knobs)
        return f"{self.function}: {self.rule} / {self.plan}" + (f" [{knobs}]" if knobs else "")


@dataclass
class Report:
    """The verdicts over a whole module, in the order of the functions' names."""

    target: str = ""
    functions: list[FunctionReport] = field(default_factory=list)

    def __iter__(self) -> Iterator[FunctionReport]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)

    def __getitem__(self, name: str) -> FunctionReport:
        for entry in self.functions:
            if entry.function == name:
                return entry
        raise KeyError(f"the report has no function {name!r}; it has {sorted(f.function for f in self)}")

    def by_rule(self) -> dict[str, list[FunctionReport]]:
        """The functions grouped by the rule that took them (``""``: none did)."""
        groups: dict[str, list[FunctionReport]] = {}
        for entry in self.functions:
            groups.setdefault(entry.rule, []).append(entry)
        return groups

    def to_json(self, indent: int | None = 2) -> str:
        """The report as a JSON document."""
        return json.dumps(asdict(self), indent=indent, sort_keys=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read back what :meth:`to_json` wrote.

        Raises ``ValueError`` where ``text`` is not such a document.
        """
        try:
            raw = json.loads(text)
            functions = [
                FunctionReport(
                    **{
                        **entry,
                        "rejected": [Verdict(**v) for v in entry["rejected"]],
                        "knobs": [KnobValue(**k) for k in entry["knobs"]],
                    }
                )
                for entry in raw["functions"]
            ]
            return cls(target=raw["target"], functions=functions)
        except (json.JSONDecodeError, KeyError, TypeError) as err:
            raise ValueError(f"not a report written by Report.to_json(): {err}") from err

    def __str__(self) -> str:
        lines = [f"target: {self.target}"] if self.target else []
        for entry in self.functions:
            lines.append(entry.line())
            if entry.recognised:
                facts = ", ".join(f"{k} {v}" for k, v in entry.recognised.items())
                lines.append(f"    recognised: {facts}")
            for knob in entry.knobs:
                if knob.why or knob.source != "formula":
                    lines.append(f"    {knob.name} = {knob.value} ({knob.source}): {knob.why}")
            for verdict in entry.rejected:
                where = f" at {verdict.where}" if verdict.where else ""
                lines.append(f"    not {verdict.rule}: {verdict.reason}{where}")
            lines.extend(f"    RULE BUG: {bug}" for bug in entry.bugs)
        return "\n".join(lines)
