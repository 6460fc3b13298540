# SPDX-License-Identifier: Apache-2.0
"""What ``bench ops`` and ``bench models`` do."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tvm

from ..artifact import check_arrays, check_writable, replacing
from ..benchmark import operator_contenders, plot, zoo
from ..benchmark.check import Task, target_json, undecided
from ..benchmark.compare import random_inputs
from ..benchmark.contenders import chosen
from ..benchmark.models import Result, bench_model, best_ratio
from ..benchmark.names import OURS
from ..benchmark.operator_table import operators_table
from ..benchmark.operators import select
from ..benchmark.ops import bench_operators
from ..benchmark.table import model_table, models_table
from ..console import Progress, native_output_hidden
from ..errors import UserError
from ..frontend import Model, load_onnx
from ..host import usable_cores
from . import options
from .answer import FAILED, OK, Answer, plain
from .targets import check_runs_here, parse_target


def operators(args: argparse.Namespace) -> Answer:
    """Time operators beside the other contenders."""
    wanted = select(args.names)
    if args.list:
        names = [operator.name for operator in wanted]
        return Answer({"operators": names}, "\n".join(names))
    target = parse_target(args.target)
    check_runs_here(target)
    contenders = operator_contenders.chosen(args.contender)
    threads = int(args.threads or usable_cores())
    _check_out(args)
    if args.plot:
        plot.check(args.plot)
    with Progress(len(wanted), "bench") as progress:
        result = bench_operators(wanted, contenders, threads, target_json(target), args.turns, progress.step)
    if args.plot:
        plot.draw(result, args.plot)
    wrong = any(row.failures for row in result.rows)
    return _document(args, result.to_dict(), operators_table(result), FAILED if wrong else OK)


def _check_out(args: argparse.Namespace) -> None:
    """Raise ``ArtifactError`` before a long run whose document could not be written at its end."""
    if args.out:
        check_writable(Path(args.out))


def _document(args: argparse.Namespace, data: dict[str, Any], text: str, code: int) -> Answer:
    """The answer as ``--format`` wants it, in the file of ``--out`` where that is given."""
    if args.format == "json":
        text = json.dumps(plain(data), allow_nan=False, indent=1)
    if args.out:
        with replacing(args.out) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
        text = f"{args.out} holds the figures"
    return Answer(data, text, code)


def models(args: argparse.Namespace) -> Answer:
    """Time models beside the other contenders."""
    if args.list:
        names = [model.name for model in zoo.select([])]
        return Answer({"models": names}, "\n".join(names))
    target = parse_target(args.target)
    check_runs_here(target)
    contenders = chosen(args.contender)
    _check_out(args)
    tasks = _tasks(args, target)
    results: list[Result] = []
    failures: dict[str, str] = {}
    with Progress(len(tasks) * (1 + len(contenders) + args.turns), "bench") as progress:
        for name, make in tasks:
            progress.step(f"importing {name}")
            try:
                result = bench_model(make(), contenders, args.turns, progress.step)
            except UserError as err:
                if len(tasks) == 1:
                    raise
                failures[name] = str(err)
            else:
                results.append(replace(result, model=name))
    wrong = bool(failures) or any(result.verdict == "disagrees" for result in results)
    data = {"models": [result.to_dict() for result in results], "failures": failures}
    text = "\n".join([_models_text(results), *(f"{name}: {why}" for name, why in failures.items())])
    return _document(args, data, text, FAILED if wrong else OK)


def _tasks(args: argparse.Namespace, target: tvm.target.Target) -> Sequence[tuple[str, Callable[[], Task]]]:
    """What to bench: names, and functions that import one model each, so that one is in memory at a time."""
    files = [name for name in args.names if name.endswith(".onnx") or Path(name).is_file()]
    patterns = [name for name in args.names if name not in files]
    if (args.input or args.shape) and (patterns or len(files) != 1):
        raise UserError("--input and --shape describe one ONNX file: give just that file")
    known = zoo.select(patterns) if patterns or not files else []
    threads = int(args.threads or usable_cores())

    def from_file(path: str) -> Task:
        model = _import(args, path, options.shapes(args.shape))
        arrays = check_arrays(model.inputs, options.arrays(args.input)) if args.input else None
        return Task(path, model, arrays or random_inputs(model.inputs), target_json(target), threads)

    def by_name(entry: zoo.KnownModel) -> Task:
        path = str(entry.path())
        model = _import(args, path, entry.shapes)
        return Task(path, model, entry.inputs(model.inputs), target_json(target), threads)

    tasks = [(Path(path).name, partial(from_file, path)) for path in files]
    return tasks + [(entry.name, partial(by_name, entry)) for entry in known]


def _import(args: argparse.Namespace, path: str, shapes: Mapping[str, Sequence[int]]) -> Model:
    with native_output_hidden(not args.debug):
        return load_onnx(path, shapes)


def _models_text(results: Sequence[Result]) -> str:
    """One model as a row for each contender, several as a row each; then what to know about the figures."""
    if not results:
        return ""
    table = model_table(results[0]) if len(results) == 1 else models_table(results)
    lines = [table, "", f"{results[0].threads} threads"]
    if len(results) > 1 and (mean := best_ratio(results)):
        lines[-1] += f"; best other / ours, geometric mean of {len(results)}: {mean:.2f}×"
    for result in results:
        scheduling = result.scheduling()
        if scheduling["functions"] and len(results) == 1:
            lines[-1] += (
                f"; {scheduling['functions']:.0f} functions were scheduled in {scheduling['seconds']:.2f} s, "
                f"{scheduling['seconds_a_function']:.3f} s each"
            )
        if result.verdict == "disagrees" and (ours := result.score(OURS)):
            lines.append(f"{result.model} disagrees with {result.reference}: {ours.difference}")
        if result.verdict == "undecided" and result.spread:
            lines.append(f"{result.model}: the difference means nothing, {undecided(result.spread)}")
        lines += [result.warning] if result.warning else []
    return "\n".join(lines)
