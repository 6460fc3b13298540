# SPDX-License-Identifier: Apache-2.0
"""Small Relax functions as test cases: how one is written down, built, compiled two ways and compared.

Inputs are written ``dtype[d0,d1,...]:low..high``: dtype ``float32`` and the range of the random elements may
be left out, and a dimension is a number or a letter, which is symbolic and takes the values of
:data:`EXTENTS` in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  makes NumPy know bfloat16 and the 8-bit floats
import numpy as np
import tvm
from tvm import relax, tirx

import autotir_dlight as dl
from autotir_dlight.errors import last_line
from autotir_dlight.verify import compare

# A symbolic dimension's values, one a run: n may be empty; m, k and the sides of images h and w may not.
EXTENTS = {"n": (0, 1, 37), "m": (1, 5, 70), "k": (3, 8, 19), "h": (9, 12, 22), "w": (8, 11, 20)}
RUNS = 3
# Rounding of a few operations in another order, relative to the largest element of the output.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2}


@dataclass(frozen=True)
class Spec:
    """One input: element type, extents (numbers or letters), and the range of its random elements."""

    dtype: str
    dims: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None

    @classmethod
    def parse(cls, text: str) -> Spec:
        found = re.fullmatch(r"([a-z]\w*)?\[([\w,]*)\](?::(-?[\d.]+?)\.\.(-?[\d.]+))?", text)
        assert found, f"{text!r} is not of the form dtype[d0,d1,...]:low..high"
        dims = tuple(int(d) if d.isdigit() else d for d in found[2].split(",") if d)
        low, high = (None if bound is None else float(bound) for bound in found.group(3, 4))
        return cls(found[1] or "float32", dims, low, high)

    def array(self, run: int, rng: np.random.Generator) -> np.ndarray:
        """Random elements in [low, high], integers included, at the extents of ``run``."""
        shape = [d if isinstance(d, int) else EXTENTS[d][run] for d in self.dims]
        if self.dtype == "bool":
            return rng.integers(0, 2, shape).astype(np.bool_)
        kind = np.dtype(self.dtype)
        if self.dtype.startswith(("int", "uint")):
            low = (0 if kind.kind == "u" else -100) if self.low is None else self.low
            high = 100 if self.high is None else self.high
            return rng.integers(int(low), int(high), shape, dtype=kind, endpoint=True)
        low = -1.0 if self.low is None else self.low
        return rng.uniform(low, 1.0 if self.high is None else self.high, shape).astype(kind)


@dataclass(frozen=True)
class Case:
    """One Relax function: ``build`` makes its body of the parameters that ``inputs`` describe."""

    op: str
    inputs: tuple[Spec, ...]
    build: Callable[..., Any]
    note: str = ""

    @property
    def id(self) -> str:
        shapes = " ".join(f"{s.dtype}{list(s.dims)}".replace("'", "").replace(" ", "") for s in self.inputs)
        return f"{self.op}({shapes})" + (f" {self.note}" if self.note else "")

    @property
    def runs(self) -> range:
        """The runs that its symbolic extents ask for."""
        return range(RUNS if any(isinstance(d, str) for s in self.inputs for d in s.dims) else 1)

    def arrays(self, run: int) -> list[np.ndarray]:
        """The same random inputs on each call."""
        rng = np.random.default_rng(run)
        return [spec.array(run, rng) for spec in self.inputs]


def module_of(cases: Sequence[Case]) -> Any:
    """A Relax module with a function ``case0``, ``case1``, … for each case."""
    builder = relax.BlockBuilder()
    for position, case in enumerate(cases):
        symbols = {name: tirx.Var(name, "int64") for name in EXTENTS}
        params = [
            relax.Var(f"x{k}", relax.TensorType([symbols.get(d, d) for d in spec.dims], spec.dtype))
            for k, spec in enumerate(case.inputs)
        ]
        with builder.function(f"case{position}", params):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(case.build(*params)))
            builder.emit_func_output(result)
    return builder.get()


@dataclass
class Outcome:
    """What a comparison of scheduled with unscheduled found: one sentence a failed or skipped case."""

    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    rules: dict[str, set[str]] = field(default_factory=dict)

    def merge(self, other: Outcome) -> None:
        self.failed |= other.failed
        self.skipped |= other.skipped
        for rule, functions in other.rules.items():
            self.rules.setdefault(rule, set()).update(functions)


def _compile(cases: Sequence[Case], target: Any, relax_pipeline: Any = "default") -> Any:
    built = tvm.compile(module_of(cases), target, relax_pipeline=relax_pipeline)
    return relax.VirtualMachine(built, tvm.cpu())


def check(cases: Sequence[Case], target: Any) -> Outcome:
    """Compile ``cases`` as one module with and without schedules, run both, compare.

    Where that fails, each case is tried alone, so that each failure is that of one case. One that plain TVM
    cannot build or run is skipped with the reason. Rules must be strict (``AUTOTIR_STRICT=1``).
    """
    outcome = Outcome()
    try:
        plain = _compile(cases, target)
    except Exception as err:
        if len(cases) > 1:
            return _each(cases, target)
        return Outcome(skipped={cases[0].id: f"plain TVM cannot compile it: {last_line(err)}"})
    report = dl.Report()
    try:
        ours = _compile(cases, target, dl.pipeline(target, report=report))
    except Exception as err:
        if len(cases) > 1:
            return _each(cases, target)
        return Outcome(failed={cases[0].id: f"does not compile: {last_line(err)}"})
    undone = [f"{e.function}: {e.status} {e.bugs}" for e in report if e.status == "unscheduled" or e.bugs]
    if undone:
        if len(cases) > 1:
            return _each(cases, target)
        return Outcome(failed={cases[0].id: f"not scheduled: {'; '.join(undone)}"})
    for position, case in enumerate(cases):
        _compare(case, f"case{position}", plain, ours, outcome)
    for entry in report:
        outcome.rules.setdefault(entry.rule, set()).add(entry.function)
    return outcome


def _each(cases: Sequence[Case], target: Any) -> Outcome:
    outcome = Outcome()
    for case in cases:
        outcome.merge(check([case], target))
    return outcome


def _compare(case: Case, name: str, plain: Any, ours: Any, outcome: Outcome) -> None:
    """Run both at each choice of extents; the first difference is the case's failure."""
    for run in case.runs:
        arrays = case.arrays(run)
        try:
            want = _run(plain, name, arrays)
        except Exception as err:
            outcome.skipped[f"{case.id} run {run}"] = f"plain TVM cannot run it: {last_line(err)}"
            continue
        try:
            got = _run(ours, name, arrays)
        except Exception as err:
            outcome.failed[case.id] = f"run {run}: {last_line(err)}"
            return
        if len(want) != len(got):
            outcome.failed[case.id] = f"run {run}: {len(want)} outputs without and {len(got)} with schedules"
            return
        for k, (one, two) in enumerate(zip(want, got)):
            rtol = TOLERANCE.get(str(one.dtype), 0.0)
            entry = compare(case.id, f"output {k}", {"run": run}, one, two, rtol)
            if not entry.ok:
                outcome.failed[case.id] = str(entry)
                return


def _run(machine: Any, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return _flatten(machine[name](*(tvm.runtime.tensor(a) for a in arrays)))


def _flatten(result: Any) -> list[np.ndarray]:
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if isinstance(result, int | float | bool):
        return [np.asarray(result)]
    return [array for item in result for array in _flatten(item)]
