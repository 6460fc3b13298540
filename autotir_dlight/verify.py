# SPDX-License-Identifier: Apache-2.0
"""Run two forms of a program on the same random inputs and compare what they give.

Inputs are drawn so that a correct program stays within its buffers: an integer buffer whose elements are
used as indices gets elements in the range of what they index, a divisor is positive. Outputs start out
filled with elements that are wrong everywhere, so that one that is never written is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from tvm import runtime

from ._tvm import IRModule, Target, relax, tirx
from .element_ranges import Env, Facts, Span, analyzer_at, element_spans, facts_of, relax_spans, symbols
from .errors import TargetError, first_line
from .host import detect_cpu, host_target
from .machine import ARM_FEATURES, X86_FEATURES, CpuMachine
from .random_inputs import draw, environments, random_args, relax_argument

__all__ = ["VerifyEntry", "VerifyReport", "compare", "random_args", "run_primfunc", "verify"]

# Largest error, relative to the largest element of the output, that rounding in another order explains.
_TOLERANCE = {
    "float64": 1e-10,
    "float32": 1e-5,
    "float16": 1e-2,
    "bfloat16": 5e-2,
    "float8_e4m3fn": 0.13,
    "float8_e5m2": 0.26,
}
# Rounding errors of a sum grow with the square root of its length; the figures above hold for this many.
_TOLERANCE_TERMS = 1024
# A whole model is a chain of operators: their errors add up.
_MODEL_FACTOR = 10

_BUILT = runtime.Executable | runtime.Module


@dataclass(frozen=True)
class VerifyEntry:
    """One output of one function at one choice of extents.

    Attributes
    ----------
    function, output : names; ``output`` is the buffer's in TensorIR, ``"output 0"`` in Relax
    shapes : symbolic extent -> its value in this run
    max_error : largest absolute difference; infinite where only one side is finite
    tolerance : absolute, what ``max_error`` may be
    mismatches : elements that differ by more
    first : index of the first of these
    error : a sentence where a side could not be compiled or run, else ``""``
    """

    function: str
    output: str = ""
    shapes: Mapping[str, int] = field(default_factory=dict)
    max_error: float = 0.0
    tolerance: float = 0.0
    mismatches: int = 0
    first: tuple[int, ...] | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and self.mismatches == 0

    def __str__(self) -> str:
        extents = ", ".join(f"{name}={value}" for name, value in self.shapes.items())
        where = (
            self.function + (f"({extents})" if extents else "") + (f" {self.output}" if self.output else "")
        )
        if self.error:
            return f"{where}: {self.error}"
        verdict = f"max error {self.max_error:.3g}, tolerance {self.tolerance:.3g}"
        if self.mismatches:
            verdict = f"{self.mismatches} elements differ, first at {list(self.first or ())}, {verdict}"
        return f"{where}: {verdict}"


@dataclass(frozen=True)
class VerifyReport:
    """What :func:`verify` found; true where all is well."""

    target: str
    entries: tuple[VerifyEntry, ...]

    @property
    def ok(self) -> bool:
        """Whether something was compared and nothing differs."""
        return bool(self.entries) and all(entry.ok for entry in self.entries)

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self, indent: int | None = 2) -> str:
        """The report as a JSON document; an infinite or undefined error is given as a string."""

        def plain(entry: VerifyEntry) -> dict[str, Any]:
            error = entry.max_error if math.isfinite(entry.max_error) else str(entry.max_error)
            return {**asdict(entry), "max_error": error, "ok": entry.ok}

        document = {"target": self.target, "ok": self.ok, "entries": [plain(entry) for entry in self.entries]}
        return json.dumps(document, indent=indent)

    def __str__(self) -> str:
        bad = sum(not entry.ok for entry in self.entries)
        head = "nothing to compare" if not self.entries else f"{len(self.entries)} outputs, {bad} wrong"
        return "\n".join([head, *map(str, self.entries)])


def verify(
    before: Any,
    after: Any,
    target: Any = None,
    *,
    seed: int = 0,
    shapes: Mapping[str, int] | None = None,
    rtol: float | None = None,
) -> VerifyReport:
    """Compile both programs, run them on the same random inputs, compare all their outputs.

    Parameters
    ----------
    before, after : two PrimFuncs, or modules whose functions are matched by name, of TensorIR or of Relax
        (the public functions are then run); one of them may already be built
    target : an ``llvm`` target that this machine can run; by default the current one, else the host's
    seed : of the random inputs; the same seed gives the same inputs
    shapes : values of symbolic extents by name; one that is left out is tried at 1, about 7 and about 33
    rtol : largest error relative to an output's largest element, for floating point; by default by dtype

    A failure to compile or run, and a function that only ``before`` has, are entries of the report.

    Raises
    ------
    TargetError : the target is not for this machine's CPU
    TypeError : an argument is no program, or both are built (then nobody knows the functions' inputs)
    ValueError : ``shapes`` names an extent that no function has, or a negative one
    """
    target = _runnable(target)
    sides = _as_modules(before, after)
    module = next(side for side in sides if isinstance(side, IRModule))
    functions = _functions(module)
    _check_shapes(shapes or {}, functions)
    pair = _Program("before", sides[0], target), _Program("after", sides[1], target)
    rng = np.random.default_rng(seed)
    entries: list[VerifyEntry] = []
    for name, func in functions.items():
        entries += _function_entries(name, func, shapes, rtol, pair, module, rng)
    return VerifyReport(str(target), tuple(entries))


def _function_entries(
    name: str,
    func: Any,
    shapes: Mapping[str, int] | None,
    rtol: float | None,
    pair: tuple[_Program, _Program],
    module: Any,
    rng: np.random.Generator,
) -> list[VerifyEntry]:
    """The entries of one function at each choice of extents, up to the first that cannot be run."""
    entries: list[VerifyEntry] = []
    for env in environments(func, shapes):
        if isinstance(func, relax.Function):
            case: _Case = _RelaxCase(name, func, env, pair, rtol, module)
        else:
            case = _Case(name, func, env, pair, rtol)
        entries += case.entries(rng)
        if entries[-1:] and entries[-1].error:
            break
    return entries


def run_primfunc(func: Any, args: Sequence[Any], target: Any = None, name: str = "main") -> list[np.ndarray]:
    """Run a TensorIR function on copies of ``args``; returns its buffers as they are afterwards.

    ``func`` is a PrimFunc, a module, or what ``tvm.compile`` made of one; of the latter two ``name`` is run.
    """
    module = IRModule({name: func}) if isinstance(func, tirx.PrimFunc) else func
    program = _Program("the function", module, _runnable(target) if isinstance(module, IRModule) else None)
    return [result for result in _call(program.function(name), args) if isinstance(result, np.ndarray)]


def _runnable(target: Any) -> Any:
    """The target as a ``Target``, once it is clear that its code will not die on this machine."""
    if target is None:
        target = Target.current(allow_none=True) or host_target()
    target = target if isinstance(target, Target) else Target(target)
    kind = target.kind.name
    if kind != "llvm":
        raise TargetError(f"verify runs code on this CPU: give an llvm target, not one of kind {kind}")
    machine, cpu = CpuMachine.from_target(target), detect_cpu()
    if machine.arch != cpu.arch:
        raise TargetError(
            f"the target is for {machine.arch}, this machine is {cpu.arch}: give a target for it"
        )
    lacking = (machine.features & (X86_FEATURES | ARM_FEATURES)) - cpu.features
    if cpu.features and lacking:
        names = ", ".join(sorted(lacking))
        raise TargetError(f"this CPU lacks {names}: give a target without, such as host_target()")
    return target


def _as_modules(before: Any, after: Any) -> tuple[Any, Any]:
    """Both programs, a PrimFunc as a module of one function; a built one stays what it is."""
    for program in (before, after):
        if not isinstance(program, IRModule | tirx.PrimFunc | relax.VMExecutable | _BUILT):
            raise TypeError(
                f"cannot run a {type(program).__name__}: give a PrimFunc, a module or a built one"
            )
    if not any(isinstance(program, IRModule | tirx.PrimFunc) for program in (before, after)):
        raise TypeError("both programs are built: give one of them as a module, which tells the inputs")
    modules = [program for program in (before, after) if isinstance(program, IRModule)]
    names = list(_functions(modules[0])) if modules else []
    name = names[0] if len(names) == 1 else "main"
    one, two = (IRModule({name: p}) if isinstance(p, tirx.PrimFunc) else p for p in (before, after))
    return one, two


def _functions(module: Any) -> dict[str, Any]:
    """The functions to run by name: the public Relax functions, without any the TensorIR functions."""
    functions = {gvar.name_hint: func for gvar, func in module.functions.items()}
    public = {
        name: func
        for name, func in functions.items()
        if isinstance(func, relax.Function) and func.attrs and "global_symbol" in func.attrs
    }
    prims = {name: func for name, func in functions.items() if isinstance(func, tirx.PrimFunc)}
    return dict(sorted((public or prims).items()))


def _check_shapes(shapes: Mapping[str, int], functions: Mapping[str, Any]) -> None:
    names = sorted({var.name for func in functions.values() for var in symbols(func)})
    unknown = sorted(set(shapes) - set(names))
    if unknown:
        raise ValueError(f"no extent is named {', '.join(unknown)}; there are: {', '.join(names) or 'none'}")
    for name, value in shapes.items():
        if value < 0:
            raise ValueError(f"the extent {name} cannot be {value}: give 0 or more")


class _ProgramError(Exception):
    """One of the programs cannot be compiled or run."""


class _Program:
    """One of the two programs; compiled at the first use and whole, a function at a time where that fails."""

    def __init__(self, label: str, program: Any, target: Any) -> None:
        self.label, self._target = label, target
        self._source = program if isinstance(program, IRModule) else None
        self._built: Any = None if self._source else program
        self._failed = False

    def function(self, name: str) -> Callable[..., Any]:
        """The compiled TensorIR function ``name``."""
        if self._source is None:
            return self._built[name]
        functions = {gvar.name_hint: func for gvar, func in self._source.functions.items()}
        if name not in functions:
            raise KeyError(f"there is no function named {name}")
        if self._built is None and not self._failed:
            try:
                self._built = self._compile(functions)
            except Exception:
                if len(functions) == 1:
                    raise
                self._failed = True
        built = self._compile({name: functions[name]}) if self._failed else self._built
        return built[name]

    def _compile(self, functions: Mapping[str, Any]) -> Any:
        import tvm

        named = {
            name: func.with_attr("global_symbol", name)
            for name, func in functions.items()
            if isinstance(func, tirx.PrimFunc)
        }
        return tvm.compile(IRModule(named), target=self._target)

    def virtual_machine(self) -> Any:
        """A Relax virtual machine for the program."""
        import tvm

        if self._built is None:
            self._built = tvm.compile(self._source, target=self._target)
        return relax.VirtualMachine(self._built, tvm.cpu())

    def guard(self, work: Callable[[], Any]) -> Any:
        """What ``work`` gives; whatever it raises becomes a sentence about this program."""
        return _guarded(f"{self.label} failed", work)


def _guarded(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as err:
        raise _ProgramError(f"{what}: {first_line(err)}") from err


@dataclass(frozen=True)
class _Case:
    """One TensorIR function at one choice of extents."""

    name: str
    func: Any
    env: Env
    pair: tuple[_Program, _Program]
    rtol: float | None

    @property
    def extents(self) -> dict[str, int]:
        return {var.name: value for var, value in self.env.items()}

    def entries(self, rng: np.random.Generator) -> list[VerifyEntry]:
        """What a run of both programs shows."""
        try:
            return self._run(_guarded("inputs cannot be made", lambda: self._arguments(rng)))
        except _ProgramError as err:
            return [VerifyEntry(self.name, shapes=self.extents, error=str(err))]

    def _arguments(self, rng: np.random.Generator) -> list[Any]:
        return draw(self.func, self.env, rng)

    def _run(self, args: Sequence[Any]) -> list[VerifyEntry]:
        facts = facts_of(self.func)
        written = {facts.root(buffer) for buffer, _ in facts.stores}
        outputs = [k for k, param in enumerate(self.func.params) if param in written]
        want = self._call(0, args)
        spans = element_spans(facts, self.env, {})
        start = list(args)
        for k in outputs:
            # NumPy makes scalars of arrays without dimensions.
            start[k] = np.asarray(_spoil(want[k], spans.get(self.func.params[k])))
        got = self._call(1, start)
        entries = self._compare(outputs, want, got, facts)
        if all(entry.ok for entry in entries):
            return entries
        # The function may keep or add to what an output holds: then only runs from the same start are alike.
        return self._compare(outputs, self._call(0, start), got, facts)

    def _call(self, which: int, args: Sequence[Any]) -> list[Any]:
        program = self.pair[which]
        return program.guard(lambda: _call(program.function(self.name), args))

    def _compare(
        self, outputs: list[int], want: list[Any], got: list[Any], facts: Facts
    ) -> list[VerifyEntry]:
        """An entry for each output, and for an input that the programs leave different."""
        entries = []
        for k, param in enumerate(self.func.params):
            if isinstance(want[k], np.ndarray):
                rtol = tolerance(str(param.dtype), facts, self.env) if self.rtol is None else self.rtol
                entry = compare(self.name, param.name, self.extents, want[k], got[k], rtol)
                if k in outputs or not entry.ok:
                    entries.append(entry)
        return entries


@dataclass(frozen=True)
class _RelaxCase(_Case):
    """One Relax function at one choice of extents."""

    module: Any

    def _arguments(self, rng: np.random.Generator) -> list[Any]:
        spans = relax_spans(self.module, self.name, self.env)
        return [relax_argument(param, self.env, rng, spans.get(param)) for param in self.func.params]

    def _run(self, args: Sequence[Any]) -> list[VerifyEntry]:
        want, got = self._call(0, args), self._call(1, args)
        if len(want) != len(got):
            error = f"before gives {len(want)} outputs and after {len(got)}"
            return [VerifyEntry(self.name, shapes=self.extents, error=error)]
        entries = []
        for k, (one, two) in enumerate(zip(want, got, strict=True)):
            rtol = _base_tolerance(str(one.dtype)) * _MODEL_FACTOR if self.rtol is None else self.rtol
            entries.append(compare(self.name, f"output {k}", self.extents, one, two, rtol))
        return entries

    def _call(self, which: int, args: Sequence[Any]) -> list[np.ndarray]:
        program = self.pair[which]
        values = [_relax_value(arg) for arg in args]
        return program.guard(lambda: flatten(program.virtual_machine()[self.name](*values)))


def _call(function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """Call with copies of the arrays; returns all arguments as they are afterwards."""
    import tvm

    tensors = [tvm.runtime.tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    function(*tensors)
    return [t.numpy() if isinstance(a, np.ndarray) else a for t, a in zip(tensors, args, strict=True)]


def _spoil(right: np.ndarray, span: Span | None) -> np.ndarray:
    """Elements that all differ from the right ones by more than any tolerance, in ``span`` where given."""
    if right.dtype == np.bool_:
        return ~right
    if right.dtype.kind in "iu":
        if span is not None:
            low, high = span
            return ((right.astype(np.int64) - low + 1) % (high - low + 1) + low).astype(right.dtype)
        return right ^ right.dtype.type(0x55)
    values = right.astype(np.float64)
    finite = np.abs(values[np.isfinite(values)])
    far = 1.0 + float(finite.max(initial=0.0))
    with np.errstate(over="ignore"):
        return np.where(values >= 0, -far, far).astype(right.dtype)


def _base_tolerance(dtype: str) -> float:
    """The tolerance of a type; one that is not in the table gets one of its own steps."""
    import ml_dtypes

    if dtype in _TOLERANCE or "float" not in dtype:
        return _TOLERANCE.get(dtype, 0.0)
    return float(ml_dtypes.finfo(dtype).eps)


def tolerance(dtype: str, facts: Facts, env: Env) -> float:
    """The tolerance of an output: that of the coarsest type on the way, more for long sums."""
    analyzer = analyzer_at(env)
    sizes = [[analyzer.const_int_bound(extent).max_value for extent in extents] for extents in facts.reduced]
    inner = [_base_tolerance(str(buffer.dtype)) for buffer in facts.allocated]
    growth = math.sqrt(max([1.0, *(math.prod(size) / _TOLERANCE_TERMS for size in sizes)]))
    return max([_base_tolerance(dtype), *inner]) * growth


def compare(
    function: str, output: str, shapes: Mapping[str, int], want: np.ndarray, got: np.ndarray, rtol: float
) -> VerifyEntry:
    """Compare one output: integers and booleans exactly, others within ``rtol`` of the largest element.

    NaN equals NaN and an infinity equals itself.
    """
    if want.shape != got.shape or want.dtype != got.dtype:
        error = f"the output is {got.dtype}{list(got.shape)} and should be {want.dtype}{list(want.shape)}"
        return VerifyEntry(function, output, shapes, error=error)
    exact = want.dtype.kind in "iub"
    with np.errstate(invalid="ignore"):
        one, two = want.astype(np.float64), got.astype(np.float64)
        finite = np.abs(one[np.isfinite(one)])
        tolerance = 0.0 if exact else rtol * (float(finite.max(initial=0.0)) or 1.0)
        same = (want == got) | (np.isnan(one) & np.isnan(two))
        difference = np.where(same, 0.0, np.abs(one - two))
    wrong = ~same if exact else ~(difference <= tolerance)
    largest = float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
    first = tuple(int(i) for i in np.argwhere(wrong)[0]) if wrong.any() else None
    return VerifyEntry(function, output, shapes, largest, tolerance, int(wrong.sum()), first)


def _relax_value(arg: Any) -> Any:
    import tvm

    if isinstance(arg, tuple) and not isinstance(arg, tvm.runtime.ShapeTuple):
        return tuple(_relax_value(item) for item in arg)
    return tvm.runtime.tensor(arg) if isinstance(arg, np.ndarray) else arg


def flatten(result: Any) -> list[np.ndarray]:
    """The arrays in a result of tensors, numbers, shapes and tuples of these."""
    if hasattr(result, "numpy"):
        return [result.numpy()]
    if isinstance(result, int | float | bool):
        return [np.asarray(result)]
    return [array for item in result for array in flatten(item)]
