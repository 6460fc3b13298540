# SPDX-License-Identifier: Apache-2.0
"""What takes part in a benchmark. Each of these lives in a worker process that runs nothing else."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..errors import UserError
from ..extras import installed
from . import names


@dataclass(frozen=True)
class Job:
    """What a contender is to run.

    ``contender`` is a key of :data:`CONTENDERS`, ``model`` an ONNX file, ``shapes`` its input shapes by name,
    ``target`` TVM's target as JSON, ``library`` the file of a compiled model (the contender ``library`` reads
    it, ``ours`` writes it where it is given). ``operator`` names an operator to run instead of a model, by a
    contender of :mod:`.operator_contenders`.
    """

    contender: str
    model: str = ""
    shapes: dict[str, list[int]] = field(default_factory=dict)
    threads: int = 1
    target: str = ""
    library: str = ""
    operator: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The job as plain data, for :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Job:
        """Read back what :meth:`to_dict` gave."""
        return cls(**raw)


class Contender(ABC):
    """One way to run a model on the CPU."""

    needs = ""  # the Python package without which it cannot take part

    @abstractmethod
    def load(self, job: Job) -> dict[str, Any]:
        """Make the model ready; returns facts about that (``version``, ``compile_seconds``…)."""

    @abstractmethod
    def feed(self, arrays: Sequence[np.ndarray]) -> None:
        """Take the inputs of every following :meth:`run`."""

    @abstractmethod
    def run(self) -> None:
        """Run the model once, to the end."""

    @abstractmethod
    def outputs(self) -> list[np.ndarray]:
        """The outputs of the last :meth:`run`."""


class _Tvm(Contender):
    """A compiled model under TVM's virtual machine."""

    def _start(self, executable: Any, threads: int) -> None:
        import autotir_dlight as dl

        from ..artifact import CompiledModel

        dl.set_num_threads(threads)
        self._model = executable if isinstance(executable, CompiledModel) else CompiledModel(executable)

    def feed(self, arrays: Sequence[np.ndarray]) -> None:
        self._tensors = self._model.prepare(arrays)

    def run(self) -> None:
        self._result = self._model.call(self._tensors)

    def outputs(self) -> list[np.ndarray]:
        return self._model.fetch(self._result)


class Library(_Tvm):
    """A shared library written by ``autotir-dlight compile``."""

    def load(self, job: Job) -> dict[str, Any]:
        from ..artifact import CompiledModel

        self._start(CompiledModel.load(job.library), job.threads)
        return {"version": job.library}


class _Compiled(_Tvm):
    """A model compiled here, by the pipeline of a subclass."""

    def _compile(self, job: Job, pipeline: Any) -> tuple[Any, dict[str, Any]]:
        import tvm

        from ..artifact import compile_model
        from ..frontend import load_onnx

        model = load_onnx(job.model, job.shapes)
        start = time.perf_counter()
        executable = compile_model(model, target_of(job), pipeline)
        seconds = time.perf_counter() - start
        self._start(executable, job.threads)
        return executable, {"version": tvm.__version__, "compile_seconds": seconds}


def target_of(job: Job) -> Any:
    """The target that ``job`` names, as TVM's own object."""
    import tvm

    return tvm.target.Target(json.loads(job.target))


class PlainTvm(_Compiled):
    """``tvm.compile`` with its default pipeline, for the same target as ours."""

    def load(self, job: Job) -> dict[str, Any]:
        return self._compile(job, "default")[1]


class Ours(_Compiled):
    """``tvm.compile`` with this package's pipeline."""

    def load(self, job: Job) -> dict[str, Any]:
        import autotir_dlight as dl

        from ..artifact import link, replacing

        target = target_of(job)
        report = dl.Report(target=str(target))
        executable, facts = self._compile(job, dl.pipeline(target, report=report))
        if job.library:
            with replacing(job.library) as draft:
                link(executable, draft)
        return facts | {"version": dl.__version__, "report": json.loads(report.to_json())}


class OnnxRuntime(Contender):
    """ONNX Runtime on its CPU provider."""

    needs = "onnxruntime"
    level = "ORT_ENABLE_ALL"

    def load(self, job: Job) -> dict[str, Any]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, self.level)
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        start = time.perf_counter()
        self._session = ort.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
        return {"version": ort.__version__, "compile_seconds": time.perf_counter() - start}

    def feed(self, arrays: Sequence[np.ndarray]) -> None:
        wanted = [value.name for value in self._session.get_inputs()]
        self._feed = dict(zip(wanted, arrays, strict=True))

    def run(self) -> None:
        self._result = self._session.run(None, self._feed)

    def outputs(self) -> list[np.ndarray]:
        return [np.asarray(part) for part in self._result]


class Unoptimised(OnnxRuntime):
    """ONNX Runtime on the graph as it is in the file."""

    level = "ORT_DISABLE_ALL"


class OpenVino(Contender):
    """OpenVINO on its CPU plug-in, set for latency, in the model's own precision."""

    needs = "openvino"

    def load(self, job: Job) -> dict[str, Any]:
        import openvino

        core = openvino.Core()
        start = time.perf_counter()
        model = core.read_model(job.model)
        if job.shapes:
            model.reshape(job.shapes)
        settings = {
            "INFERENCE_NUM_THREADS": job.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = core.compile_model(model, "CPU", settings)
        self._ports = len(compiled.outputs)
        self._request = compiled.create_infer_request()
        return {
            "version": openvino.__version__.partition("-")[0],
            "compile_seconds": time.perf_counter() - start,
        }

    def feed(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = list(arrays)

    def run(self) -> None:
        self._request.infer(self._arrays)

    def outputs(self) -> list[np.ndarray]:
        return [self._request.get_output_tensor(port).data.copy() for port in range(self._ports)]


CONTENDERS: dict[str, type[Contender]] = {
    names.OURS: Ours,
    names.PLAIN: PlainTvm,
    names.ONNX_RUNTIME: OnnxRuntime,
    names.OPENVINO: OpenVino,
    names.LIBRARY: Library,
    names.UNOPTIMISED: Unoptimised,
}


def available(name: str) -> bool:
    """Whether the package that the contender needs is installed."""
    needs = CONTENDERS[name].needs
    return not needs or installed(needs)


def chosen(wanted: Sequence[str]) -> list[str]:
    """The contenders that are to take part: ``wanted``, or all that are installed where there are none.

    Raises ``UserError`` for a name that is not installed.
    """
    for name in wanted:
        if not available(name):
            raise UserError(f"{name} is not installed: pip install {CONTENDERS[name].needs}")
    return list(wanted) or [name for name in names.PUBLIC if available(name)]
