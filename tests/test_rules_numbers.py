# SPDX-License-Identifier: Apache-2.0
"""Every plan of every rule computes what the function computes without a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import corpus
import numpy as np
import pytest
import tvm
import tvm_ffi
from corpus import WORKLOADS, Case, Workload
from tvm.script import tirx as T

import autotir_dlight as dl
from autotir_dlight.cpu import blocking
from autotir_dlight.errors import RuleBug
from autotir_dlight.rule import Reject
from autotir_dlight.verify import random_args, run_primfunc

RULES = [dl.cpu.Conv, dl.cpu.Matmul, dl.cpu.GEMV, dl.cpu.Reduction, dl.cpu.Elementwise, dl.cpu.Fallback]
# Without a schedule a reduction over nothing leaves its result unwritten: there is nothing to compare with.
UNWRITTEN = [
    *((name, "no depth") for name in ("matmul nn", "matmul nt", "matmul bias relu")),
    *((name, "zero") for name in ("gemv kn", "sum of rows", "sum of squares")),
]
# The extents at which plans for many threads are made of small functions as well.
THREADED = ("aligned", "prime", "odd", "long")


@pytest.fixture(scope="module")
def quick(target):
    """The same machine with LLVM's optimiser off: only numbers are wanted, and TVM's lowering is the same."""
    return tvm.target.Target({**target.export(), "opt-level": 0})


def compile_functions(functions: dict[str, Any], target: Any) -> Any:
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    return tvm.compile(tvm.IRModule(named), target=target)


def all_plans(case: Case, func: Any, target: Any, patch: pytest.MonkeyPatch) -> dict[Any, dict[str, Any]]:
    """Plan -> rule and decision, of all rules, where threads are worth their start and where always."""
    found: dict[Any, dict[str, Any]] = {}
    threaded = case.kind in THREADED and case.dtype == case.workload.dtypes[0]
    for least in (blocking.PARALLEL_MIN_CYCLES, 0)[: 1 + threaded]:
        with patch.context() as inside:
            inside.setattr(blocking, "PARALLEL_MIN_CYCLES", least)
            for rule in (kind() for kind in RULES):
                decision = rule.decide(func, target)
                if isinstance(decision, Reject):
                    continue
                for plan in decision.plans:
                    found.setdefault(plan, {"rule": rule, "decision": decision})
    assert found, f"no rule has a plan for {case.id}"
    return found


def identifier(case: Case, position: int) -> str:
    return re.sub(r"\W", "_", f"{case.id}_{position}")


def variants(case: Case, target: Any, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any, Any, str]]:
    """Name, function, scheduled function and complaint, for each plan of a case."""
    func = case.build()
    for position, (plan, how) in enumerate(all_plans(case, func, target, patch).items()):
        name = identifier(case, position)
        try:
            yield name, func, how["rule"].build(func, how["decision"], plan).mod["main"], ""
        except RuleBug as bug:
            yield name, func, None, f"{case.id}: {bug}"


def cases_of(name: str) -> list[Case]:
    return [c for c in corpus.cases() if c.workload.name == name and (name, c.kind) not in UNWRITTEN]


@pytest.mark.parametrize("name", [w.name for w in WORKLOADS])
def test_every_plan_computes_what_the_function_does(name, target, quick, monkeypatch):
    plain: dict[str, Any] = {}
    scheduled: dict[str, Any] = {}
    complaints = []
    for case in cases_of(name):
        for variant, before, after, complaint in variants(case, target, monkeypatch):
            if complaint:
                complaints.append(complaint)
            else:
                plain[variant], scheduled[variant] = before, after
    report = dl.verify(compile_functions(plain, quick), tvm.IRModule(scheduled), quick)
    complaints += [str(entry) for entry in report.entries if not entry.ok]
    assert not complaints, "\n".join(complaints)
    assert {entry.function for entry in report.entries} == set(scheduled)


@pytest.mark.parametrize(("name", "kind"), UNWRITTEN)
def test_a_reduction_of_nothing_is_its_identity(name, kind, target, quick, monkeypatch):
    case = next(c for c in corpus.cases() if (c.workload.name, c.kind) == (name, kind))
    for _, before, after, complaint in variants(case, target, monkeypatch):
        assert not complaint
        args = random_args(before)
        args[-1] = np.full_like(args[-1], 7)
        want = np.zeros_like(args[-1])
        if name == "matmul bias relu":
            want[:] = np.maximum(args[2], 0)
        np.testing.assert_array_equal(run_primfunc(after, args, quick)[-1], want)


def strided_view(
    shape: tuple[int, ...], strides: tuple[int, ...], fill: np.ndarray | None = None
) -> np.ndarray:
    """An array with element ``strides`` in memory that is aligned as TVM wants it, zero elsewhere."""
    size = 1 + sum((n - 1) * step for n, step in zip(shape, strides))
    memory = np.from_dlpack(tvm.runtime.empty((size,), "float32"))
    memory[:] = 0
    view = np.lib.stride_tricks.as_strided(memory, shape, [4 * step for step in strides])
    if fill is not None:
        view[...] = fill
    return view


def strided_matmul(a_strides: tuple[int, int], b_strides: tuple[int, int], c_strides: tuple[int, int]) -> Any:
    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (12, 32), "float32", strides=a_strides)
        B = T.match_buffer(b, (32, 32), "float32", strides=b_strides)
        C = T.match_buffer(c, (12, 32), "float32", strides=c_strides)
        for i, j, k in T.grid(12, 32, 32):
            with T.sblock("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]

    return func


def strided_add(a_strides: tuple[int, int], c_strides: tuple[int, int]) -> Any:
    @T.prim_func(s_tir=True)
    def func(a: T.handle, c: T.handle):
        A = T.match_buffer(a, (12, 32), "float32", strides=a_strides)
        C = T.match_buffer(c, (12, 32), "float32", strides=c_strides)
        for i, j in T.grid(12, 32):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] + T.float32(1)

    return func


def strided_sum(a_strides: tuple[int, int], axis: int) -> Any:
    extent, other = ((12, 32), (32, 12))[axis]

    @T.prim_func(s_tir=True)
    def func(a: T.handle, C: T.Buffer((other,), "float32")):
        A = T.match_buffer(a, (12, 32), "float32", strides=a_strides)
        for i, k in T.grid(other, extent):
            with T.sblock("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + (A[vk, vi] if axis == 0 else A[vi, vk])

    return func


# Rows with a gap, every second element, and column-major.
STRIDES = {"gap": (40, 1), "second": (80, 2), "column": (1, 40)}


@pytest.mark.parametrize(
    ("a", "c"), [("gap", "gap"), ("second", "gap"), ("column", "second"), ("gap", "column")]
)
def test_strided_buffers(a, c, target, quick, monkeypatch):
    """Strides that the buffers declare: neighbours are not one element apart."""
    sa, sc = STRIDES[a], STRIDES[c]
    rng = np.random.default_rng(0)
    A, B = rng.random((12, 32), "float32"), rng.random((32, 32), "float32")
    functions = {
        "matmul": (strided_matmul(sa, sa, sc), [(A, sa), (B, sa), (A @ B, sc)]),
        "add": (strided_add(sa, sc), [(A, sa), (A + 1, sc)]),
        "rows": (strided_sum(sa, 1), [(A, sa), (A.sum(1), (1,))]),
        "columns": (strided_sum(sa, 0), [(A, sa), (A.sum(0), (1,))]),
    }
    for name, (func, arrays) in functions.items():
        case = Case(Workload(name, "", list, {"odd": ()}), "odd")
        for plan, how in all_plans(case, func, target, monkeypatch).items():
            scheduled = how["rule"].build(func, how["decision"], plan).mod["main"]
            built = compile_functions({"main": scheduled}, quick)
            views = [strided_view(x.shape, s, x) for x, s in arrays[:-1]]
            want, strides = arrays[-1]
            out = strided_view(want.shape, strides)
            built["main"](*(tvm_ffi.from_dlpack(v) for v in (*views, out)))
            np.testing.assert_allclose(out, want, rtol=1e-5, err_msg=f"{name}: {plan}")
