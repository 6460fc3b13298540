# SPDX-License-Identifier: Apache-2.0
"""Benchmark of one model: contenders take turns, each in its own process, and are compared turn by turn."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckFailed
from ..frontend import Model
from .compare import Difference, compare, random_inputs
from .contenders import Job, available
from .names import LIBRARY, ONNX_RUNTIME, OURS, PLAIN
from .process import Worker

# Thread pools keep spinning for a while after a run, up to 100 ms here; the next in turn waits that out.
PAUSE_SECONDS = 0.15
WARM_UP_SECONDS = 0.3
TURN_SECONDS = 0.3
MOST_RUNS_A_TURN = 200


@dataclass(frozen=True)
class Score:
    """A contender's result.

    ``milliseconds`` is the median of all runs; ``ratio`` the median over the turns of its time divided by
    ours in the same turn (2.0: twice as slow as ours); ``compile_seconds`` what making the model ready took;
    ``difference`` how far its outputs are from the reference's.
    """

    contender: str
    version: str
    milliseconds: float
    ratio: float | None
    compile_seconds: float | None
    runs: int
    difference: Difference | None


@dataclass(frozen=True)
class Result:
    """All scores on one model, what they were compared with, and our report on its functions."""

    model: str
    threads: int
    target: str
    reference: str
    scores: list[Score]
    report: dict[str, Any] = field(default_factory=dict)

    def score(self, contender: str) -> Score | None:
        """The score of a contender, ``None`` where it did not take part."""
        return next((score for score in self.scores if score.contender == contender), None)

    @property
    def passed(self) -> bool:
        """Whether our outputs agree with the reference's, or there was nothing to compare them with."""
        ours = self.score(OURS)
        return ours is None or ours.difference is None or ours.difference.passed

    def scheduling(self) -> dict[str, float]:
        """How long our rules took: ``functions``, ``seconds`` together, ``seconds_a_function`` on average."""
        times = [function["seconds"] for function in self.report.get("functions", [])]
        mean = sum(times) / len(times) if times else 0.0
        return {"functions": len(times), "seconds": sum(times), "seconds_a_function": mean}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        functions = {f["function"]: f["seconds"] for f in self.report.get("functions", [])}
        plain = {key: value for key, value in asdict(self).items() if key != "report"}
        return plain | {"passed": self.passed, "scheduling": self.scheduling() | {"each": functions}}


@dataclass(frozen=True)
class Plan:
    """How a benchmark is run: who takes part, on how many threads, in how many turns.

    ``target`` is TVM's target as JSON; ``library`` is where our compiled model is written, if at all.
    """

    contenders: Sequence[str]
    threads: int
    target: str
    turns: int = 7
    library: str = ""


Tell = Callable[[str], None]


def bench_model(
    path: str,
    model: Model,
    plan: Plan,
    arrays: Sequence[np.ndarray] | None = None,
    tell: Tell = lambda step: None,
) -> Result:
    """Run the contenders of ``plan`` on the ONNX file ``path``, of which ``model`` is the import.

    ``arrays`` are the inputs (random ones where there are none); ``tell`` hears of each step, one for each
    contender and one for each of the turns.

    Raises ``ModelError`` where an input's shape is open, ``WorkerError`` where a contender fails.
    """
    arrays = arrays if arrays is not None else random_inputs(model.inputs)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers, facts = [], {}
        for name in plan.contenders:
            tell(f"preparing {name}")
            worker = Worker(_job(name, path, model, plan, arrays), folder)
            workers.append(stack.enter_context(worker))
            facts[name] = worker.load(arrays)
        times = _take_turns(workers, plan.turns, tell)
        outputs = {worker.name: worker.outputs() for worker in workers}
    reference = next((name for name in (ONNX_RUNTIME, PLAIN) if name in outputs), "")
    names = [info.name for info in model.outputs]
    differences = {
        name: compare(outputs[name], outputs[reference], names) if reference not in ("", name) else None
        for name in plan.contenders
    }
    scores = [_score(name, facts[name], times, differences[name]) for name in plan.contenders]
    report = facts.get(OURS, {}).get("report") or {}
    return Result(Path(path).name, plan.threads, plan.target, reference, scores, report)


def _job(name: str, path: str, model: Model, plan: Plan, arrays: Sequence[np.ndarray]) -> Job:
    return Job(
        contender=name,
        model=path,
        shapes={info.name: list(array.shape) for info, array in zip(model.inputs, arrays)},
        threads=plan.threads,
        target=plan.target,
        library=plan.library if name in (OURS, LIBRARY) else "",
        explain=name == OURS,
    )


def _take_turns(workers: Sequence[Worker], turns: int, tell: Tell) -> dict[str, list[list[float]]]:
    """The seconds of every run of every turn, by contender; the runs that warm up do not count."""
    for worker in workers:
        worker.run(WARM_UP_SECONDS, MOST_RUNS_A_TURN)
    times: dict[str, list[list[float]]] = {worker.name: [] for worker in workers}
    for turn in range(turns):
        tell(f"turn {turn + 1}")
        for worker in workers:
            time.sleep(PAUSE_SECONDS)
            times[worker.name].append(worker.run(TURN_SECONDS, MOST_RUNS_A_TURN))
    return times


def _score(
    name: str, facts: Mapping[str, Any], times: Mapping[str, list[list[float]]], difference: Difference | None
) -> Score:
    mine = [statistics.median(turn) for turn in times[name]]
    ratio = None
    if OURS in times:
        ours = [statistics.median(turn) for turn in times[OURS]]
        ratio = statistics.median(a / b for a, b in zip(mine, ours, strict=True))
    every = [seconds for turn in times[name] for seconds in turn]
    return Score(
        contender=name,
        version=str(facts.get("version", "")),
        milliseconds=1e3 * statistics.median(every),
        ratio=ratio,
        compile_seconds=facts.get("compile_seconds"),
        runs=len(every),
        difference=difference,
    )


def verify_library(
    path: str, model: Model, plan: Plan, arrays: Sequence[np.ndarray] | None = None
) -> tuple[str, Difference]:
    """Compare the compiled model ``plan.library`` with ONNX Runtime, or plain TVM if that is not installed.

    Takes what :func:`bench_model` takes; ``plan.contenders`` plays no part. Both run in processes of their
    own, so that code which this CPU cannot run is an error and not the end.

    Returns the reference's name and the difference. Raises ``CheckFailed`` where that is too large.
    """
    arrays = arrays if arrays is not None else random_inputs(model.inputs)
    reference = ONNX_RUNTIME if available(ONNX_RUNTIME) else PLAIN
    outputs = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (LIBRARY, reference):
            with Worker(_job(name, path, model, plan, arrays), Path(folder)) as worker:
                worker.load(arrays)
                worker.run(0.0, 1)
                outputs.append(worker.outputs())
    difference = compare(outputs[0], outputs[1], [info.name for info in model.outputs])
    if not difference.passed:
        raise CheckFailed(f"the compiled model disagrees with {reference}: {difference}")
    return reference, difference


def target_json(target: Any) -> str:
    """TVM's target as a JSON text that ``tvm.target.Target(json.loads(text))`` reads back."""
    return json.dumps(json.loads(str(target)))
