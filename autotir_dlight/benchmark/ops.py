# SPDX-License-Identifier: Apache-2.0
"""Benchmark of operators: for each, the contenders that can express it take turns, beside what bounds it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import WorkerError
from .compare import Difference, compare
from .contenders import Job
from .models import PAUSE_SECONDS
from .names import BOUND, OURS, REFERENCES
from .operator_contenders import expressed_by
from .operators import Operator
from .process import Worker

WARM_UP_SECONDS = 0.05
TURN_SECONDS = 0.1
MOST_RUNS_A_TURN = 1000
# A contender that takes longer runs once; one run of it is exact enough beside the rest.
SLOW_SECONDS = 2.0

Tell = Callable[[str], None]
# GFLOP/s of float32 multiply-adds, GB/s of a copy and of a read.
_Peaks = tuple[float, float, float]


@dataclass(frozen=True)
class OperatorScore:
    """A contender on one operator.

    ``seconds`` is the median of all runs, ``ratio`` the median over the turns of its time divided by ours in
    the same turn (2.0: twice as slow as ours), ``difference`` how far its output is from the reference's.
    """

    contender: str
    version: str
    seconds: float
    ratio: float | None
    difference: Difference | None


@dataclass(frozen=True)
class OperatorResult:
    """All scores on one operator.

    ``failures`` says of contenders that did not run, or whose output is wrong, why. ``binds`` is
    ``"compute"`` or ``"memory"`` and ``share`` the bound's time divided by ours: 1.0 is all that the machine
    can do. Where data fits into a cache the bound is that cache's bandwidth. ``rule`` took the operator.
    """

    operator: str
    flops: float
    nbytes: int
    scores: list[OperatorScore]
    failures: dict[str, str] = field(default_factory=dict)
    binds: str = "memory"
    share: float | None = None
    rule: str = ""

    def score(self, contender: str) -> OperatorScore | None:
        """The score of a contender, ``None`` where it did not take part or failed."""
        return next((score for score in self.scores if score.contender == contender), None)

    @property
    def best_other(self) -> OperatorScore | None:
        """The fastest contender beside ours."""
        others = [score for score in self.scores if score.contender != OURS]
        return min(others, key=lambda score: score.ratio or score.seconds, default=None)

    @property
    def rate(self) -> float | None:
        """Our GFLOP/s where arithmetic bounds the operator, else GB/s."""
        ours = self.score(OURS)
        return (self.flops if self.binds == "compute" else self.nbytes) / ours.seconds / 1e9 if ours else None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        best = self.best_other
        return asdict(self) | {"rate": self.rate, "best": best.contender if best else None}


@dataclass(frozen=True)
class OperatorsResult:
    """All rows, and the machine's limits.

    ``peaks`` is GFLOP/s of float32 multiply-adds, GB/s of a copy (both ways) and GB/s of a read, of buffers
    far larger than a core's caches.
    """

    threads: int
    target: str
    rows: list[OperatorResult]
    peaks: _Peaks | None

    @property
    def geometric_mean(self) -> float | None:
        """The geometric mean of the best other contender's time divided by ours."""
        ratios = [b.ratio for row in self.rows if (b := row.best_other) and b.ratio]
        return statistics.geometric_mean(ratios) if ratios else None

    def to_dict(self) -> dict[str, Any]:
        """The results as plain data for JSON."""
        return {
            "threads": self.threads,
            "target": self.target,
            "peaks": dict(zip(("gflops", "copy_gbs", "read_gbs"), self.peaks)) if self.peaks else None,
            "geometric_mean": self.geometric_mean,
            "operators": [row.to_dict() for row in self.rows],
        }


class Crew(AbstractContextManager["Crew"]):
    """A process for each contender that lives from operator to operator, and anew where one died."""

    def __init__(self, threads: int, target: str) -> None:
        self._threads, self._target = threads, target
        self._workers: dict[str, Worker] = {}
        self._folder = tempfile.TemporaryDirectory()

    def load(self, contender: str, operator: str) -> tuple[Worker, dict[str, Any]]:
        """The contender's process with ``operator`` ready, and the facts; raises ``WorkerError``."""
        job = Job(contender, threads=self._threads, target=self._target, operator=operator)
        if contender not in self._workers:
            self._workers[contender] = Worker(job, Path(self._folder.name))
        return self._workers[contender], self._workers[contender].load_operator(job)

    def drop(self, contender: str) -> None:
        """End the contender's process."""
        if worker := self._workers.pop(contender, None):
            worker.__exit__()

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        for name in list(self._workers):
            self.drop(name)
        self._folder.cleanup()


