# SPDX-License-Identifier: Apache-2.0
"""Rules for CPUs. Each is usable alone, here or in ``tvm.s_tir.dlight.ApplyDefaultSchedule``."""

from .conv import Conv
from .elementwise import Elementwise
from .fallback import Fallback
from .gemv import GEMV
from .matmul import Matmul
from .reduction import Reduction

__all__ = ["GEMV", "Conv", "Elementwise", "Fallback", "Matmul", "Reduction"]
