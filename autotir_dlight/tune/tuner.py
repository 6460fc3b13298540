# SPDX-License-Identifier: Apache-2.0
"""Tuning several tasks under one budget of trials, into a database.

The default of each task is measured and committed first. Trials then go, a batch at a time, to the task where
they promise to save the most time of the whole. In the end the best few of each task are measured in turns
with the default, and the winner is recorded: noise cannot crown a point that is slower than the default.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .cost import CostModel, Features, Sample
from .keys import digest
from .lookup import point_of, record_of
from .measure import Measured, MeasureError, Measurer
from .records import Database, Record, relative_time
from .roof import Roof
from .search import Search
from .space import Point
from .task import Skipped, Task

BATCH = 8
# Tasks that take less of the whole than this are left alone.
SMALLEST_SHARE = 0.01
# A gain below this is noise: the default stays.
SMALLEST_GAIN = 0.02
# Batches without a gain after which a task is done.
PATIENCE = 3
# A task this near to the roof is done.
NEAR_ROOF = 1.1
# Points that meet the default in the last comparison.
FINALISTS = 3
# Weight of what the last batches gained against what the roof leaves, when trials are given out.
TREND_WEIGHT = 0.5


@dataclass
class State:
    """How far one task is: what the live table and the report show. Times are seconds, relative times are
    to the default's, the geometric mean over the task's cases."""

    task: Task
    search: Search
    features: Features
    default: tuple[float, ...] = ()
    roof: float = 0.0
    trials: int = 0
    failed: int = 0
    history: list[float] = field(default_factory=list)
    stopped: str = ""
    winner: Point | None = None
    gain: float = 1.0

    @property
    def relative(self) -> float:
        """The best point's relative time."""
        return self.search.measured.get(self.search.best, 1.0) if self.default else 1.0

    @property
    def default_total(self) -> float:
        """Seconds of the default, the mean over the cases."""
        return sum(self.default) / len(self.default) if self.default else 0.0

    @property
    def weight(self) -> float:
        """Seconds that the module spends in it without tuning."""
        return self.task.calls * self.default_total

    def promise(self) -> float:
        """Seconds of the module that the next batch may save."""
        now = self.weight * self.relative
        recent = self.history[-PATIENCE:]
        trend = max(0.0, 1.0 - self.relative / recent[0]) / len(recent) if recent else 1.0
        left = 1.0 - self.roof / max(self.default_total * self.relative, self.roof, 1e-12)
        return now * (TREND_WEIGHT * trend + (1 - TREND_WEIGHT) * left / (1 + len(self.history)))


@dataclass(frozen=True)
class Result:
    """What tuning found: the tasks' states, the functions left alone, trials made, seconds taken, and the
    model's rank correlation on held-out points (``None``: too few)."""

    states: tuple[State, ...]
    skipped: tuple[Skipped, ...]
    trials: int
    seconds: float
    correlation: float | None

    @property
    def gain(self) -> float:
        """The time of all tasks by default over that when tuned."""
        before = sum(state.weight for state in self.states)
        after = sum(state.weight / state.gain for state in self.states)
        return before / after if after else 1.0


Progress = Callable[[Sequence[State], int, int], None]
"""Called after each batch with the states, the trials made and the budget."""


