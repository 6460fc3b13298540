# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown tables, which read well in a terminal too."""

from __future__ import annotations

from collections.abc import Sequence

from .models import Result, Score
from .names import OURS, PLAIN


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with its columns padded to one width; every column but the first is aligned to the right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    rule = ["-" * width if not i else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines = [cells[0], rule, *cells[1:]]
    return "\n".join(
        "| " + " | ".join(_pad(c, w, i) for i, (c, w) in enumerate(zip(line, widths))) + " |"
        for line in lines
    )


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)


def model_table(result: Result) -> str:
    """One model: a row for each contender."""
    rows = [
        [
            f"{score.contender} {score.version}".strip(),
            f"{score.milliseconds:.2f}",
            "" if score.ratio is None else f"{score.ratio:.2f}×",
            "" if score.compile_seconds is None else f"{score.compile_seconds:.1f}",
            _share(score),
        ]
        for score in result.scores
    ]
    header = [
        result.model,
        "median ms",
        "time / ours",
        "compile s",
        f"difference from {result.reference or 'nothing'}",
    ]
    return markdown(header, rows)


def models_table(results: Sequence[Result]) -> str:
    """Several models: a row for each, a pair of columns for each contender but ours."""
    others = list(
        dict.fromkeys(s.contender for result in results for s in result.scores if s.contender != OURS)
    )
    header = ["model", "ours ms"]
    for other in others:
        header += [f"{other} ms", "/ ours"]
    header += ["largest difference", "compile s", "plain TVM's", "scheduling s a function"]
    return markdown(header, [_model_row(result, others) for result in results])


def _model_row(result: Result, others: Sequence[str]) -> list[str]:
    ours, plain = result.score(OURS), result.score(PLAIN)
    row = [result.model, f"{ours.milliseconds:.2f}" if ours else ""]
    for other in others:
        score = result.score(other)
        row += [f"{score.milliseconds:.2f}", f"{score.ratio:.2f}×"] if score and score.ratio else ["", ""]
    row.append(_share(ours) if ours else "")
    row += [
        "" if s is None or s.compile_seconds is None else f"{s.compile_seconds:.1f}" for s in (ours, plain)
    ]
    return [*row, f"{result.scheduling()['seconds_a_function']:.3f}"]


def _share(score: Score) -> str:
    return "" if score.difference is None else f"{score.difference.error:.1e}"
