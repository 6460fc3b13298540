# SPDX-License-Identifier: Apache-2.0
"""What the commands do: each takes the parsed arguments and returns its answer; none prints."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import tvm

import autotir_dlight as dl

from ..artifact import CompiledModel, check_arrays, compile_model, link, replacing
from ..benchmark.check import Task, target_json, verify_library
from ..benchmark.compare import Difference, random_inputs
from ..console import Progress, native_output_hidden
from ..errors import ArtifactError, UserError
from ..frontend import Model, load_onnx
from ..host import usable_cores
from ..html import render
from ..tune.lookup import TunedPlans
from . import options
from .answer import Answer
from .targets import check_runs_here, parse_target


def load(args: argparse.Namespace) -> Model:
    """The model that the arguments name, its shapes fixed by ``--shape``."""
    with native_output_hidden(not args.debug):
        return load_onnx(args.model, options.shapes(args.shape))


def _task(args: argparse.Namespace, model: Model, target: tvm.target.Target, library: str = "") -> Task:
    arrays = (
        check_arrays(model.inputs, options.arrays(args.input)) if args.input else random_inputs(model.inputs)
    )
    threads = int(args.threads or usable_cores())
    return Task(args.model, model, arrays, target_json(target), threads, library)


def compile_(args: argparse.Namespace) -> Answer:
    """Compile a model and write it; with ``--verify`` only if its outputs are right."""
    target = parse_target(args.target)
    if args.verify:
        check_runs_here(target)
    tuned = TunedPlans(args.database, any_machine=args.any_machine) if args.database else None
    seconds: dict[str, float] = {}
    verified: tuple[str, Difference] | None = None
    with Progress(4 if args.verify else 3, "compile") as progress, replacing(args.output) as draft:
        with _timed(seconds, progress, "import"):
            model = load(args)
            task = _task(args, model, target, str(draft)) if args.verify else None
        with _timed(seconds, progress, "compile"):
            executable = compile_model(model, target, dl.pipeline(target, database=tuned))
        with _timed(seconds, progress, "link"):
            link(executable, draft, args.cc)
        if task:
            with _timed(seconds, progress, "verify"):
                verified = verify_library(task)
    return _compiled(args, model, target, seconds, verified)


def _compiled(
    args: argparse.Namespace,
    model: Model,
    target: tvm.target.Target,
    seconds: dict[str, float],
    verified: tuple[str, Difference] | None,
) -> Answer:
    data = {
        "model": args.model,
        "library": args.output,
        "target": json.loads(target_json(target)),
        "inputs": [asdict(info) for info in model.inputs],
        "outputs": [asdict(info) for info in model.outputs],
        "seconds": seconds,
        "verify": {"reference": verified[0], **asdict(verified[1])} if verified else None,
    }
    lines = [f"{args.output}, in " + ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())]
    lines += [f"  takes {info}" for info in model.inputs]
    lines += [f"  gives {info}" for info in model.outputs]
    if verified:
        lines.append(f"  agrees with {verified[0]}: {verified[1]}")
    return Answer(data, "\n".join(lines))


@contextmanager
def _timed(seconds: dict[str, float], progress: Progress, name: str) -> Iterator[None]:
    progress.step(name)
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


def run(args: argparse.Namespace) -> Answer:
    """Run a compiled model once on the given arrays."""
    model = CompiledModel.load(args.library)
    try:
        dl.set_num_threads(args.threads)
    except ValueError as err:
        raise UserError(str(err)) from err
    outputs = model.run(options.arrays(args.input))
    names = [info.name for info in model.signature.outputs]
    described = [_describe(name, array) for name, array in zip(names, outputs, strict=True)]
    if args.output:
        for index, (entry, array) in enumerate(zip(described, outputs, strict=True)):
            entry["file"] = str(_save(Path(args.output), index, array))
    lines = [_line(entry) for entry in described]
    return Answer({"library": args.library, "outputs": described}, "\n".join(lines))


def _describe(name: str, array: np.ndarray) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
    finite = array.astype("float64")[np.isfinite(array.astype("float64"))]
    if finite.size:
        entry |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return entry


def _line(entry: dict[str, Any]) -> str:
    text = f"{entry['name']}: {entry['dtype']} {' x '.join(map(str, entry['shape']))}"
    if "min" in entry:
        text += f", from {entry['min']:.6g} to {entry['max']:.6g}, mean {entry['mean']:.6g}"
    return text + (f" -> {entry['file']}" if "file" in entry else "")


def _save(folder: Path, index: int, array: np.ndarray) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise ArtifactError(f"cannot make the folder {str(folder)!r}: {err.strerror}") from err
    path = folder / f"output_{index}.npy"
    with replacing(path) as draft:
        np.save(draft, array, allow_pickle=False)
    return path


def explain(args: argparse.Namespace) -> Answer:
    """Say what the rules did with each function of a model."""
    target = parse_target(args.target)
    with Progress(2, "explain") as progress:
        progress.step("import")
        model = load(args)
        progress.step("schedule")
        report = dl.explain(model.module, target)
    text = str(report)
    if args.html:
        with replacing(args.html) as draft:
            draft.write_text(render(report, Path(args.model).name), encoding="utf-8")
        text = f"{args.html}: {len(report)} functions"
    return Answer(json.loads(report.to_json()), text)
