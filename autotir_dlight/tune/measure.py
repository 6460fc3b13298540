# SPDX-License-Identifier: Apache-2.0
"""Building and timing the points of a task, on this machine or on boards behind an RPC tracker."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from .._tvm import IRModule
from ..errors import UserError, first_line
from ..extras import require
from ..host import set_num_threads
from ..rule import machine_of
from .build import load_calls
from .builder import ExecutorBuilder
from .case import allocate, allocate_remotely, evaluate, evaluate_remotely, make_case
from .meta_schedule import (
    BuilderInput,
    EvaluatorConfig,
    LocalRunner,
    RPCConfig,
    RPCRunner,
    RunnerInput,
    TensorInfo,
)
from .space import Point
from .task import Task

DEVICE = "cpu"
# What cloudpickle is for, in the words of an error.
PROCESSES = "measuring in processes of their own"
# Seconds for one candidate on one case.
RUN_SECONDS = 30.0
# Seconds within which a tracker must answer.
ANSWER_SECONDS = 10
# A measurement repeats the function for this long (ms), and is made this many times.
REPEAT_MS = 10
REPEATS = 3
# Rounds of the last comparison: the median of this many is what is recorded.
ROUNDS = 7


class MeasureError(UserError, RuntimeError):
    """Nothing can be built or run at all."""


@dataclass(frozen=True)
class Measured:
    """Seconds of a point, the shortest of its repeats in each case, or why there are none."""

    seconds: tuple[float, ...] = ()
    error: str = ""


def local_runner(cold_cache: bool = False, timeout_sec: float = RUN_SECONDS) -> Any:
    """Meta-schedule's runner in a process on this machine; ``cold_cache`` flushes what is not the first
    argument from the caches before each run."""
    require("cloudpickle", "tune", PROCESSES)
    return LocalRunner(timeout_sec=timeout_sec, evaluator_config=evaluator(cold_cache))


def rpc_runner(tracker: str, key: str, cold_cache: bool = False, timeout_sec: float = 4 * RUN_SECONDS) -> Any:
    """Meta-schedule's runner on the boards that an RPC tracker (``host:port``) has under ``key``.

    Raises :class:`MeasureError` where the tracker is not of that form, gone, or has no such board.
    """
    host, colon, port = tracker.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise MeasureError(f"{tracker!r} is no tracker: give it as host:port")
    require("cloudpickle", "tune", PROCESSES)
    config = RPCConfig(host, int(port), key, session_priority=1, session_timeout_sec=int(timeout_sec))
    count_boards(config, tracker, key)
    return RPCRunner(rpc_config=config, evaluator_config=evaluator(cold_cache), max_workers=1)


def count_boards(config: Any, tracker: str, key: str) -> int:
    """How many boards the tracker has under ``key``; raises :class:`MeasureError` where there are none."""
    try:
        # TVM tries for a long time to reach a tracker that is not there.
        socket.create_connection((config.tracker_host, config.tracker_port), timeout=ANSWER_SECONDS).close()
        boards = int(config._replace(session_timeout_sec=ANSWER_SECONDS).count_num_servers())
    except Exception as err:
        raise MeasureError(
            f"the RPC tracker {tracker} does not answer: start it or correct its address"
        ) from err
    if not boards:
        raise MeasureError(f"the RPC tracker {tracker} has no board under the key {key!r}")
    return boards


def evaluator(cold_cache: bool = False, repeats: int = REPEATS) -> Any:
    """How a candidate is timed."""
    return EvaluatorConfig(
        number=1,
        repeat=repeats,
        min_repeat_ms=0 if cold_cache else REPEAT_MS,
        enable_cpu_cache_flush=cold_cache,
    )


class Measurer:
    """Measures points of tasks; keeps the libraries that it has built until it is closed.

    Parameters
    ----------
    builder : a meta-schedule builder that makes shared libraries; default :class:`ExecutorBuilder`
    runner : what :func:`local_runner` (default) or :func:`rpc_runner` gives
    threads : threads that the functions run on; default the usable cores, on a board those of the target
    compiler : what the default builder links with
    """

    def __init__(
        self, builder: Any = None, runner: Any = None, threads: int | None = None, compiler: str = ""
    ) -> None:
        self._builder = builder if builder is not None else ExecutorBuilder(compiler=compiler)
        self._asked_threads = threads
        self._owns_builder = builder is None
        self._runner = runner
        # This process computes the results that are right, and the roof: on the same threads.
        set_num_threads(threads)
        # What was asked for, not what a pool that runs already has: the workers' pools are new.
        self.threads = int(os.environ["TVM_NUM_THREADS"])
        self._folder = tempfile.TemporaryDirectory(prefix="autotir-cases-")
        self._cases: dict[tuple[int, int], str] = {}
        self._built: dict[tuple[int, Point], tuple[str, str]] = {}
        # What is built and measured for a task is found by the task's own identity, so it must not be freed.
        self._tasks: dict[int, Task] = {}

    def __enter__(self) -> Measurer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what this started and remove its files."""
        if self._owns_builder:
            self._builder.close()
        self._folder.cleanup()

    @property
    def runner(self) -> Any:
        if self._runner is None:
            self._runner = local_runner()
        return self._runner

    @property
    def remote(self) -> bool:
        """Whether candidates run on another machine."""
        return hasattr(self.runner, "rpc_config")

    def measure(self, task: Task, points: Sequence[Point]) -> list[Measured]:
        """Build the points together and time them one after the other, on every case of the task."""
        self.prepare([(task, point) for point in points])
        return [self._time(task, point) for point in points]

    def beside(
        self, task: Task, points: Sequence[Point], default: Point
    ) -> list[tuple[Measured, tuple[float, ...]]]:
        """The same with the default timed between any two points: each with the default's times beside it,
        the mean of before and after. A busy machine changes its speed from one second to the next."""
        self.prepare([(task, point) for point in (default, *points)])
        found, before = [], self._time(task, default).seconds
        for point in points:
            measured, after = self._time(task, point), self._time(task, default).seconds
            found.append((measured, tuple((a + b) / 2 for a, b in zip(before, after)) or before or after))
            before = after
        return found

    def in_turns(self, task: Task, points: Sequence[Point], rounds: int = ROUNDS) -> list[list[Measured]]:
        """Time built points in turns, ``rounds`` times over: per point its measurements, round by round."""
        self.prepare([(task, point) for point in points])
        found: list[list[Measured]] = [[] for _ in points]
        for number in range(rounds):
            order = range(len(points)) if number % 2 == 0 else reversed(range(len(points)))
            for k in order:
                found[k].append(self._time(task, points[k]))
        return found

    def prepare(self, wanted: Sequence[tuple[Task, Point]]) -> None:
        """Build points, of several tasks too, together; those built before are there still."""
        inputs, built = [], []
        for task, point in wanted:
            self._tasks[id(task)] = task
            if (id(task), point) in self._built or (id(task), point) in built:
                continue
            try:
                func = task.space.build(point).mod["main"]
            except Exception as err:
                self._built[id(task), point] = ("", f"scheduling failed: {first_line(err)}")
                continue
            inputs.append(BuilderInput(IRModule({"main": func}), task.space.target))
            built.append((id(task), point))
        for place, result in zip(built, self._builder.build(inputs) if inputs else []):
            self._built[place] = (str(result.artifact_path or ""), str(result.error_msg or ""))

    def _case(self, task: Task, position: int) -> str:
        """The file with the arguments for the task's case."""
        place = (id(task), position)
        if place not in self._cases:
            path = Path(self._folder.name) / f"case{len(self._cases)}.npz"
            make_case(task.space.func, task.extents[position]).save(path)
            self._cases[place] = str(path)
        return self._cases[place]

    def _time(self, task: Task, point: Point) -> Measured:
        path, error = self._built[id(task), point]
        if error:
            return Measured(error=error)
        calls, seconds = load_calls(path), []
        for position in range(len(task.extents)):
            result = self._run(task, self._case(task, position), path, calls)
            if isinstance(result, str):
                return Measured(error=result)
            seconds.append(result)
        return Measured(tuple(seconds))

    def _run(self, task: Task, case: str, path: str, calls: Any) -> float | str:
        """The shortest of one candidate's times, or what went wrong."""
        runner = self.runner
        # A runner hands its functions neither the library's path nor the task: both are bound here.
        if self.remote:
            threads = self._asked_threads or machine_of(task.space.target).cores
            runner.f_alloc_argument = partial(allocate_remotely, case, threads)
        else:
            runner.f_alloc_argument = partial(allocate, case, self.threads)
        runner.f_run_evaluator = partial(evaluate_remotely if self.remote else evaluate, case, calls)
        info = [TensorInfo("float32", [1])]
        (future,) = runner.run([RunnerInput(path, DEVICE, info)])
        result = future.result()
        if result.error_msg is not None:
            return _told(str(result.error_msg))
        # What disturbs a run only ever makes it longer.
        return min(float(s) for s in result.run_secs)


def _told(message: str) -> str:
    """A runner's message in a sentence: the last line says what was raised."""
    if "Timeout" in message:
        return "running took too long and was ended"
    if "Subprocess terminated" in message:
        return "the process that ran the candidate died"
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1] if lines else "running failed"
