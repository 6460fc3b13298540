# SPDX-License-Identifier: Apache-2.0
"""What a function is measured on: arguments and the results that are right, in one file; what a runner's
worker runs.

Every candidate's results are compared before it is timed, in the process that runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from .build import Call

# Iterations of a function (millions) up to which plain TVM computes the results that are right.
PLAIN_ITERATIONS = 1500


@dataclass(frozen=True)
class Param:
    """A parameter: its type, whether it is a number, and the tolerance where it is a result (else -1)."""

    dtype: str
    scalar: bool
    rtol: float


@dataclass(frozen=True)
class Case:
    """Arguments of a function and its results; ``reference`` says what computed them."""

    params: tuple[Param, ...]
    args: tuple[Any, ...]
    results: dict[int, Any]
    reference: str

    def save(self, path: Path) -> None:
        """Write the case as one ``.npz`` file."""
        arrays = {f"a{k}": np.asarray(arg) for k, arg in enumerate(self.args)}
        arrays |= {f"r{k}": array for k, array in self.results.items()}
        facts = json.dumps([self.reference, [asdict(p) for p in self.params]])
        raw = {name: np.ascontiguousarray(a).reshape(a.shape).view(_carrier(a)) for name, a in arrays.items()}
        np.savez(path, facts=np.array(facts), **raw)

    @classmethod
    def load(cls, path: str) -> Case:
        """Read what :meth:`save` wrote."""
        from ..artifact import numpy_dtype

        with np.load(path, allow_pickle=False) as file:
            reference, raw = json.loads(str(file["facts"]))
            params = tuple(Param(**entry) for entry in raw)
            kinds = [numpy_dtype(p.dtype) for p in params]
            args = tuple(
                file[f"a{k}"].view(kinds[k]) if not p.scalar else file[f"a{k}"].item()
                for k, p in enumerate(params)
            )
            results = {k: file[f"r{k}"].view(kinds[k]) for k, p in enumerate(params) if p.rtol >= 0}
        return cls(params, args, results, reference)


def _carrier(array: Any) -> Any:
    """A type of the same size that NumPy's files can hold."""
    return array.dtype if array.dtype.kind in "iufb" else np.dtype(f"u{array.dtype.itemsize}")


def make_case(func: Any, extents: dict[str, int], seed: int = 0) -> Case:
    """Random arguments for ``func`` at ``extents`` (indices in range) and the results of the function as it
    is written, computed on this machine; a very long one is computed as the rules schedule it."""
    from ..element_ranges import facts_of
    from ..random_inputs import draw, environments
    from ..verify import run_primfunc, tolerance

    (env,) = environments(func, extents)[:1]
    args = draw(func, env, np.random.default_rng(seed))
    runnable, reference = _reference(func, env)
    facts = facts_of(func)
    written = {facts.root(buffer) for buffer, _ in facts.stores}
    got = iter(run_primfunc(runnable, args))
    after = [next(got) if isinstance(arg, np.ndarray) else arg for arg in args]
    params = tuple(
        Param(
            str(p.dtype) if isinstance(a, np.ndarray) else str(p.ty),
            not isinstance(a, np.ndarray),
            tolerance(str(p.dtype), facts, env) if p in written else -1.0,
        )
        for p, a in zip(func.params, args)
    )
    results = {k: after[k] for k, p in enumerate(params) if p.rtol >= 0}
    return Case(params, tuple(args), results, reference)


def _reference(func: Any, env: dict[Any, int]) -> tuple[Any, str]:
    """A quick enough form of the function and its name."""
    from .._tvm import IRModule
    from ..apply import apply_rules
    from ..blocks import FuncView
    from ..host import host_target
    from ..report import Report
    from ..rules import rules

    sizes = [
        prod(it.extent or max([*env.values(), 1]) for it in block.iters) for block in FuncView.of(func).blocks
    ]
    if sum(sizes) <= PLAIN_ITERATIONS * 1_000_000:
        return func, "the function as written"
    target = host_target()
    plain = func.without_attr("target") if func.attrs and "target" in func.attrs else func
    scheduled = apply_rules(IRModule({"main": plain}), target, rules(target), Report())
    return scheduled, "the default schedule"


@lru_cache(maxsize=2)
def _loaded(path: str) -> Case:
    return Case.load(path)


def allocate(path: str, threads: int, device: Any, _info: Any, repeat: int) -> list[list[Any]]:
    """For a runner of this machine: the arguments of the case at ``path``, ``repeat`` times."""
    import tvm

    from ..host import set_num_threads

    if threads:
        set_num_threads(threads)
    case = _loaded(path)
    return [
        [a if p.scalar else tvm.runtime.tensor(a, device) for p, a in zip(case.params, case.args)]
        for _ in range(repeat)
    ]


def allocate_remotely(
    path: str, threads: int, session: Any, device: Any, info: Any, repeat: int
) -> list[list[Any]]:
    """The same on the device of an RPC session."""
    if threads:
        session.get_function("runtime.config_threadpool")(1, threads)
    return allocate(path, 0, device, info, repeat)


def evaluate(
    path: str, calls: Sequence[Call], module: Any, device: Any, config: Any, repeated: list[list[Any]]
) -> list[float]:
    """For a runner: check the results, then time the last call.

    Raises ``ValueError`` where a result is wrong.
    """
    import tvm

    case = _loaded(path)
    costs: list[float] = []
    for position, args in enumerate(repeated):
        slots = list(args)
        for call in calls[:-1]:
            shape = list(call.shape)
            slots.append(tvm.runtime.empty(shape, call.dtype, device))
            module[call.function](*(slots[k] for k in (*call.args, len(slots) - 1)))
        last = calls[-1]
        final = [slots[k] for k in last.args]
        if position == 0:
            module[last.function](*final)
            check(case, slots)
        timer = module.time_evaluator(
            last.function,
            device,
            number=config.number,
            repeat=config.repeat,
            min_repeat_ms=config.min_repeat_ms,
            f_preproc="cache_flush_cpu_non_first_arg" if config.enable_cpu_cache_flush else "",
        )
        costs.extend(float(cost) for cost in timer(*final).results)
    return costs


def evaluate_remotely(
    path: str, calls: Sequence[Call], _session: Any, module: Any, device: Any, config: Any, repeated: Any
) -> list[float]:
    """The same on the device of an RPC session."""
    return evaluate(path, calls, module, device, config, repeated)


def check(case: Case, args: Sequence[Any]) -> None:
    """Raise ``ValueError`` where a result among ``args`` is not what it should be."""
    from ..verify import compare

    for k, want in case.results.items():
        entry = compare("candidate", f"parameter {k}", {}, want, args[k].numpy(), case.params[k].rtol)
        if not entry.ok:
            raise ValueError(
                f"wrong result: parameter {k} is off by {entry.max_error:.3g} (allowed {entry.tolerance:.3g})"
            )
