# SPDX-License-Identifier: Apache-2.0
"""Arrays on memory that is the same for every contender: large pages where the system has them, aligned."""

from __future__ import annotations

import math

import numpy as np

# NumPy asks for large pages for its arrays, TVM does not; both see the same ones through DLPack. Their start
# counts as well: a vector across two cache lines takes two loads.
PAGE_BYTES = 1 << 21
LINE_BYTES = 64


def aligned(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array of zeros that starts at a large page if it fills one, else at a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    step = PAGE_BYTES if size >= PAGE_BYTES else LINE_BYTES
    raw = np.empty(size + step, "uint8")
    start = -raw.ctypes.data % step
    array = raw[start : start + size].view(dtype).reshape(shape)
    array[...] = 0
    return array
