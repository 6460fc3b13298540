# SPDX-License-Identifier: Apache-2.0
"""A meta-schedule builder that spreads its work over any ``concurrent.futures.Executor``.

Meta-schedule's own ``LocalBuilder`` starts its processes anew for every batch, and each of them then imports
TVM and parses every tensor intrinsic (see ``meta_schedule.py``), which takes longer than the candidates.
Here the processes stay; one that dies or runs out of time is replaced, and only its own candidate is lost.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .._tvm import IRModule, ir
from ..errors import first_line, last_line
from ..extras import require
from ..host import usable_cores
from .build import compile_candidate
from .meta_schedule import BuilderResult, PopenPoolExecutor, PyBuilder, derived_object

# Seconds for one candidate; the first one of a process also waits for TVM's import.
BUILD_SECONDS = 60.0
# More seconds for the pool to see that a process is out of time and to end it.
GRACE_SECONDS = 10.0
# Candidates after which a process is replaced, since what was compiled in it is never freed.
USES = 200


@derived_object
class ExecutorBuilder(PyBuilder):
    """Builds candidates on ``executor``; for :func:`autotir_dlight.tune.tune_tir` or meta-schedule's own.

    Parameters
    ----------
    executor : anything with ``submit(function, *args)`` that gives a future, such as a
        ``concurrent.futures`` executor or Dask's ``Client(…).get_executor()``; its workers must see the same
        file system. Default: processes on this machine, one a core
    timeout_sec : seconds that one candidate may take
    compiler : the compiler that links, for targets that the system's cannot link for
    """

    def __init__(self, executor: Any = None, timeout_sec: float = BUILD_SECONDS, compiler: str = "") -> None:
        super().__init__()
        self._executor, self.timeout_sec, self.compiler = executor, timeout_sec, compiler
        self._own: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="autotir-build-")
        self._numbers = itertools.count()

    def build(self, build_inputs: list[Any]) -> list[Any]:
        """A ``BuilderResult`` with the library's path or an error, one for each ``BuilderInput``."""
        deadline = time.monotonic() + self._allowed(len(build_inputs))
        futures = [self._submit(entry) for entry in build_inputs]
        return [self._result(future, deadline) for future in futures]

    def close(self) -> None:
        """End the processes and remove the libraries."""
        if self._own is not None:
            self._own.shutdown()
            self._own = None
        self._folder.cleanup()

    def _submit(self, entry: Any) -> Future[str] | str:
        # A folder for each: meta-schedule removes the folder of a library that it has measured.
        folder = Path(self._folder.name) / str(next(self._numbers))
        path = str(folder / "candidate.so")
        try:
            folder.mkdir()
            module = ir.save_json(IRModule({"main": entry.mod["main"]}))
            return self._pool().submit(compile_candidate, module, str(entry.target), path, self.compiler)
        except Exception as err:  # an executor that is broken or shut down says so here
            return f"the builder's executor takes no work: {first_line(err)}"

    def _pool(self) -> Any:
        if self._executor is not None:
            return self._executor
        if self._own is None:
            require("cloudpickle", "tune", "building in processes of their own")
            self._own = PopenPoolExecutor(
                max_workers=max(1, usable_cores()),
                timeout=self.timeout_sec,
                maximum_process_uses=USES,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self._own

    def _allowed(self, count: int) -> float:
        """Seconds for ``count`` candidates, which the workers share."""
        rounds = -(-count // max(1, min(count, os.cpu_count() or 1))) or 1
        return rounds * self.timeout_sec + GRACE_SECONDS

    def _result(self, future: Future[str] | str, deadline: float) -> Any:
        if isinstance(future, str):
            return BuilderResult(None, future)
        try:
            path = future.result(timeout=max(0.1, deadline - time.monotonic()))
        except TimeoutError:
            future.cancel()
            return BuilderResult(None, f"building took longer than {self.timeout_sec:.0f} s")
        except ChildProcessError:
            return BuilderResult(
                None, "the process that built the candidate died, or cannot import autotir_dlight"
            )
        except Exception as err:
            return BuilderResult(None, f"building failed: {last_line(err)}")
        return BuilderResult(path, None)
