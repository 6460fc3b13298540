# SPDX-License-Identifier: Apache-2.0
"""Tuning, before the build and never needed: the rules' plans and knobs are searched and what is faster than
the default is recorded in a database that ``ApplyDefaultSchedule(database=…)`` reads.

Names are imported when they are first used: a program that does not tune pays nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "CostModel": "cost",
    "Database": "records",
    "DatabaseError": "records",
    "ExecutorBuilder": "builder",
    "KnobDatabase": "interop",
    "MeasureError": "measure",
    "Measurer": "measure",
    "MutateKnob": "interop",
    "Prediction": "api",
    "Record": "records",
    "Result": "tuner",
    "Space": "space",
    "TuneOptions": "api",
    "TuneSchedules": "api",
    "TunedPlans": "lookup",
    "Tuner": "tuner",
    "database": "api",
    "export_json": "interop",
    "extract_tasks": "task",
    "local_runner": "measure",
    "predict": "api",
    "rpc_runner": "measure",
    "schedule_fn": "space",
    "tune_relax": "api",
    "tune_te": "api",
    "tune_tir": "api",
    "without_tensor_intrinsics": "meta_schedule",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
