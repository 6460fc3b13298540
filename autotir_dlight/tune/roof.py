# SPDX-License-Identifier: Apache-2.0
"""What the machine allows: the shortest time a task can take, so that tuning stops where nothing is left."""

from __future__ import annotations

from math import prod
from typing import Any

from ..machine import dtype_bits
from ..patterns import stage_function
from ..rule import machine_of
from .task import Task

# Data must be this many times the last cache for its traffic to be bound by memory.
CACHES = 2


class Roof:
    """Times from the machine's limits, which are measured once and only when they are needed."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[int, str], Any] = {}

    def seconds(self, task: Task, threads: int) -> float:
        """Seconds that the task cannot be faster than; 0 where that is not known: symbolic extents, other
        types than float32, data that stays in the caches."""
        flops, moved = flops_of(task), bytes_of(task)
        machine = machine_of(task.space.target)
        if moved < CACHES * max(machine.l3_bytes, machine.l2_bytes):
            moved = 0
        if not flops and not moved:
            return 0.0
        peaks = self._measured(threads, str(task.space.target))
        return max(flops / (peaks.gflops * 1e9), moved / (peaks.read_gbs * 1e9))

    def _measured(self, threads: int, target: str) -> Any:
        from ..benchmark.roofline import measured_peaks

        key = (threads, target)
        if key not in self._peaks:
            self._peaks[key] = measured_peaks(threads, target)
        return self._peaks[key]


def flops_of(task: Task) -> int:
    """Operations of the task's float32 contractions; 0 where an extent is symbolic."""
    total = 0
    for stage in stage_function(task.space.view).stages:
        if stage.contraction is None or any(r.dtype != "float32" for r in stage.reads):
            continue
        total += 2 * (stage.anchor.volume() or 0)
    return total


def bytes_of(task: Task) -> int:
    """Bytes of the task's parameters; 0 where an extent is symbolic."""
    total = 0
    for param in task.space.view.params:
        shape = [int(d) if hasattr(d, "value") else 0 for d in param.shape]
        total += prod(shape) * dtype_bits(str(param.dtype)) // 8
    return total
