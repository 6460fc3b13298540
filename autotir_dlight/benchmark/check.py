# SPDX-License-Identifier: Apache-2.0
"""Is a compiled model right? Compared with ONNX Runtime, in processes of their own."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArtifactError, CheckFailed
from ..frontend import Model
from .compare import Difference, compare
from .contenders import Job, available
from .names import LIBRARY, ONNX_RUNTIME, OURS, PLAIN, UNOPTIMISED
from .process import Worker


@dataclass(frozen=True)
class Task:
    """One model on one set of inputs.

    ``path`` is the ONNX file and ``model`` its import, ``arrays`` an array for each of its inputs, ``target``
    TVM's target as JSON, ``library`` the file of our compiled model, if there is one.
    """

    path: str
    model: Model
    arrays: Sequence[np.ndarray]
    target: str
    threads: int
    library: str = ""

    @property
    def outputs(self) -> list[str]:
        """The names of the model's outputs."""
        return [info.name for info in self.model.outputs]

    def job(self, contender: str) -> Job:
        """What ``contender`` is to do; ours and the library's own are the ones that know the library."""
        return Job(
            contender=contender,
            model=self.path,
            shapes={
                info.name: list(array.shape)
                for info, array in zip(self.model.inputs, self.arrays, strict=True)
            },
            threads=self.threads,
            target=self.target,
            library=self.library if contender in (OURS, LIBRARY) else "",
        )


def run_once(task: Task, contender: str) -> list[np.ndarray]:
    """The outputs of one run of ``contender``; raises ``WorkerError`` where it fails."""
    with tempfile.TemporaryDirectory() as folder, Worker(task.job(contender), Path(folder)) as worker:
        worker.load(task.arrays)
        worker.run(0.0, 1)
        return worker.outputs()


def spread(task: Task, reference: Sequence[np.ndarray]) -> Difference:
    """How far ONNX Runtime lies from ``reference``, its own outputs, when it computes them in another order.

    On inputs that mean nothing to a model its outputs can be made of rounding errors; then nothing can be
    compared with them.
    """
    return compare(run_once(task, UNOPTIMISED), reference, task.outputs)


def verify_library(task: Task) -> tuple[str, Difference]:
    """Compare the library of ``task`` with ONNX Runtime, or with plain TVM where that is not installed.

    Returns the reference's name and the difference. Raises ``CheckFailed`` where that is too large,
    ``ArtifactError`` where the inputs are such that the reference does not agree with itself either, and
    ``WorkerError`` where one of them does not run.
    """
    name = ONNX_RUNTIME if available(ONNX_RUNTIME) else PLAIN
    got, reference = run_once(task, LIBRARY), run_once(task, name)
    difference = compare(got, reference, task.outputs)
    if difference.passed:
        return name, difference
    if name == ONNX_RUNTIME and not (own := spread(task, reference)).passed:
        raise ArtifactError(f"these inputs decide nothing, {undecided(own)}")
    raise CheckFailed(f"the compiled model disagrees with {name}: {difference}")


def undecided(own: Difference) -> str:
    """The sentence for inputs on which the reference differs from itself by ``own``."""
    return f"since on them ONNX Runtime is {own.error:.1e} away from itself: give real ones with --input"


def target_json(target: Any) -> str:
    """TVM's target as a JSON text that ``tvm.target.Target(json.loads(text))`` reads back."""
    return json.dumps(json.loads(str(target)))
