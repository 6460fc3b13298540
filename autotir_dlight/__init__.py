# SPDX-License-Identifier: Apache-2.0
"""autotir_dlight: fast-by-default schedules for Apache TVM.

A module of TensorIR functions goes in, a module of fast ones comes out. See the README for the three ways
to use it.
"""

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
    "cpu",
    "explain",
    "host_target",
    "pipeline",
    "rules",
    "set_num_threads",
    "tune",
    "verify",
]
