# SPDX-License-Identifier: Apache-2.0
"""The roofline: speed over arithmetic intensity, under what the machine can do (Williams et al., 2009)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..artifact import check_writable, replacing
from ..errors import ArtifactError
from ..extras import require
from .names import OURS
from .ops import OperatorResult, OperatorsResult

FORMATS = (".png", ".svg", ".pdf")
_SIZE_INCHES = (9.0, 6.0)
_DPI = 150
# How far the axes reach beyond the points.
_MARGIN = 2.0


def check(path: str) -> None:
    """Raise before a long run where the picture could not be written at its end.

    Raises ``ArtifactError`` for a name of no known format or in no folder, ``MissingExtraError`` without
    matplotlib.
    """
    if Path(path).suffix not in FORMATS:
        raise ArtifactError(f"{path!r} is no name for a picture: it must end in {', '.join(FORMATS)}")
    check_writable(Path(path))
    require("matplotlib", "bench", "drawing the roofline")


def draw(result: OperatorsResult, path: str) -> None:
    """Write the picture of all operators that do arithmetic; raises as :func:`check` does."""
    check(path)
    figure = require("matplotlib.figure", "bench", "drawing the roofline").Figure(_SIZE_INCHES, dpi=_DPI)
    axes = figure.subplots()
    rows = [row for row in result.rows if row.flops and row.score(OURS)]
    intensities = [row.flops / row.nbytes for row in rows] or [1.0]
    _roofs(axes, result, min(intensities) / _MARGIN, max(intensities) * _MARGIN)
    for row in rows:
        _point(axes, row)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="floating-point operations per byte",
        ylabel="GFLOP/s",
        title=f"Operators on {result.threads} threads: ours (filled), best other (hollow)",
    )
    axes.grid(True, which="both", alpha=0.2)
    if result.peaks:
        axes.legend(loc="lower right", fontsize="small")
    with replacing(path) as draft:
        figure.savefig(draft, bbox_inches="tight")


def _roofs(axes: Any, result: OperatorsResult, left: float, right: float) -> None:
    if not result.peaks:
        return
    gflops, copy, read = result.peaks
    for bandwidth, style, what in ((copy, "-", "copy"), (read, "--", "read")):
        ridge = gflops / bandwidth
        corners = sorted({left, max(left, min(ridge, right)), right})
        heights = [min(gflops, x * bandwidth) for x in corners]
        label = f"{gflops:.0f} GFLOP/s, {bandwidth:.1f} GB/s of a {what}"
        axes.plot(corners, heights, style, color="black", linewidth=1, label=label)


def _point(axes: Any, row: OperatorResult) -> None:
    ours, best = row.score(OURS), row.best_other
    assert ours is not None, "rows without ours are left out"
    x = row.flops / row.nbytes
    speed = row.flops / ours.seconds / 1e9
    axes.plot(x, speed, "o", color="tab:blue", markersize=4)
    axes.annotate(row.operator, (x, speed), fontsize=5, xytext=(3, 2), textcoords="offset points")
    if best:
        axes.plot(x, row.flops / best.seconds / 1e9, "o", mfc="none", color="tab:orange", markersize=4)
