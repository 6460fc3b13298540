# SPDX-License-Identifier: Apache-2.0
"""What the default rules decide for a dozen functions on three machines: plan and loop nest, short enough to
read in a review.

``UPDATE_GOLDEN=1 pytest tests/test_golden.py`` writes the files under ``golden`` anew. A change in one of
them is a change of schedules: say in the commit why it is better.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tvm
from corpus import BY_NAME, Workload
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize

import autotir_dlight as dl

GOLDEN = Path(__file__).parent / "golden"
MOST_LINES = 25
TARGETS = {
    "avx2": {"mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 8},
    "avx512": {"mcpu": "skylake-avx512", "mtriple": "x86_64-linux-gnu", "num-cores": 8},
    "neon": {"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu", "num-cores": 8},
}
# Workload of the corpus -> extents that are large enough for threads.
SHAPES: dict[str, tuple[int | None, ...]] = {
    "matmul nn": (384, 768, 768),
    "matmul nt": (384, 768, 768),
    "matmul bias relu": (None, 768, 768),
    "batched matmul": (12, 128, 128, 64),
    "gemv nk": (1000, 2048),
    "conv 3x3": (1, 64, 56, 56, 64),
    "conv bias relu": (1, 64, 14, 14, 128),
    "conv depthwise": (1, 8, 112, 112, 8),
    "softmax": (512, 1000),
    "layer norm": (128, 768),
    "max pool": (1, 64, 112, 112),
    "add relu": (1, 64, 56, 56),
    "transpose": (768, 3072),
    "sum of squares": (1000, 1000),
}


def sketch(stmt: Any, indent: int = 0) -> Iterator[str]:
    """The loop nest, a line for each chain of loops and for each block."""
    loops = []
    while isinstance(stmt, tirx.For) and len(loops) < 20:
        kind = tirx.ForKind(int(stmt.kind)).name.lower()
        loops.append(f"{kind} {stmt.extent}")
        stmt = stmt.body
    head = "  " * indent + " · ".join(loops)
    if isinstance(stmt, SBlockRealize) and stmt.block.name_hint != "root":
        yield f"{head}: {stmt.block.name_hint}" if loops else f"{head}{stmt.block.name_hint}"
        return
    if loops:
        yield head
    body = stmt.block.body if isinstance(stmt, SBlockRealize) else stmt
    for child in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        yield from sketch(child, indent + bool(loops))


def decided(func: Any, attrs: dict[str, Any]) -> list[str]:
    target = tvm.target.Target({"kind": "llvm", **attrs})
    report = dl.Report()
    with target:
        mod = dl.ApplyDefaultSchedule(*dl.rules(target), report=report)(tvm.IRModule({"main": func}))
    entry = report["main"]
    shown = {k: v for k, v in entry.structure.items() if k.rpartition(".")[2] not in ("kind", "cost")}
    structure = " ".join(f"{k}={v}" for k, v in shown.items())
    return [entry.line(), structure, *sketch(mod["main"].body)]


@pytest.mark.parametrize("name", SHAPES)
def test_decisions(name):
    made = BY_NAME[name]
    workload = Workload(name, made.rule, made.make, {"large": SHAPES[name]})
    sections = []
    for machine, attrs in TARGETS.items():
        lines = decided(workload.func("large"), attrs)
        assert len(lines) < MOST_LINES, "\n".join(lines)
        sections.append("\n".join([f"[{machine}]", *lines]))
    text = "\n\n".join(sections) + "\n"
    path = GOLDEN / f"{re.sub(r'[^a-z0-9]+', '_', name)}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "a schedule changed; UPDATE_GOLDEN=1 accepts it"


def test_every_file_is_of_a_test():
    names = {re.sub(r"[^a-z0-9]+", "_", name) for name in SHAPES}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names
