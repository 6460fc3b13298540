# SPDX-License-Identifier: Apache-2.0
"""Benchmark of one model: contenders take turns, each in its own process, and are compared turn by turn."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from .check import Task, spread
from .compare import Difference, compare
from .names import ONNX_RUNTIME, OURS, PLAIN
from .process import Worker

# Thread pools keep spinning for a while after a run, up to 100 ms here; the next in turn waits that out.
PAUSE_SECONDS = 0.15
WARM_UP_SECONDS = 0.3
TURN_SECONDS = 0.3
MOST_RUNS_A_TURN = 200
# A contender that takes longer runs once; one run of it is exact enough beside the rest.
SLOW_SECONDS = 5.0
# Threads that wait for each other by spinning lose far more than the share that another program takes.
BUSY_SECONDS = 0.5
BUSY_SHARE = 0.1


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
    """All scores on one model, what they were compared with, and our report on its functions.

    ``spread`` is how far the reference is from itself, looked at only where ours is too far from it. ``busy``
    is the share of the machine that other programs used just before, 0 to 1.
    """

    model: str
    threads: int
    target: str
    reference: str
    scores: list[Score]
    spread: Difference | None = None
    busy: float = 0.0
    report: dict[str, Any] = field(default_factory=dict)

    def score(self, contender: str) -> Score | None:
        """The score of a contender, ``None`` where it did not take part."""
        return next((score for score in self.scores if score.contender == contender), None)

    @property
    def verdict(self) -> str:
        """Whether our outputs agree with the reference's.

        ``"agrees"``, ``"disagrees"``, ``"undecided"`` (the reference does not agree with itself on these
        inputs), or ``"not compared"``.
        """
        ours = self.score(OURS)
        if ours is None or ours.difference is None:
            return "not compared"
        if ours.difference.passed:
            return "agrees"
        return "disagrees" if self.spread is None or self.spread.passed else "undecided"

    @property
    def warning(self) -> str:
        """A sentence where the times cannot be relied on, else nothing."""
        if self.busy < BUSY_SHARE:
            return ""
        return f"other programs use {self.busy:.0%} of this machine: the times of {self.model} are off"

    def scheduling(self) -> dict[str, float]:
        """How long our rules took: ``functions``, ``seconds`` together, ``seconds_a_function`` on average."""
        times = [function["seconds"] for function in self.report.get("functions", [])]
        mean = sum(times) / len(times) if times else 0.0
        return {"functions": len(times), "seconds": sum(times), "seconds_a_function": mean}

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        functions = {f["function"]: f["seconds"] for f in self.report.get("functions", [])}
        plain = {key: value for key, value in asdict(self).items() if key != "report"}
        return plain | {"verdict": self.verdict, "scheduling": self.scheduling() | {"each": functions}}


def best_ratio(results: Sequence[Result]) -> float | None:
    """The geometric mean over the models of the fastest other contender's time divided by ours."""
    others = [[s.ratio for s in result.scores if s.contender != OURS and s.ratio] for result in results]
    fastest = [min(ratios) for ratios in others if ratios]
    return statistics.geometric_mean(fastest) if fastest else None


Tell = Callable[[str], None]
# The seconds of every run of every turn, by contender.
Times = Mapping[str, list[list[float]]]


def bench_model(
    task: Task, contenders: Sequence[str], turns: int = 7, tell: Tell = lambda step: None
) -> Result:
    """Run ``contenders`` on ``task`` in ``turns``; where ours takes part it writes the library of ``task``.

    ``tell`` hears of each step, one for each contender and one for each of the turns.

    Raises ``WorkerError`` where a contender fails.
    """
    busy = psutil.cpu_percent(BUSY_SECONDS) / 100
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers, facts = [], {}
        for name in contenders:
            tell(f"preparing {name}")
            workers.append(stack.enter_context(Worker(task.job(name), folder)))
            facts[name] = workers[-1].load(task.arrays)
        times = _take_turns(workers, turns, tell)
        outputs = {worker.name: worker.outputs() for worker in workers}
    return replace(_result(task, facts, times, outputs), busy=busy)


def _result(
    task: Task, facts: Mapping[str, Any], times: Times, outputs: Mapping[str, list[np.ndarray]]
) -> Result:
    reference = next((name for name in (ONNX_RUNTIME, PLAIN) if name in outputs), "")
    scores = []
    own = None
    for name in outputs:
        difference = None
        if reference not in ("", name):
            difference = compare(outputs[name], outputs[reference], task.outputs)
        if name == OURS and reference == ONNX_RUNTIME and difference and not difference.passed:
            own = spread(task, outputs[reference])
        scores.append(_score(name, facts[name], times, difference))
    report = facts.get(OURS, {}).get("report") or {}
    name = Path(task.path).name
    return Result(name, task.threads, task.target, reference, scores, own, report=report)


def _take_turns(workers: Sequence[Worker], turns: int, tell: Tell) -> dict[str, list[list[float]]]:
    """The seconds of every run of every turn, by contender; the runs that warm up do not count.

    A run of a slow contender stands for its runs in all turns.
    """
    warm = {worker.name: worker.run(WARM_UP_SECONDS, MOST_RUNS_A_TURN) for worker in workers}
    times: dict[str, list[list[float]]] = {worker.name: [] for worker in workers}
    for turn in range(turns):
        tell(f"turn {turn + 1}")
        for worker in workers:
            if warm[worker.name][0] > SLOW_SECONDS:
                times[worker.name].append(warm[worker.name][:1])
                continue
            time.sleep(PAUSE_SECONDS)
            times[worker.name].append(worker.run(TURN_SECONDS, MOST_RUNS_A_TURN))
    return times


def _score(name: str, facts: Mapping[str, Any], times: Times, difference: Difference | None) -> Score:
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