class Tuner:
    """Tunes tasks into ``database``.

    Parameters
    ----------
    database : where trials and winners are committed, and what an interrupted run is resumed from
    measurer : builds and times
    seed : the same seed and the same times give the same search
    model : use the cost model (extra ``tune``); without it points are drawn by evolution alone
    prior : records of other functions or shapes that the model learns from and the search begins with
    on_progress : told after each batch
    """

    def __init__(
        self,
        database: Database,
        measurer: Measurer,
        seed: int = 0,
        model: bool = True,
        prior: Sequence[Record] = (),
        on_progress: Progress | None = None,
    ) -> None:
        self.database, self.measurer, self.seed = database, measurer, seed
        self.prior = [*prior, *database.records()]
        self.model = CostModel(samples_of(self.prior)) if model else None
        self.on_progress = on_progress
        self._used = 0
        self._peaks = Roof()

    def tune(self, tasks: Sequence[Task], trials: int, skipped: Sequence[Skipped] = ()) -> Result:
        """Spend up to ``trials`` on the tasks; one more may be used for each task's default.

        Raises :class:`MeasureError` where not even one default can be built and run.
        """
        start = time.perf_counter()
        states = [self._state(task) for task in tasks]
        left_alone = list(skipped)
        self.measurer.prepare([(s.task, s.task.space.default) for s in states if not s.default])
        for state in states:
            self._measure_default(state)
        failed = [state for state in states if not state.default]
        if states and len(failed) == len(states):
            raise MeasureError(f"nothing can be measured: {failed[0].stopped}")
        self._leave_small(states, left_alone, failed)
        active = [state for state in states if not state.stopped]
        while active and self._used < trials:
            state = max(active, key=lambda s: s.promise())
            self._batch(state, min(BATCH, trials - self._used))
            self._tell(states, trials)
            active = [s for s in active if not s.stopped]
        alone = {entry.name for entry in left_alone}
        done = [state for state in states if state.default and state.task.name not in alone]
        for state in done:
            self._conclude(state)
            self._tell(states, trials)
        correlation = self.model.correlation if self.model else None
        return Result(tuple(done), tuple(left_alone), self._used, time.perf_counter() - start, correlation)

    def _tell(self, states: Sequence[State], trials: int) -> None:
        if self.on_progress is not None:
            self.on_progress(states, self._used, trials)

    def _state(self, task: Task) -> State:
        """A task's beginning: what this database has of it, and starting points from other extents."""
        start: list[Point] = []
        for record in self.prior:
            if record.kind == "best" and record.pattern == task.key.pattern:
                point = point_of(task.space, record)
                start += [point] if point is not None else []
        own = int(digest([task.key.pattern, list(task.key.extents), self.seed])[:8], 16)
        state = State(task, Search(task.space, own, start), Features(task.space))
        self._resume(state)
        return state

    def _resume(self, state: State) -> None:
        """Take over what an earlier run measured of the same task on the same machine."""
        task = state.task
        named = record_of(task.space, task.space.default, task.key)
        for record in self.database.records("trial", named["machine"], task.key.pattern):
            same = record.extents == task.key.extents and record.cases == task.extents
            point = point_of(task.space, record) if same else None
            if point is None:
                continue
            if point == task.space.default and record.seconds:
                state.default = record.seconds
            if state.default:
                self._enter(state, point, Measured(record.seconds, record.error), record.default_seconds)

    def _enter(self, state: State, point: Point, measured: Measured, default: Sequence[float]) -> None:
        """Put a measurement into the search; ``default`` are the default's times measured beside it."""
        state.search.update(point, relative_time(measured.seconds, default))
        state.trials += 1
        state.failed += not measured.seconds

    def _measure_default(self, state: State) -> None:
        """Measure the default where no earlier run did, and commit it as the winner so far."""
        task = state.task
        if not state.default:
            (measured,) = self.measurer.measure(task, [task.space.default])
            if not measured.seconds:
                state.stopped = measured.error
                return
            state.default = measured.seconds
            self._used += 1
            self._commit(state, task.space.default, measured, measured.seconds)
            self._enter(state, task.space.default, measured, measured.seconds)
            self.database.add(self._record("best", state, task.space.default, measured, measured.seconds))
        local = not self.measurer.remote
        roof = self._peaks.seconds(task, self.measurer.threads) if local else 0.0
        # A roof below which something runs was measured on a busy machine: it says nothing.
        state.roof = roof if roof < state.default_total else 0.0

    def _leave_small(self, states: list[State], left_alone: list[Skipped], failed: list[State]) -> None:
        """Stop the tasks that are too small a part of the whole, and say so."""
        whole = sum(state.weight for state in states)
        for state in states:
            if state in failed:
                left_alone.append(
                    Skipped(state.task.name, f"its default cannot be measured: {state.stopped}")
                )
            elif state.weight < SMALLEST_SHARE * whole:
                state.stopped = f"it takes {100 * state.weight / whole:.1f} % of the time"
                left_alone.append(Skipped(state.task.name, state.stopped))
            elif self._at_roof(state):
                state.stopped = "near the roof"

    @staticmethod
    def _at_roof(state: State) -> bool:
        return state.default_total * state.relative <= NEAR_ROOF * state.roof

    def _batch(self, state: State, count: int) -> None:
        """Measure the next points of a task, commit each, and see whether it is done."""
        predict = self._predictor(state)
        points = state.search.propose(count, predict)
        if not points:
            state.stopped = "every point was measured"
            return
        foreseen = predict(points) if predict else [None] * len(points)
        before = state.relative
        samples: list[Sample] = []
        found = self.measurer.beside(state.task, points, state.task.space.default)
        for point, guess, (measured, beside) in zip(points, foreseen, found):
            self._enter(state, point, measured, beside or state.default)
            self._commit(state, point, measured, beside or state.default, guess)
            samples += self._sample(state, point)
        self._used += len(points)
        state.history.append(before)
        if self.model is not None:
            self.model.learn(samples)
        self._judge(state)

    def _judge(self, state: State) -> None:
        """Stop a task whose space is measured, that is near the roof, or that no longer gains."""
        recent = state.history[-PATIENCE:]
        if state.search.exhausted:
            state.stopped = "every point was measured"
        elif self._at_roof(state):
            state.stopped = "near the roof"
        elif len(recent) == PATIENCE and state.relative > recent[0] * (1 - SMALLEST_GAIN):
            state.stopped = f"no gain in {PATIENCE} batches"

    def _predictor(self, state: State) -> Callable[[Sequence[Point]], list[float]] | None:
        model = self.model
        if model is None or not model.trained:
            return None
        return lambda points: model.predict([state.features.of(point) for point in points])

    def _sample(self, state: State, point: Point) -> list[Sample]:
        relative = state.search.measured[point]
        if self.model is None or not math.isfinite(relative):
            return []
        return [Sample(state.task.key.group, tuple(state.features.of(point)), -math.log(relative))]

    def _commit(
        self, state: State, point: Point, measured: Measured, default: Any, guess: float | None = None
    ) -> None:
        features = state.features.of(point) if self.model is not None and measured.seconds else []
        meta = {"features": features, "predicted": guess}
        self.database.add(self._record("trial", state, point, measured, default, meta))

    def _record(
        self, kind: Any, state: State, point: Point, measured: Measured, default: Any, meta: Any = None
    ) -> Record:
        task = state.task
        facts = {"name": task.name, "calls": task.calls, "roof": state.roof, **_versions(), **(meta or {})}
        return Record(
            kind=kind,
            cases=task.extents,
            seconds=measured.seconds,
            default_seconds=tuple(default),
            error=measured.error,
            meta=facts,
            **record_of(task.space, point, task.key),
        )

    def _conclude(self, state: State) -> None:
        """Measure the best few in turns with the default and commit the winner."""
        default = state.task.space.default
        points = [default, *(p for p in state.search.ranked(FINALISTS + 1) if p != default)][: FINALISTS + 1]
        if len(points) == 1 or state.relative > 1 - SMALLEST_GAIN:
            state.winner, state.gain = default, 1.0
            return
        turns = self.measurer.in_turns(state.task, points)
        ratios = {point: _ratio(mine, turns[0]) for point, mine in zip(points, turns)}
        best = min(ratios, key=lambda point: (ratios[point], point != default))
        state.winner = best if ratios[best] <= 1 - SMALLEST_GAIN else default
        state.gain = 1 / ratios[state.winner] if state.winner != default else 1.0
        at = points.index(state.winner)
        seconds, base = _medians(turns[at]), _medians(turns[0])
        self.database.add(self._record("best", state, state.winner, Measured(seconds), base))


def _ratio(mine: Sequence[Measured], default: Sequence[Measured]) -> float:
    """The time relative to the default's: the median over the rounds of that in the same round, or that of
    the medians where it is larger: on a machine of two speeds either alone can crown a loser."""
    if not all(m.seconds for m in mine):
        return math.inf
    found = [relative_time(m.seconds, d.seconds) for m, d in zip(mine, default) if d.seconds]
    return max(median(found), relative_time(_medians(mine), _medians(default))) if found else math.inf


def _medians(rounds: Sequence[Measured]) -> tuple[float, ...]:
    return tuple(median(times) for times in zip(*(m.seconds for m in rounds if m.seconds)))


def samples_of(records: Sequence[Record]) -> list[Sample]:
    """What a model can learn from records: the trials that ran and kept their features."""
    found = []
    for record in records:
        features = record.meta.get("features")
        if record.kind == "trial" and features and math.isfinite(record.relative):
            found.append(Sample(record.key.group, tuple(features), -math.log(record.relative)))
    return found


def _versions() -> dict[str, str]:
    import tvm

    return {"tvm": str(tvm.__version__)}
