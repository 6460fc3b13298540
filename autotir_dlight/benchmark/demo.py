# SPDX-License-Identifier: Apache-2.0
"""The demonstration: the OCR models of PP-OCRv4, from a wheel on PyPI.

``python -m autotir_dlight.benchmark.demo`` compiles each, checks it against ONNX Runtime, and times it beside
that and plain TVM. The libraries, a page that explains each model's schedules, the table and the figures as
JSON are written to one folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import autotir_dlight as dl

from ..artifact import replacing
from ..console import Progress, native_output_hidden
from ..errors import UserError
from ..frontend import load_onnx
from ..host import usable_cores
from ..html import render
from ..report import Report
from .check import Task, target_json
from .contenders import chosen
from .fetch import MODELS, OCR, fetch
from .models import Result, bench_model
from .names import ONNX_RUNTIME, OURS, PLAIN
from .table import models_table


def main(argv: list[str] | None = None) -> int:
    """Run the demonstration: 0 where all outputs agree with ONNX Runtime's, 1 if not, 2 if it cannot run."""
    parser = argparse.ArgumentParser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="the folder to write to")
    parser.add_argument("--turns", type=int, default=7, help="turns that each contender takes")
    parser.add_argument("--model", action="append", choices=sorted(MODELS), help="default: det, rec and cls")
    args = parser.parse_args(argv)
    try:
        results = demonstrate(args.model or list(OCR), args.output, args.turns)
    except UserError as err:
        print(f"demo: {err}", file=sys.stderr)
        return 2
    return 0 if all(result.verdict == "agrees" for result in results) else 1


def demonstrate(names: list[str], folder: Path, turns: int) -> list[Result]:
    """Compile, check and time the models ``names``, write everything to ``folder`` and print the table."""
    contenders = chosen([OURS, PLAIN, ONNX_RUNTIME])
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    with Progress(len(names) * (1 + len(contenders) + turns), "demo") as progress:
        for name in names:
            progress.step(f"fetching {name}")
            task = _task(name, folder)
            result = dataclasses.replace(bench_model(task, contenders, turns, progress.step), model=name)
            progress.note(_verdict(result))
            if result.warning:
                progress.note(result.warning)
            _explain(result, folder / f"{name}.html")
            results.append(result)
    table = models_table(results)
    print(f"\n{table}\n\n{usable_cores()} threads; libraries, explanations and figures are in {folder}/")
    (folder / "table.md").write_text(table + "\n", encoding="utf-8")
    (folder / "figures.json").write_text(
        json.dumps([r.to_dict() for r in results], indent=2), encoding="utf-8"
    )
    return results


def _task(name: str, folder: Path) -> Task:
    path = fetch(name)
    with native_output_hidden():
        model = load_onnx(path, MODELS[name].shapes)
    arrays = MODELS[name].inputs(model.inputs)
    target = target_json(dl.host_target())
    return Task(str(path), model, arrays, target, usable_cores(), str(folder / f"{name}.so"))


def _explain(result: Result, page: Path) -> None:
    with replacing(page) as draft:
        report = Report.from_json(json.dumps(result.report))
        draft.write_text(render(report, result.model), encoding="utf-8")


def _verdict(result: Result) -> str:
    ours = result.score(OURS)
    assert ours is not None and ours.difference is not None, "ours and the reference both took part"
    return f"{result.model} {result.verdict} with {result.reference}: {ours.difference}"


if __name__ == "__main__":
    sys.exit(main())
