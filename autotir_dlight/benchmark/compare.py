# SPDX-License-Identifier: Apache-2.0
"""Random inputs for a model, and how far two sets of outputs lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..artifact import numpy_dtype
from ..frontend import TensorInfo

# The largest difference, as a share of the largest output, that changing the order of sums explains.
TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def random_inputs(inputs: Sequence[TensorInfo], seed: int = 0) -> list[np.ndarray]:
    """An array for each input: floats in [0, 1), integers in 0..255 (as far as the type goes), truth values.

    Raises ``ModelError`` where an input has an open dimension.
    """
    rng = np.random.default_rng(seed)
    return [_random(info, rng) for info in inputs]


def _random(info: TensorInfo, rng: np.random.Generator) -> np.ndarray:
    shape = info.static_shape
    dtype = numpy_dtype(info.dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, min(255, np.iinfo(dtype).max), shape, endpoint=True).astype(dtype)
    return rng.random(shape).astype(dtype)


@dataclass(frozen=True)
class Difference:
    """The output that differs most, as ``error`` (a share of its largest value) against its ``tolerance``."""

    output: str
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the outputs agree; an error that is not a number never does."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        return f"{self.output} is {self.error:.1e} of its largest value away, allowed {self.tolerance:.0e}"


def compare(got: Sequence[np.ndarray], want: Sequence[np.ndarray], names: Sequence[str]) -> Difference:
    """The worst :class:`Difference` over all outputs; other numbers, shapes or kinds count as infinite."""
    if not len(got) == len(want) == len(names):
        return Difference(f"{len(got)} outputs instead of {len(want)}", float("inf"), 0.0)
    all_of_them = [_difference(g, w, name) for g, w, name in zip(got, want, names, strict=True)]
    return max(all_of_them, key=lambda d: (not d.passed, d.error), default=Difference("no output", 0.0, 0.0))


def _difference(got: np.ndarray, want: np.ndarray, name: str) -> Difference:
    tolerance = TOLERANCE.get(str(want.dtype), 0.0)
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(
            f"{name}: {got.dtype}{got.shape} instead of {want.dtype}{want.shape}", float("inf"), 0.0
        )
    if not want.size:
        return Difference(name, 0.0, tolerance)
    g, w = got.astype("float64"), want.astype("float64")
    equal = (g == w) | (np.isnan(g) & np.isnan(w))  # infinities and NaN agree only with themselves
    if equal.all():
        return Difference(name, 0.0, tolerance)
    scale = float(np.abs(w[np.isfinite(w)]).max(initial=0.0))
    worst = float(np.abs(g - w)[~equal].max())
    return Difference(name, worst / scale if scale and np.isfinite(worst) else float("inf"), tolerance)
