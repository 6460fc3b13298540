# SPDX-License-Identifier: Apache-2.0
"""What bounds an operator on this machine: kernels that do its arithmetic, or move its bytes, and no more.

A bound takes its turns beside the contenders, so that a machine that slows down slows down for it as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
from tvm.script import tirx as T

from .memory import aligned

# Independent accumulators: more than latency × ports of any CPU that we know, few enough for 16 registers.
CHAINS = 12
# Places that a thread reads at once: the more, the more loads from memory are under way, until they are in
# each other's way. The bound is the fastest. Divisors of READ_CHAINS.
STREAMS = (1, 4, 8)
# Sums of that many vectors at a time hide the latency of an addition behind the loads.
READ_CHAINS = 8
FLOAT_BYTES = 4
# Long enough that waking the threads does not count.
FMA_SECONDS = 0.005
# Bytes of the buffers that measure memory, beyond the caches of a core by far.
BANDWIDTH_BYTES = 256 << 20
CALIBRATION_RUNS = 7


def fma_kernel(threads: int, lanes: int, steps: int) -> Any:
    """``main(x, out)`` that only multiplies and adds in registers, on every thread.

    ``x`` is float32[2 · lanes]: factor and summand. ``out`` is float32[threads · CHAINS · lanes]. It does
    ``2 · threads · CHAINS · lanes · steps`` floating-point operations.
    """

    @T.prim_func(s_tir=True)
    def main(source: T.handle, result: T.handle) -> None:
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        x = T.match_buffer(source, (2 * lanes,), "float32")
        out = T.match_buffer(result, (threads * CHAINS * lanes,), "float32")
        for t in T.parallel(threads):
            with T.sblock("task"):
                T.reads(x[0 : 2 * lanes])
                T.writes(out[t * CHAINS * lanes : (t + 1) * CHAINS * lanes])
                sums = T.sblock_alloc_buffer((CHAINS * lanes,), "float32", scope="local")
                for u in T.unroll(CHAINS):
                    for v in T.vectorized(lanes):
                        sums[u * lanes + v] = x[v]
                for _ in range(steps):
                    for u in T.unroll(CHAINS):
                        for v in T.vectorized(lanes):
                            sums[u * lanes + v] = sums[u * lanes + v] * x[v] + x[lanes + v]
                for u in T.unroll(CHAINS):
                    for v in T.vectorized(lanes):
                        out[(t * CHAINS + u) * lanes + v] = sums[u * lanes + v]

    return main


def copy_kernel(threads: int, lanes: int, steps: int, streams: int) -> Any:
    """``main(x, out)`` that copies ``steps`` vectors in each of ``streams`` places a thread.

    Both are float32[threads · streams · steps · lanes].
    """
    length = threads * streams * steps * lanes

    @T.prim_func(s_tir=True)
    def main(source: T.handle, result: T.handle) -> None:
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        x = T.match_buffer(source, (length,), "float32")
        out = T.match_buffer(result, (length,), "float32")
        for t in T.parallel(threads):
            for i in range(steps):
                for s in T.unroll(streams):
                    for v in T.vectorized(lanes):
                        at = T.meta_var(((t * streams + s) * steps + i) * lanes + v)
                        out[at] = x[at]

    return main


def read_kernel(threads: int, lanes: int, steps: int, streams: int) -> Any:
    """``main(x, out)`` that reads ``steps · READ_CHAINS`` vectors a thread once, adding them up.

    It reads in ``streams`` places at a time, a divisor of READ_CHAINS. ``x`` is float32[threads · steps ·
    READ_CHAINS · lanes], ``out`` float32[threads · READ_CHAINS · lanes].
    """
    width = READ_CHAINS * lanes
    piece = width // streams

    @T.prim_func(s_tir=True)
    def main(source: T.handle, result: T.handle) -> None:
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
        x = T.match_buffer(source, (threads * steps * width,), "float32")
        out = T.match_buffer(result, (threads * width,), "float32")
        for t in T.parallel(threads):
            with T.sblock("task"):
                T.reads(x[t * steps * width : (t + 1) * steps * width])
                T.writes(out[t * width : (t + 1) * width])
                sums = T.sblock_alloc_buffer((width,), "float32", scope="local")
                for u in T.unroll(READ_CHAINS):
                    for v in T.vectorized(lanes):
                        sums[u * lanes + v] = T.float32(0)
                for i in range(steps):
                    for s in T.unroll(streams):
                        for u in T.unroll(READ_CHAINS // streams):
                            for v in T.vectorized(lanes):
                                sums[s * piece + u * lanes + v] += x[
                                    ((t * streams + s) * steps + i) * piece + u * lanes + v
                                ]
                for u in T.unroll(READ_CHAINS):
                    for v in T.vectorized(lanes):
                        out[t * width + u * lanes + v] = sums[u * lanes + v]

    return main


@dataclass(frozen=True)
class Work:
    """What a computation cannot do without: floating-point operations, bytes in, bytes out."""

    flops: float
    read: int
    written: int


@dataclass(frozen=True)
class Peaks:
    """The machine's limits: GFLOP/s of float32 multiply-adds; GB/s of a copy (both ways) and of a read.

    The bandwidths are those of buffers far larger than any cache.
    """

    gflops: float
    copy_gbs: float
    read_gbs: float


def lanes_of(target: Any) -> int:
    """float32 lanes of the target's full vector."""
    from ..machine import CpuMachine

    return max(1, CpuMachine.from_target(target).vector_bits // 32)


def runner(kernel: Any, target: Any) -> Callable[[], Any]:
    """``kernel`` compiled, with arguments of its own: a function of nothing that runs it once."""
    function = tvm.compile(tvm.IRModule({"main": kernel}), target)["main"]
    arguments = []
    for parameter in kernel.params:
        array = aligned(tuple(int(d) for d in parameter.shape), "float32")
        # A half times itself plus a half stays at one: no denormal, no infinity slows the arithmetic down.
        array[...] = 0.5
        arguments.append(tvm.runtime.from_dlpack(array))
    return lambda: function(*arguments)


def fma_runner(flops: float, threads: int, target: Any) -> tuple[Callable[[], Any], float]:
    """A runner of about ``flops`` operations, and how many they are exactly."""
    lanes = lanes_of(target)
    a_step = 2 * threads * CHAINS * lanes
    steps = max(1, int(flops / a_step))
    return runner(fma_kernel(threads, lanes, steps), target), float(a_step * steps)


def traffic_runner(read: int, written: int, threads: int, target: Any) -> Callable[[], Any]:
    """A runner that moves as many bytes: a copy of what goes both ways, and a read of the rest."""
    lanes = lanes_of(target)
    vector = threads * lanes * FLOAT_BYTES
    both = min(read, written)
    calls = [
        _fastest(copy_kernel, both // vector, threads, target),
        _fastest(read_kernel, (max(read, written) - both) // (vector * READ_CHAINS), threads, target),
    ]
    return lambda: [call() for call in calls if call]


def _fastest(kernel: Callable[..., Any], steps: int, threads: int, target: Any) -> Callable[[], Any] | None:
    """The kernel in as many streams as are fastest; ``None`` where there is nothing to do."""
    made = []
    for streams in STREAMS:
        here = steps // streams if kernel is copy_kernel else steps
        if here:
            call = runner(kernel(threads, lanes_of(target), here, streams), target)
            made.append((shortest_run(call), call))
    return min(made, key=lambda pair: pair[0])[1] if made else None


@cache
def measured_peaks(threads: int, target_text: str) -> Peaks:
    """The machine's limits under ``target_text`` (TVM's target as JSON), measured once in this process."""
    target = tvm.target.Target(json.loads(target_text))
    rough, flops = fma_runner(1e8, threads, target)
    fine, flops = fma_runner(flops / shortest_run(rough) * FMA_SECONDS, threads, target)
    half = BANDWIDTH_BYTES // 2
    copy = traffic_runner(half, half, threads, target)
    read = traffic_runner(BANDWIDTH_BYTES, 0, threads, target)
    return Peaks(
        flops / shortest_run(fine) / 1e9,
        BANDWIDTH_BYTES / shortest_run(copy) / 1e9,
        BANDWIDTH_BYTES / shortest_run(read) / 1e9,
    )


def shortest_run(call: Callable[[], Any]) -> float:
    """The shortest of a few runs: what disturbs a run only ever makes it longer."""
    call()
    times = []
    for _ in range(CALIBRATION_RUNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
