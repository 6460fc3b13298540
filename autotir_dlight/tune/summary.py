# SPDX-License-Identifier: Apache-2.0
"""What a tuning database holds, for people: a line and a curve a function, as text or as a page of HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ..html import page
from .cost import grouped_correlation
from .keys import digest
from .records import Database, Record

# Size of a plot in pixels.
WIDTH, HEIGHT, EDGE = 280, 120, 6
_STYLE = """
svg { border: 1px solid var(--line); }
polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; }
circle { fill: var(--mark); fill-opacity: .6; }
"""


@dataclass(frozen=True)
class TaskSummary:
    """One function on one machine.

    Attributes
    ----------
    name, calls, machine : the function's name and calls when it was tuned, and the machine's name
    trials, failed : measured points, and those that did not run
    default_ms, best_ms : times of the winner's last comparison, the mean over the cases
    roof_ms : what the machine allows, 0 where that is not known
    gain : the default's time over the winner's
    plan : the winner's plan and knobs
    curve : the best relative time after each trial
    foreseen : (predicted, measured) log gains of the points that the model ranked before they were measured
    """

    name: str
    calls: int
    machine: str
    trials: int
    failed: int
    default_ms: float
    best_ms: float
    roof_ms: float
    gain: float
    plan: str
    curve: tuple[float, ...]
    foreseen: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Summary:
    """All functions of a database; ``correlation`` is the rank correlation of predictions with what was then
    measured, the mean over functions with at least three of them, ``None`` without any."""

    tasks: tuple[TaskSummary, ...]
    correlation: float | None

    @classmethod
    def of(cls, database: Database) -> Summary:
        """Read the database."""
        groups: dict[str, list[Record]] = {}
        for record in database.records():
            place = digest([record.machine, record.pattern, list(record.extents)])
            groups.setdefault(place, []).append(record)
        tasks = tuple(_task(records) for records in groups.values())
        pairs = [(str(k), p, m) for k, task in enumerate(tasks) for p, m in task.foreseen]
        enough = any(len(task.foreseen) >= 3 for task in tasks)
        return cls(
            tuple(sorted(tasks, key=lambda t: -t.default_ms * t.calls)),
            grouped_correlation(pairs) if enough else None,
        )

    def text(self) -> str:
        """A table for a terminal."""
        head = ("task", "calls", "default ms", "best ms", "roof ms", "gain", "trials", "plan")
        rows = [head, *(_cells(task) for task in self.tasks)]
        return "\n".join([aligned(rows), self._model()])

    def _model(self) -> str:
        if self.correlation is None:
            return "model: too few predictions were measured to judge it"
        return f"model: rank correlation {self.correlation:.2f} on points that it had not seen"

    def html(self, title: str) -> str:
        """A page of its own; everything from the database is escaped."""
        rows = "".join(_row(task) for task in self.tasks)
        names = ["Task", "Calls", "Default ms", "Best ms", "Roof ms", "Gain", "Trials", "Plan"]
        names += ["Best time by trial", "Predicted and measured"]
        head = "".join(f'<th scope="col">{name}</th>' for name in names)
        content = f"""<p>{escape(self._model())}</p>
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{rows}</tbody>
</table>"""
        return page(f"{title}: tuning", f"{title}: what tuning found", _STYLE, content)

    def data(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns; the first and the last one are aligned to the left."""
    last = len(rows[0]) - 1
    widths = [max(len(row[k]) for row in rows) for k in range(last + 1)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if k in (0, last) else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def _task(records: Sequence[Record]) -> TaskSummary:
    trials = [r for r in records if r.kind == "trial"]
    best = max((r for r in records if r.kind == "best"), key=lambda r: r.created, default=records[-1])
    curve: list[float] = []
    foreseen: list[tuple[float, float]] = []
    for record in trials:
        relative = record.relative
        curve.append(min(relative, curve[-1] if curve else math.inf))
        predicted = record.meta.get("predicted")
        if predicted is not None and math.isfinite(relative):
            foreseen.append((float(predicted), -math.log(relative)))
    knobs = ", ".join(f"{name}={value}" for name, value in best.knobs.items())
    title = str(best.plan.get("title", ""))
    return TaskSummary(
        name=str(best.meta.get("name", "")),
        calls=int(best.meta.get("calls", 1)),
        machine=best.machine_name,
        trials=len(trials),
        failed=sum(not r.seconds for r in trials),
        default_ms=_ms(best.default_seconds),
        best_ms=_ms(best.seconds),
        roof_ms=1e3 * float(best.meta.get("roof", 0.0)),
        gain=best.gain,
        plan=f"{title} [{knobs}]" if knobs else title,
        curve=tuple(value for value in curve if math.isfinite(value)),
        foreseen=tuple(foreseen),
    )


def _ms(seconds: Sequence[float]) -> float:
    return 1e3 * sum(seconds) / len(seconds) if seconds else 0.0


def _cells(task: TaskSummary) -> tuple[str, ...]:
    roof = f"{task.roof_ms:.4g}" if task.roof_ms else "-"
    trials = f"{task.trials} ({task.failed} failed)" if task.failed else str(task.trials)
    times = (f"{task.default_ms:.4g}", f"{task.best_ms:.4g}", roof, f"{task.gain:.2f}")
    return task.name, str(task.calls), *times, trials, task.plan


def _row(task: TaskSummary) -> str:
    cells = _cells(task)
    first = f"<td><code>{escape(cells[0])}</code><br>{escape(task.machine)}</td>"
    numbers = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells[1:7])
    curve = _svg(list(enumerate(task.curve)), line=True)
    cloud = _svg(list(task.foreseen), line=False)
    return f"<tr>{first}{numbers}<td>{escape(cells[7])}</td><td>{curve}</td><td>{cloud}</td></tr>\n"


def _svg(points: Sequence[tuple[float, float]], line: bool) -> str:
    """A plot of ``points``, joined or not; a dash for fewer than two."""
    if len(points) < 2:
        return "–"
    placed = [
        (_place(x, [p[0] for p in points], WIDTH), HEIGHT - _place(y, [p[1] for p in points], HEIGHT))
        for x, y in points
    ]
    if line:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        marks = f'<polyline points="{path}"></polyline>'
    else:
        marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"></circle>' for x, y in placed)
    return f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">{marks}</svg>'


def _place(value: float, values: Sequence[float], size: int) -> float:
    low, high = min(values), max(values)
    return EDGE + (size - 2 * EDGE) * ((value - low) / (high - low) if high > low else 0.5)
