# SPDX-License-Identifier: Apache-2.0
"""The whole pipeline: the calling interface, packed constants, and what folding leaves behind."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import autotir_dlight as dl
from autotir_dlight.relax import pipeline as stages
from autotir_dlight.relax.fold import FoldConstants
from autotir_dlight.steps import LAYOUT_REWRITE


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(args, body, attrs=None):
    builder = relax.BlockBuilder()
    with builder.function("main", args, attrs=attrs):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *args))
        builder.emit_func_output(out)
    return builder.get()


def run(mod, *arrays, report=None):
    target = dl.host_target()
    executable = tvm.compile(mod, target, relax_pipeline=dl.pipeline(target, report=report))
    out = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return out.numpy() if hasattr(out, "numpy") else [o.numpy() for o in out]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def before_lowering(mod):
    target = dl.host_target()
    with target:
        return tvm.transform.Sequential(
            [*stages.graph_passes(), *stages.scheduling_passes(dl.rules(target), None, None)]
        )(mod)


WEIGHTS = normal(96, 80, seed=1)


def linear(transposed):
    weight = WEIGHTS.T.copy() if transposed else WEIGHTS

    def body(emit, x):
        w = relax.const(weight)
        return emit(R.nn.relu(emit(R.matmul(x, emit(R.permute_dims(w)) if transposed else w))))

    return module([tensor("x", (50, 96))], body)


@pytest.mark.parametrize("transposed", [False, True])
def test_constants_are_packed_at_compile_time(transposed):
    mod = before_lowering(linear(transposed))
    functions = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1, "the packing function must be gone"
    assert LAYOUT_REWRITE not in mod.script()
    x = normal(50, 96)
    np.testing.assert_allclose(run(linear(transposed), x), np.maximum(x @ WEIGHTS, 0), rtol=1e-4, atol=1e-4)


def test_parameters_are_not_packed_and_the_interface_stays():
    def make():
        return module(
            [tensor("x", (50, 96)), tensor("w", (96, 80))],
            lambda emit, x, w: emit(R.matmul(x, w)),
            attrs={"num_input": 1},
        )

    main = before_lowering(make())["main"]
    assert int(main.attrs["num_input"]) == 1
    assert [str(p.ty) for p in main.params] == [str(p.ty) for p in make()["main"].params]
    x = normal(50, 96)
    np.testing.assert_allclose(run(make(), x, WEIGHTS), x @ WEIGHTS, rtol=1e-4, atol=1e-4)


def test_one_function_called_with_a_constant_and_with_a_parameter():
    def make():
        return module(
            [tensor("x", (8, 96)), tensor("w", (96, 80))],
            lambda emit, x, w: emit(R.add(emit(R.matmul(x, relax.const(WEIGHTS))), emit(R.matmul(x, w)))),
        )

    x, w = normal(8, 96), normal(96, 80, seed=5)
    np.testing.assert_allclose(run(make(), x, w), x @ WEIGHTS + x @ w, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1, 7, 64])
def test_symbolic_rows(rows):
    n = tirx.Var("n", "int64")
    mod = module([tensor("x", (n, 96))], lambda emit, x: emit(R.matmul(x, relax.const(WEIGHTS))))
    x = normal(rows, 96)
    np.testing.assert_allclose(run(mod, x), x @ WEIGHTS, rtol=1e-4, atol=1e-4)


def test_tuple_outputs():
    mod = module([tensor("x", (6, 10))], lambda emit, x: emit(R.split(x, 2, axis=1)))
    x = normal(6, 10)
    left, right = run(mod, x)
    np.testing.assert_array_equal(left, x[:, :5])
    np.testing.assert_array_equal(right, x[:, 5:])


def test_batch_norm_keeps_its_mode():
    def make(training):
        stats = [relax.const(np.full(3, v, "float32")) for v in (2.0, 1.0, 0.5, 4.0)]
        return module(
            [tensor("x", (2, 3, 5, 7))],
            lambda emit, x: emit(
                relax.TupleGetItem(emit(R.nn.batch_norm(x, *stats, axis=1, training=training)), 0)
            ),
        )

    x = normal(2, 3, 5, 7)
    axes = (0, 2, 3)
    batch = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5) * 2 + 1
    np.testing.assert_allclose(run(make(True), x), batch, rtol=1e-3, atol=1e-4)
    moving = (x - 0.5) / np.sqrt(4 + 1e-5) * 2 + 1
    np.testing.assert_allclose(run(make(False), x), moving, rtol=1e-4, atol=1e-5)


def legalised(mod):
    with dl.host_target():
        return relax.transform.LegalizeOps()(mod)


def calls_left(mod):
    return mod["main"].script().count("call_tir")


def test_chains_of_constants_fold():
    ones = relax.const(np.arange(12, dtype="float32").reshape(3, 4))

    def body(emit, x):
        return emit(R.add(x, emit(R.sqrt(emit(R.permute_dims(emit(R.multiply(ones, ones))))))))

    mod = legalised(module([tensor("x", (4, 3))], body))
    assert calls_left(mod) == 4
    folded = FoldConstants()(mod)
    assert calls_left(folded) == 1
    x = normal(4, 3)
    np.testing.assert_allclose(run(module([tensor("x", (4, 3))], body), x), x + np.arange(12).reshape(3, 4).T)


def test_what_numpy_cannot_evaluate_is_built():
    table = relax.const(np.linspace(-2, 2, 30, dtype="float32").reshape(5, 6))
    body = lambda emit, x: emit(R.add(x, emit(R.sum(emit(R.erf(table)), axis=0))))  # noqa: E731
    mod = legalised(module([tensor("x", (6,))], body))
    assert calls_left(FoldConstants()(mod)) == 1


def test_a_constant_that_would_grow_stays_a_call():
    row = relax.const(np.ones((1, 1 << 14), "float32"))
    body = lambda emit, x: emit(R.add(x, emit(R.broadcast_to(row, (64, 1 << 14)))))  # noqa: E731
    mod = legalised(module([tensor("x", (64, 1 << 14))], body))
    assert calls_left(FoldConstants()(mod)) == 2


def test_the_report_is_filled():
    report = dl.Report()
    x = normal(50, 96)
    run(linear(False), x, report=report)
    assert [entry.rule for entry in report] == ["cpu.Matmul"]
    assert dl.Report.from_json(report.to_json()).to_json() == report.to_json()