def bench_operators(
    operators: Sequence[Operator],
    contenders: Sequence[str],
    threads: int,
    target: str,
    turns: int = 5,
    tell: Tell = lambda step: None,
) -> OperatorsResult:
    """Time ``operators`` (each checked first) for ``target``, TVM's target as JSON.

    ``tell`` hears of each operator. A contender that fails on one is left out of that row.
    """
    rows: list[OperatorResult] = []
    peaks: _Peaks | None = None
    with Crew(threads, target) as crew:
        for operator in operators:
            tell(operator.name)
            row, found = _bench_operator(crew, operator, contenders, turns)
            rows.append(row)
            peaks = _best(peaks, found)
    return OperatorsResult(threads, target, rows, peaks)


def _bench_operator(
    crew: Crew, operator: Operator, contenders: Sequence[str], turns: int
) -> tuple[OperatorResult, _Peaks | None]:
    able = [name for name in contenders if expressed_by(operator, name)]
    ready = _Ready(crew, operator)
    for name in able:
        ready.add(name)
    ready.check()
    ready.add(BOUND)
    times = take_turns(ready.workers, turns)
    bound = ready.facts.get(BOUND, {})
    share = None
    if BOUND in times and OURS in times:
        pairs = zip(times[BOUND], times[OURS], strict=True)
        share = statistics.median(bound["scale"] * a / b for a, b in pairs)
    row = OperatorResult(
        operator.name,
        operator.flops,
        operator.work.read + operator.work.written,
        [_score(name, ready, times) for name in times if name != BOUND],
        ready.failures,
        bound.get("binds", "memory"),
        share,
        _rule(ready.facts.get(OURS, {})),
    )
    return row, _peaks(operator, bound, times.get(BOUND, []))


def _best(one: _Peaks | None, other: _Peaks | None) -> _Peaks | None:
    """The higher limits of two: a machine that is disturbed shows less than it can."""
    if one is None or other is None:
        return one or other
    return max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2])


def _peaks(operator: Operator, bound: Mapping[str, Any], seconds: Sequence[float]) -> _Peaks | None:
    """The machine's limits as measured, or as the bound's turns showed them where that is more."""
    if not bound:
        return None
    gflops, copy, read = bound["peaks"]
    if bound["binds"] == "compute":
        gflops = max(gflops, operator.flops / (bound["scale"] * min(seconds)) / 1e9)
    return gflops, copy, read


class _Ready:
    """The contenders that have one operator ready, what they said, and how right they are."""

    def __init__(self, crew: Crew, operator: Operator) -> None:
        self._crew, self._operator = crew, operator
        self.workers: dict[str, Worker] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, str] = {}
        self.differences: dict[str, Difference] = {}

    def add(self, name: str) -> None:
        """Let the contender make the operator ready; a failure is noted."""
        try:
            self.workers[name], self.facts[name] = self._crew.load(name, self._operator.name)
        except WorkerError as err:
            self._fail(name, str(err))

    def _fail(self, name: str, why: str) -> None:
        self.workers.pop(name, None)
        self._crew.drop(name)
        self.failures[name] = why

    def check(self) -> None:
        """Compare all outputs with those of the first of :data:`REFERENCES`; who differs is left out."""
        outputs: dict[str, list[np.ndarray]] = {}
        for name in list(self.workers):
            try:
                self.workers[name].run(0.0, 1)
                outputs[name] = self.workers[name].outputs()
            except WorkerError as err:
                self._fail(name, str(err))
        reference = next((name for name in REFERENCES if name in outputs), "")
        for name in outputs:
            if name == reference:
                continue
            difference = compare(outputs[name], outputs[reference], ["its output"])
            if self._operator.tolerance:
                difference = replace(difference, tolerance=self._operator.tolerance)
            self.differences[name] = difference
            if not difference.passed:
                self._fail(name, f"{name} disagrees with {reference}: {difference}")


def take_turns(workers: Mapping[str, Worker], turns: int) -> dict[str, list[float]]:
    """Each contender's median seconds of each turn; those that are slow run once for all turns."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    once: dict[str, float] = {}
    for name, worker in workers.items():
        (first,) = worker.run(0.0, 1)
        if first > SLOW_SECONDS:
            once[name] = first
        else:
            worker.run(WARM_UP_SECONDS, MOST_RUNS_A_TURN)
    for _ in range(turns):
        for name, worker in workers.items():
            if name in once:
                times[name].append(once[name])
                continue
            time.sleep(PAUSE_SECONDS)
            times[name].append(statistics.median(worker.run(TURN_SECONDS, MOST_RUNS_A_TURN)))
    return times


def _score(name: str, ready: _Ready, times: Mapping[str, list[float]]) -> OperatorScore:
    ratio = None
    if OURS in times:
        ratio = statistics.median(a / b for a, b in zip(times[name], times[OURS], strict=True))
    return OperatorScore(
        name,
        str(ready.facts[name].get("version", "")),
        statistics.median(times[name]),
        ratio,
        ready.differences.get(name),
    )


def _rule(facts: Mapping[str, Any]) -> str:
    """The rules that took the function, by our report."""
    functions = (facts.get("report") or {}).get("functions", [])
    return ", ".join(dict.fromkeys(str(f.get("rule") or "none") for f in functions))
