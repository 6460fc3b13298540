# SPDX-License-Identifier: Apache-2.0
"""What takes part in the benchmark of operators: each in a process of its own, operator after operator."""

from __future__ import annotations

import json
import os
import shutil
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..extras import installed
from . import names
from .contenders import Contender, Job, target_of
from .memory import aligned
from .operators import Operator, all_operators, can_express
from .roofline import FMA_SECONDS, fma_runner, measured_peaks, shortest_run, traffic_runner


class OperatorContender(Contender):
    """One way to run an operator; :meth:`make` gives a function of nothing that runs it once."""

    library = ""  # the form of an operator that it needs: numpy, torch or onnx; TVM's is always there

    @abstractmethod
    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        """The function, whose result :meth:`array` understands, and facts (``version``…)."""

    @abstractmethod
    def array(self, result: Any) -> np.ndarray:
        """A result as an array in TensorIR's layout."""

    def load(self, job: Job) -> dict[str, Any]:
        """Make the operator ready on its own operands."""
        self._operator = all_operators()[job.operator]
        start = time.perf_counter()
        self._call, facts = self.make(self._operator, job)
        return {"compile_seconds": time.perf_counter() - start, **facts}

    def feed(self, arrays: Sequence[np.ndarray]) -> None:
        """Operands come from the operator, not over here."""

    def run(self) -> None:
        self._result = self._call()

    def outputs(self) -> list[np.ndarray]:
        # A copy: the libraries' arrays may lie in memory that they free or write again.
        return [np.array(self.array(self._result), order="C")]


class _TvmOperator(OperatorContender):
    """A function compiled by TVM, into an output that is there beforehand."""

    def schedule(self, module: Any, target: Any) -> tuple[Any, dict[str, Any]]:
        """The module to compile, and facts about it."""
        return module, {}

    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        import tvm

        import autotir_dlight as dl

        dl.set_num_threads(job.threads)
        target = target_of(job)
        with target:
            module, facts = self.schedule(tvm.IRModule({"main": operator.tir()}), target)
        function = tvm.compile(module, target)["main"]
        output = tvm.runtime.from_dlpack(aligned(operator.output.shape, operator.output.dtype))
        tensors = [tvm.runtime.from_dlpack(array) for array in operator.arrays()]

        def run() -> Any:
            function(*tensors, output)
            return output

        return run, {"version": tvm.__version__} | facts

    def array(self, result: Any) -> np.ndarray:
        return result.numpy()


class PlainTvmOperator(_TvmOperator):
    """The function as it is written."""


class UpstreamOperator(_TvmOperator):
    """Scheduled by upstream's own rules for CPUs, where they take it."""

    def schedule(self, module: Any, target: Any) -> tuple[Any, dict[str, Any]]:
        from tvm.s_tir import dlight

        rules = [getattr(dlight.cpu, name)() for name in ("GEMV", "Reduction") if hasattr(dlight.cpu, name)]
        return dlight.ApplyDefaultSchedule(*rules)(module), {}


class OursOperator(_TvmOperator):
    """Scheduled by this package's rules."""

    def schedule(self, module: Any, target: Any) -> tuple[Any, dict[str, Any]]:
        import tvm

        import autotir_dlight as dl

        from ..vector_math import VectorMath

        report = dl.Report(target=str(target))
        passes = [dl.ApplyDefaultSchedule(*dl.rules(target), report=report), VectorMath()]
        scheduled = tvm.transform.Sequential(passes)(module)
        return scheduled, {"version": dl.__version__, "report": json.loads(report.to_json())}


class NumPyOperator(OperatorContender):
    """NumPy with the BLAS that it brings."""

    library = "numpy"

    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        arrays, form = operator.arrays(), operator.numpy
        assert form is not None, "chosen by what it can express"
        return lambda: form(*arrays), {"version": np.__version__}

    def array(self, result: Any) -> np.ndarray:
        return result


class TorchOperator(OperatorContender):
    """PyTorch, operation by operation."""

    needs = "torch"
    library = "torch"
    compiled = False

    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        import torch

        torch.set_num_threads(job.threads)
        torch.set_grad_enabled(False)
        form = operator.torch
        assert form is not None, "chosen by what it can express"
        tensors = [torch.from_numpy(array) for array in operator.prepare(operator.arrays())]

        def function(*operands: Any) -> Any:
            return form(torch, *operands)

        if self.compiled:
            torch._dynamo.reset()
            function = torch.compile(function, dynamic=False)
            function(*tensors)
        self._restore = operator.restore
        return lambda: function(*tensors), {"version": torch.__version__}

    def array(self, result: Any) -> np.ndarray:
        return self._restore(result.numpy())


