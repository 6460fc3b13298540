# SPDX-License-Identifier: Apache-2.0
"""The benchmark of operators as a Markdown table with its notes."""

from __future__ import annotations

from .names import OURS
from .operators import all_operators
from .ops import OperatorResult, OperatorScore, OperatorsResult
from .table import markdown

_UNITS = {"compute": "GFLOP/s", "memory": "GB/s"}


def operators_table(result: OperatorsResult) -> str:
    """A row for each operator, a column for each contender's time divided by ours, and notes below."""
    others = list(
        dict.fromkeys(s.contender for row in result.rows for s in row.scores if s.contender != OURS)
    )
    compared = any(row.score(OURS) for row in result.rows)
    header = ["operator", "ours µs", "rate", "of bound", "best other", "µs", "/ ours"]
    header += [f"{name} {'/ ours' if compared else 'µs'}" for name in others] + ["rule"]
    table = markdown(header, [_row(row, others) for row in result.rows])
    return "\n".join([table, "", *_notes(result)])


def _row(row: OperatorResult, others: list[str]) -> list[str]:
    ours, best = row.score(OURS), row.best_other
    cells = [
        row.operator,
        _micro(ours.seconds) if ours else "",
        "" if row.rate is None else f"{row.rate:.1f} {_UNITS[row.binds]}",
        "" if row.share is None else f"{row.share:.0%}",
        best.contender if best else "",
        _micro(best.seconds) if best else "",
        _ratio(best.ratio if best else None),
    ]
    scores = [row.score(name) for name in others]
    return [*cells, *(_score(score) for score in scores), row.rule]


def _score(score: OperatorScore | None) -> str:
    """Beside ours as a ratio, else as a time."""
    if score is None:
        return ""
    return _micro(score.seconds) if score.ratio is None else _ratio(score.ratio)


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}" if seconds < 1e-3 else f"{1e6 * seconds:.0f}"


def _ratio(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.0f}×"


def _notes(result: OperatorsResult) -> list[str]:
    lines = [f"{result.threads} threads; each contender ran in a process of its own, in turns"]
    if result.peaks:
        gflops, copy, read = result.peaks
        lines.append(
            f"this machine: {gflops:.0f} GFLOP/s of float32 multiply-adds, {copy:.1f} GB/s of a copy (both "
            f"ways), {read:.1f} GB/s of a read; what fits into a cache is held against that cache"
        )
    if (mean := result.geometric_mean) is not None:
        lines.append(f"best other / ours, geometric mean of {len(result.rows)}: {mean:.2f}×")
    lines += _integer_notes(result)
    lines += [f"{row.operator}: {why}" for row in result.rows for why in row.failures.values()]
    return lines


def _integer_notes(result: OperatorsResult) -> list[str]:
    """How much faster 8-bit integers are than our float32 product of the same size, where both ran."""
    ours = {row.operator: score.seconds for row in result.rows if (score := row.score(OURS))}
    known = all_operators()
    notes = []
    for name, seconds in ours.items():
        if not name.startswith("int8-"):
            continue
        flops = known[name].flops
        twin = next((n for n in ours if n.startswith("gemm-") and known[n].flops == flops), None)
        if twin:
            notes.append(f"{name}: {ours[twin] / seconds:.2f} times as fast as our {twin} in float32")
    return notes
