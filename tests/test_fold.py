# SPDX-License-Identifier: Apache-2.0
"""Constants at compile time: what NumPy evaluates equals what the compiled function computes."""

from __future__ import annotations

import math
from typing import Any

import corpus
import numpy as np
import pytest
import tvm
from corpus import WORKLOADS
from tvm import relax, te, tirx, topi
from tvm.script import tirx as T

from autotir_dlight.relax import fold
from autotir_dlight.relax.evaluate import MAX_ELEMENTS, evaluate
from autotir_dlight.relax.fold import MAX_GROWTH, MAX_SMALL_RESULT, FoldConstants
from autotir_dlight.verify import random_args, run_primfunc

QUICK = tvm.target.Target({"kind": "llvm", "opt-level": 0})


def evaluated(func: Any, args: list[np.ndarray]) -> np.ndarray | None:
    out = func.params[-1]
    return evaluate(func, args[:-1], [int(d) for d in out.shape], str(out.dtype))


def agree(func: Any, rtol: float = 0.0) -> None:
    args = random_args(func)
    got, want = evaluated(func, args), run_primfunc(func, args, QUICK)[-1]
    assert got is not None, "left to the build"
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=rtol)


def elementwise(expression: Any, *dtypes: str, shape: tuple[int, ...] = (5, 7)) -> Any:
    inputs = [te.placeholder(shape, dtype, f"x{k}") for k, dtype in enumerate(dtypes)]
    out = te.compute(shape, lambda *i: expression(*(x[i] for x in inputs)), "y")
    return te.create_prim_func([*inputs, out])


