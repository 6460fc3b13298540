# SPDX-License-Identifier: Apache-2.0
"""autotir_dlight: fast-by-default schedules for Apache TVM.

A module of TensorIR functions goes in, a module of fast ones comes out. See the README for the three ways
to use it.
"""

from typing import Any

from . import cpu, tune
from .apply import ApplyDefaultSchedule
from .explain import explain
from .host import host_target, set_num_threads
from .machine import CpuMachine
from .relax.pipeline import pipeline
from .report import FunctionReport, KnobValue, Report, Verdict
from .rule import Reject, Rule
from .rules import rules
from .settings import Settings
from .verify import VerifyReport, verify

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs meta-schedule is imported when it is first used."""
    if name != "as_schedule_fn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .tune.interop import as_schedule_fn

    return as_schedule_fn


__all__ = [
    "ApplyDefaultSchedule",
    "CpuMachine",
    "FunctionReport",
    "KnobValue",
    "Reject",
    "Report",
    "Rule",
    "Settings",
    "Verdict",
    "VerifyReport",
    "as_schedule_fn",
    "cpu",
    "explain",
    "host_target",
    "pipeline",
    "rules",
    "set_num_threads",
    "tune",
    "verify",
]
