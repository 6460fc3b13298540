# SPDX-License-Identifier: Apache-2.0
"""The only import site of meta-schedule, and the place of every workaround for it (apache-tvm 0.27).

``TuneContext`` imports ``tvm.s_tir.tensor_intrin``, whose module body parses hundreds of scripts, each of
which walks the Python stack: half a minute of work for intrinsics that the CPU rules do not use. Within
:func:`without_tensor_intrinsics` an empty module stands in for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.arg_info import ArgInfo, TensorInfo
from tvm.s_tir.meta_schedule.builder import Builder, BuilderInput, BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.database import Database, MemoryDatabase, PyDatabase, TuningRecord, Workload
from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
from tvm.s_tir.meta_schedule.mutator import PyMutator
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, LocalRunner, RPCConfig, RPCRunner, RunnerInput
from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate
from tvm.support.popen_pool import PopenPoolExecutor

__all__ = [
    "ArgInfo",
    "Builder",
    "BuilderInput",
    "BuilderResult",
    "Database",
    "EvaluatorConfig",
    "LocalRunner",
    "MeasureCandidate",
    "MemoryDatabase",
    "PerStoreFeature",
    "PopenPoolExecutor",
    "PyBuilder",
    "PyDatabase",
    "PyMutator",
    "RPCConfig",
    "RPCRunner",
    "RunnerInput",
    "TensorInfo",
    "TuningRecord",
    "Workload",
    "derived_object",
    "ms",
    "without_tensor_intrinsics",
]

_INTRINSICS = "tvm.s_tir.tensor_intrin"


@contextmanager
def without_tensor_intrinsics() -> Iterator[None]:
    """Within it, ``import tvm.s_tir.tensor_intrin`` gives an empty module unless it is loaded already."""
    if _INTRINSICS in sys.modules:
        yield
        return
    sys.modules[_INTRINSICS] = ModuleType(_INTRINSICS)
    try:
        yield
    finally:
        del sys.modules[_INTRINSICS]
