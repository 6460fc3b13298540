# SPDX-License-Identifier: Apache-2.0
"""The only import site of the TVM names that move between releases.

Written against 0.27, where ``tir`` became ``tirx`` and ``s_tir``, blocks became ``SBlock`` and buffers
became variables of a buffer type.
"""

from __future__ import annotations

from tvm import ir, relax, s_tir, sym, tirx
from tvm.ir import IRModule, TensorLoad, TensorRegion
from tvm.ir.transform import PassContext, module_pass
from tvm.s_tir import Schedule, ScheduleError, TensorIntrin
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build
from tvm.target import Target
from tvm_ffi import structural_equal, structural_walk

__all__ = [
    "IRBuilder",
    "IRModule",
    "LoopRV",
    "PassContext",
    "SBlock",
    "SBlockRV",
    "SBlockRealize",
    "Schedule",
    "ScheduleError",
    "ScheduleRule",
    "Target",
    "TensorIntrin",
    "TensorLoad",
    "TensorRegion",
    "build",
    "ir",
    "module_pass",
    "relax",
    "s_tir",
    "structural_equal",
    "structural_walk",
    "sym",
    "tirx",
]
