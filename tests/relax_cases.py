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
from autotir_dlight.verify import compare, flatten

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
    """One Relax function: ``build`` makes its body of the parameters that ``inputs`` describe.

    ``upstream`` says why plain TVM cannot build it, where that is so.
    """

    op: str
    inputs: tuple[Spec, ...]
    build: Callable[..., Any]
    note: str = ""
    upstream: str = ""

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


def module_of(cases: Sequence[Case], target: Any) -> Any:
    """A Relax module with a function ``case0``, ``case1``, … for each case."""
    builder = relax.BlockBuilder()
    with target:  # TOPI asks for it where a case calls TOPI itself
        for position, case in enumerate(cases):
            _add_function(builder, f"case{position}", case)
    return builder.get()


def _add_function(builder: Any, name: str, case: Case) -> None:
    symbols = {name: tirx.Var(name, "int64") for name in EXTENTS}
    params = [
        relax.Var(f"x{k}", relax.TensorType([symbols.get(d, d) for d in spec.dims], spec.dtype))
        for k, spec in enumerate(case.inputs)
    ]
    with builder.function(name, params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(case.build(*params)))
        builder.emit_func_output(result)


@dataclass
class Outcome:
    """What a comparison found.

    ``failed``: case -> one sentence; ``impossible``: the same of cases that plain TVM cannot build either;
    ``fallback``: the functions that no better rule took.
    """

    failed: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)
    fallback: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return "\n".join(f"{case}: {reason}" for case, reason in self.failed.items())


def check(cases: Sequence[Case], target: Any, floor: float = 0.0) -> Outcome:
    """Compile ``cases`` as one module with and without schedules, run both, compare.

    Differences up to ``floor`` are none, which is for results that are what rounding left of a cancellation.

    Where the module cannot be compiled it is halved, so that each failure is that of one case. Rules must be
    strict (``AUTOTIR_STRICT=1``), so that a bug of a rule is a failure.
    """
    try:
        return _check_together(cases, target, floor)
    except Exception as err:
        if len(cases) == 1:
            reason = {cases[0].id: last_line(err)}
            return Outcome(impossible=reason) if isinstance(err, PlainFailed) else Outcome(reason)
    half = len(cases) // 2
    one, two = check(cases[:half], target, floor), check(cases[half:], target, floor)
    return Outcome(one.failed | two.failed, one.impossible | two.impossible, one.fallback | two.fallback)


def compile_plain(cases: Sequence[Case], target: Any) -> Any:
    """A virtual machine with ``cases`` as TVM's default pipeline compiles them.

    LLVM does not optimise it: only its numbers are wanted, and it takes half the time.
    """
    plain = tvm.target.Target({**target.export(), "opt-level": 0})
    return relax.VirtualMachine(tvm.compile(module_of(cases, target), plain), tvm.cpu())


class PlainFailed(Exception):
    """TVM without this package cannot compile a case either."""


def _plain(cases: Sequence[Case], target: Any) -> Any:
    try:
        return compile_plain(cases, target)
    except Exception as err:
        raise PlainFailed(f"plain TVM cannot compile it: {last_line(err)}") from err


def _check_together(cases: Sequence[Case], target: Any, floor: float) -> Outcome:
    plain = _plain(cases, target)
    report = dl.Report()
    pipeline = dl.pipeline(target, report=report)
    ours = relax.VirtualMachine(
        tvm.compile(module_of(cases, target), target, relax_pipeline=pipeline), tvm.cpu()
    )
    undone = [entry.line() for entry in report if entry.status == "unscheduled" or entry.bugs]
    if undone:
        raise AssertionError(f"not scheduled: {'; '.join(undone)}")
    failed: dict[str, str] = {}
    for position, case in enumerate(cases):
        difference = _difference(case, f"case{position}", plain, ours, floor)
        if difference:
            failed[case.id] = difference
    return Outcome(failed, fallback={entry.function for entry in report if entry.rule == "cpu.Fallback"})


def _difference(case: Case, name: str, plain: Any, ours: Any, floor: float) -> str:
    """Run both at each choice of extents; the first difference in a sentence, ``""`` without one.

    The scheduled form runs first: an output that it leaves unwritten must not hold the other's result.
    """
    for run in case.runs:
        arrays = case.arrays(run)
        got = run_function(ours, name, arrays)
        want = run_function(plain, name, arrays)
        if len(want) != len(got):
            return f"run {run}: {len(want)} outputs without and {len(got)} with schedules"
        for k, (one, two) in enumerate(zip(want, got)):
            entry = compare(
                case.id, f"output {k}", {"run": run}, one, two, TOLERANCE.get(str(one.dtype), 0.0)
            )
            if not entry.ok and not 0.0 <= entry.max_error <= floor:
                return str(entry)
    return ""


def run_function(machine: Any, name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs of a function of a virtual machine, tuples flattened."""
    return flatten(machine[name](*(tvm.runtime.tensor(a) for a in arrays)))
