# SPDX-License-Identifier: Apache-2.0
"""The process of one contender: requests come in as lines of JSON on stdin, answers go out on stdout.

Started by :class:`autotir_dlight.benchmark.process.Worker` as ``python -m autotir_dlight.benchmark.worker``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from .. import settings
from ..console import native_output_hidden
from ..errors import UserError, first_line
from .contenders import CONTENDERS, Contender, Job


class Server:
    """Carries out the requests for the one contender that ``load`` names."""

    def __init__(self) -> None:
        self._contender: Contender | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, whose ``do`` is ``load``, ``run`` or ``outputs``."""
        steps: dict[str, Callable[..., dict[str, Any]]]
        steps = {"load": self._load, "run": self._run, "outputs": self._outputs}
        return steps[request.pop("do")](**request)

    def _load(self, job: dict[str, Any], inputs: str) -> dict[str, Any]:
        self._contender = None  # the one before lets go of its memory first
        contender = _contender(job)
        with native_output_hidden():
            facts = contender.load(Job.from_dict(job))
        if inputs:
            contender.feed(load_arrays(inputs))
        self._contender = contender
        return facts

    def _run(self, seconds: float, at_most: int) -> dict[str, Any]:
        """Run until ``seconds`` have passed or ``at_most`` times, at least once: the seconds of each run."""
        assert self._contender is not None, "load comes first"
        times: list[float] = []
        while not times or (sum(times) < seconds and len(times) < at_most):
            start = time.perf_counter()
            self._contender.run()
            times.append(time.perf_counter() - start)
        return {"seconds": times}

    def _outputs(self, path: str) -> dict[str, Any]:
        assert self._contender is not None, "load comes first"
        save_arrays(path, self._contender.outputs())
        return {}


def _contender(job: dict[str, Any]) -> Contender:
    if job["operator"]:
        from .operator_contenders import ON_OPERATORS

        return ON_OPERATORS[job["contender"]]()
    return CONTENDERS[job["contender"]]()


def save_arrays(path: str, arrays: list[np.ndarray]) -> None:
    """Write arrays to an ``.npz`` file in order, under names that keep types for :func:`load_arrays`."""
    with Path(path).open("wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            **{f"{index:04d}:{array.dtype}": array for index, array in enumerate(arrays)},
        )


def load_arrays(path: str) -> list[np.ndarray]:
    """Read back what :func:`save_arrays` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        return [_restored(stored[name], name) for name in sorted(stored.files)]


def _restored(array: np.ndarray, name: str) -> np.ndarray:
    from ..artifact import numpy_dtype

    dtype = numpy_dtype(name.partition(":")[2])
    return array if array.dtype == dtype else array.view(dtype)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer each line of ``requests`` with a line of ``answers``; a failure is an ``error``."""
    server = Server()
    for line in requests:
        try:
            answer = server.answer(json.loads(line))
        except UserError as err:
            answer = {"error": str(err)}
        except Exception as err:
            if settings.current().debug:
                traceback.print_exc()
            answer = {"error": f"{type(err).__name__}: {first_line(err)}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve on this process's stdin and stdout; whatever else prints to stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