TWO_FLOATS = ("float32", "float32")
TWO_INTS = ("int32", "int32")
EXPRESSIONS = {
    "add": (lambda a, b: a + b, *TWO_FLOATS),
    "subtract": (lambda a, b: a - b, *TWO_FLOATS),
    "multiply in float16": (lambda a, b: a * b, "float16", "float16"),
    "divide": (lambda a, b: a / (b * b + tirx.const(1, "float32")), *TWO_FLOATS),
    "add in int8, which wraps": (lambda a, b: a + b, "int8", "int8"),
    "floor division": (lambda a, b: tirx.floordiv(a - 20, tirx.abs(b) + 1), *TWO_INTS),
    "floor remainder": (lambda a, b: tirx.floormod(a - 20, tirx.abs(b) + 1), *TWO_INTS),
    "max of integers": (lambda a, b: tirx.max(a, b), *TWO_INTS),
    "min of integers": (lambda a, b: tirx.min(a, b), *TWO_INTS),
    "compare": (lambda a, b: tirx.all(a < b, a <= b, tirx.Not(a == b)), *TWO_FLOATS),
    "compare the other way": (lambda a, b: tirx.any(a > b, a >= b, a != b), *TWO_FLOATS),
    "select": (lambda a, b: tirx.Select(a < b, a, b), *TWO_FLOATS),
    "a condition": (lambda a, b: tirx.if_then_else(a < b, a, b), *TWO_FLOATS),
    "square root": (lambda a: tirx.sqrt(a * a), "float32"),
    "reciprocal root": (lambda a: tirx.rsqrt(a * a + tirx.const(1, "float32")), "float32"),
    "rounding": (lambda a: tirx.floor(a * 7.0) + tirx.ceil(a * 5.0) + tirx.trunc(a * 3.0), "float32"),
    "to integers": (lambda a: (a * 50.0).astype("int32"), "float32"),
    "to float64": (lambda a: a.astype("float64") * 3.0, "float32"),
    "from bool": (lambda a: a.astype("float32"), "bool"),
    "a number alone": (lambda a: tirx.const(3, "float32"), "float32"),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(name):
    expression, *dtypes = EXPRESSIONS[name]
    agree(elementwise(expression, *dtypes), rtol=1e-6 if "root" in name else 0.0)


COPIES = {
    "transpose": lambda x: topi.transpose(x, (2, 0, 1)),
    "reshape": lambda x: topi.reshape(x, (5, 12)),
    "pad": lambda x: topi.nn.pad(x, [1, 0, 2], [0, 3, 1], tirx.const(2, "float32")),
    "slice": lambda x: topi.strided_slice(x, [0, 4, 0], [3, 0, 5], [1, -2, 2]),
    "broadcast": lambda x: topi.broadcast_to(x, (2, 3, 4, 5)),
    "concatenate": lambda x: topi.concatenate([x, topi.multiply(x, tirx.const(2, "float32"))], 1),
    "flip": lambda x: topi.flip(x, 1),
    "tile": lambda x: topi.tile(x, (2, 1, 3)),
    "chain": lambda x: topi.transpose(topi.subtract(topi.add(x, x), topi.multiply(x, x))),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_and_chains(name):
    x = te.placeholder((3, 4, 5), "float32", "x")
    agree(te.create_prim_func([x, COPIES[name](x)]))


def test_tables_are_looked_up():
    agree(corpus.func("gather"))


def test_a_single_element_without_dimensions():
    agree(elementwise(lambda a: a + a, "float32", shape=()))


@T.prim_func(s_tir=True)
def last_write_wins(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("first"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in range(4):
        with T.sblock("second"):
            vi = T.axis.spatial(4, i)
            B[vi * 2] = A[vi] * T.float32(3)


def test_blocks_run_in_order():
    agree(last_write_wins)


UNSUPPORTED = {
    "no elements": elementwise(lambda a: a + a, "float32", shape=(3, 0)),
    "a reduction": corpus.func("sum of rows"),
    "symbolic extents": corpus.func("add relu", "dynamic"),
    "a type that NumPy lacks": corpus.func("add relu", "aligned", "bfloat16"),
    "floating-point maxima, whose NaN differs": corpus.func("add relu"),
    "a function of the mathematics library": corpus.func("exp"),
    "an opaque iterator": corpus.scatter,
    "a statement that is no block": corpus.func("cumsum", "odd"),
}


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_is_beyond_it_is_left_to_the_build(what):
    func = UNSUPPORTED[what]
    shape = [int(d) if isinstance(d, tirx.IntImm) else 4 for d in func.params[-1].shape]
    args = [np.ones([int(d) if isinstance(d, tirx.IntImm) else 4 for d in p.shape]) for p in func.params[:-1]]
    assert evaluate(func, args, shape, str(func.params[-1].dtype)) is None


def test_a_huge_result_is_left_to_the_build():
    x = te.placeholder((1,), "float32", "x")
    func = te.create_prim_func([x, topi.broadcast_to(x, (MAX_ELEMENTS + 1,))])
    assert evaluate(func, [np.ones(1, "float32")], (MAX_ELEMENTS + 1,), "float32") is None


def test_the_corpus_agrees_wherever_it_is_evaluated():
    done = []
    for workload in WORKLOADS:
        func = workload.func(next(iter(workload.extents)), workload.dtypes[0])
        args = random_args(func)
        if evaluated(func, args) is not None:
            agree(func, rtol=1e-6)
            done.append(workload.name)
    assert {"broadcast", "transpose", "pad", "strided slice", "gather", "concatenate"} <= set(done)


# --- the pass ---------------------------------------------------------------------------------------------


def module(params: list[Any], body: Any) -> Any:
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    with tvm.target.Target("llvm"):
        return relax.transform.LegalizeOps()(builder.get())


def constant(*shape: int) -> Any:
    return relax.const(np.arange(np.prod(shape), dtype="float32").reshape(shape))


def parameter(*shape: int) -> Any:
    return relax.Var("x", relax.TensorType(shape, "float32"))


def calls(mod: Any) -> int:
    return mod["main"].script().count("R.call_tir(")


def test_nothing_to_fold_gives_the_module_itself():
    mod = module([parameter(3, 4)], lambda emit, x: emit(relax.op.add(x, x)))
    assert FoldConstants()(mod).same_as(mod)


def test_the_input_module_stays_as_it_is():
    def body(emit, x):
        return emit(relax.op.add(x, emit(relax.op.add(constant(4), constant(4)))))

    mod = module([parameter(3, 4)], body)
    before = mod.script(show_meta=True)
    folded = FoldConstants()(mod)
    assert mod.script(show_meta=True) == before
    assert (calls(mod), calls(folded)) == (2, 1)
    assert len(folded.get_global_vars()) == 2, "a function that nothing calls any more is left"


@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_of_growth(over):
    """A result of MAX_GROWTH times its arguments is folded, a larger one is not."""
    columns = MAX_SMALL_RESULT // 4 + 16
    grown = MAX_GROWTH + over

    def body(emit, x):
        return emit(relax.op.add(x, emit(relax.op.broadcast_to(constant(1, columns), (grown, columns)))))

    mod = module([parameter(grown, columns)], body)
    assert calls(FoldConstants()(mod)) == 1 + over


def test_small_results_may_grow_at_will():
    rows = MAX_SMALL_RESULT // 4 // 16

    def body(emit, x):
        return emit(relax.op.add(x, emit(relax.op.broadcast_to(constant(1, 16), (rows, 16)))))

    assert calls(FoldConstants()(module([parameter(rows, 16)], body))) == 1


def test_one_build_for_all_that_numpy_leaves(monkeypatch):
    builds = []

    def counted(mod, found, real=fold._build):
        builds.append(len(found))
        return real(mod, found)

    monkeypatch.setattr(fold, "_build", counted)

    def body(emit, x):
        table = emit(relax.op.add(constant(6), constant(6)))
        return emit(relax.op.add(x, emit(relax.op.add(emit(relax.op.erf(table)), emit(relax.op.exp(table))))))

    mod = module([parameter(6)], body)
    folded = FoldConstants()(mod)
    assert builds == [4]
    assert calls(folded) == 1
    values = np.arange(6, dtype="float32") * 2
    built = tvm.compile(folded, target=QUICK)
    x = np.zeros(6, "float32")
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, [math.erf(v) + math.exp(v) for v in values], rtol=1e-6)