class TorchCompileOperator(TorchOperator):
    """PyTorch's compiler for CPUs, which needs a C++ compiler."""

    compiled = True


class OnnxRuntimeOperator(OperatorContender):
    """A model of this operator alone in ONNX Runtime, its operands and its output bound beforehand."""

    needs = "onnxruntime"
    library = "onnx"

    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = job.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(operator.onnx_model(), options, providers=["CPUExecutionProvider"])
        arrays = [_contiguous(array) for array in operator.prepare(operator.arrays())]
        self._values = {f"a{i}": ort.OrtValue.ortvalue_from_numpy(a) for i, a in enumerate(arrays)}
        (first,) = session.run(None, dict(zip(self._values, arrays, strict=True)))
        self._output = ort.OrtValue.ortvalue_from_numpy(aligned(first.shape, str(first.dtype)))
        binding = session.io_binding()
        for name, value in self._values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_ortvalue_output("y", self._output)
        self._restore = operator.restore
        return lambda: session.run_with_iobinding(binding), {"version": ort.__version__}

    def array(self, result: Any) -> np.ndarray:
        return self._restore(self._output.numpy())


def _contiguous(array: np.ndarray) -> np.ndarray:
    """A copy with the elements in order."""
    copy = aligned(array.shape, str(array.dtype))
    copy[...] = array
    return copy


class Bound(OperatorContender):
    """What the machine takes for the operator's arithmetic, or for moving its bytes, whichever is longer.

    Facts: ``binds`` (``compute`` or ``memory``), ``scale`` (the bound is a run's time times this), and the
    machine's ``peaks``.
    """

    def make(self, operator: Operator, job: Job) -> tuple[Callable[[], Any], dict[str, Any]]:
        import autotir_dlight as dl

        dl.set_num_threads(job.threads)
        target = target_of(job)
        peaks = measured_peaks(job.threads, job.target)
        work = operator.work
        arithmetic, flops = fma_runner(FMA_SECONDS * peaks.gflops * 1e9, job.threads, target)
        traffic = traffic_runner(work.read, work.written, job.threads, target)
        facts = {"peaks": [peaks.gflops, peaks.copy_gbs, peaks.read_gbs], "version": ""}
        if work.flops / (1e9 * peaks.gflops) >= shortest_run(traffic):
            return arithmetic, facts | {"binds": "compute", "scale": work.flops / flops}
        return traffic, facts | {"binds": "memory", "scale": 1.0}

    def array(self, result: Any) -> np.ndarray:
        return np.zeros(0)


ON_OPERATORS: dict[str, type[OperatorContender]] = {
    names.OURS: OursOperator,
    names.PLAIN: PlainTvmOperator,
    names.UPSTREAM: UpstreamOperator,
    names.NUMPY: NumPyOperator,
    names.TORCH: TorchOperator,
    names.TORCH_COMPILE: TorchCompileOperator,
    names.ONNX_RUNTIME: OnnxRuntimeOperator,
    names.BOUND: Bound,
}


def available(name: str) -> bool:
    """Whether what the contender needs is installed: a package, and for ``torch.compile`` a C++ compiler."""
    needs = ON_OPERATORS[name].needs
    return (not needs or installed(needs)) and (name != names.TORCH_COMPILE or bool(_cxx()))


def _cxx() -> str | None:
    """The C++ compiler that PyTorch would use."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("clang++")


def chosen(wanted: Sequence[str]) -> list[str]:
    """The contenders that are to take part: ``wanted``, or all that are installed where there are none.

    Raises ``UserError`` for one that is not installed.
    """
    for name in wanted:
        if not available(name):
            missing = f"pip install {ON_OPERATORS[name].needs}"
            if name == names.TORCH_COMPILE and installed("torch"):
                missing = "it needs a C++ compiler, such as g++"
            raise UserError(f"{name} is not installed: {missing}")
    known = names.ON_OPERATORS
    return [name for name in known if (name in wanted if wanted else available(name))]


def expressed_by(operator: Operator, contender: str) -> bool:
    """Whether the operator has a form for the contender."""
    library = ON_OPERATORS[contender].library
    return not library or can_express(operator, library)
