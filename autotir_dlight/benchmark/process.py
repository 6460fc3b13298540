# SPDX-License-Identifier: Apache-2.0
"""The parent's end of a contender's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WorkerError
from .contenders import Job
from .worker import load_arrays, save_arrays

# Libraries that make their results anew pay for fresh pages each time unless the allocator keeps them; and
# it asks for large ones, as NumPy does for the operands.
_KEEP_PAGES = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def _settings(job: Job) -> dict[str, str]:
    """Variables that libraries read only as they are loaded, for a process that runs operators."""
    if not job.operator:
        return {}
    return _KEEP_PAGES | {name: str(job.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}


class Worker:
    """A contender in its own process, where no other thread pool disturbs its own.

    Use it as a context manager: the process ends with the block. ``folder`` keeps the arrays that go over.
    Every method raises ``WorkerError`` where the contender fails or its process dies.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.name = job.contender
        self._job = job
        self._folder = folder
        # The worker runs this very copy of the package, however this process came to find it.
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotir_dlight.benchmark.worker"],
            env={**os.environ, **_settings(job), "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):  # a request that a dead process never read is flushed once more
            self._process.stdin.close()
        self._process.stdout.close()

    def load(self, arrays: Sequence[np.ndarray]) -> dict[str, Any]:
        """Make the model ready to run on ``arrays``: the facts that :meth:`Contender.load` gives."""
        path = str(self._folder / f"{self.name}-in.npz")
        save_arrays(path, list(arrays))
        return self._ask(do="load", job=self._job.to_dict(), inputs=path)

    def load_operator(self, job: Job) -> dict[str, Any]:
        """Make the operator of ``job`` ready to run on operands that the worker makes itself."""
        return self._ask(do="load", job=job.to_dict(), inputs="")

    def run(self, seconds: float, at_most: int) -> list[float]:
        """Run for ``seconds`` or ``at_most`` times, at least once: how many seconds each run took."""
        return list(self._ask(do="run", seconds=seconds, at_most=at_most)["seconds"])

    def outputs(self) -> list[np.ndarray]:
        """The outputs of the last run."""
        path = str(self._folder / f"{self.name}-out.npz")
        self._ask(do="outputs", path=path)
        return load_arrays(path)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerError(self._epitaph())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def _epitaph(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGILL:
            return (
                f"the process of {self.name} met an instruction that this CPU lacks: choose another --target"
            )
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"the process of {self.name} {how}: its own messages say why"
