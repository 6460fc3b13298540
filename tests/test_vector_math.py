# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the vector functions against float64, special values, and no call left in the loop."""

import math

import numpy as np
import pytest
import tvm
from tvm import te, topi

import autotir_dlight as dl
from autotir_dlight.vector_math import VectorMath

COUNT = 1 << 16


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


erf = np.vectorize(math.erf, otypes=["float64"])

FUNCTIONS = {
    "erf": (topi.erf, erf, 5.0),
    "exp": (topi.exp, np.exp, 2.0),
    "log": (topi.log, np.log, 2.0),
    "sigmoid": (topi.sigmoid, sigmoid, 4.0),
    "tanh": (topi.tanh, np.tanh, 4.0),
}


def build(make, dtype="float32"):
    x = te.placeholder((COUNT,), dtype, name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, make(x)])})
    target = dl.host_target()
    with target:
        mod = tvm.transform.Sequential([dl.ApplyDefaultSchedule(*dl.rules(target)), VectorMath()])(mod)
    return tvm.compile(mod, target=target)


def run(built, values):
    result = tvm.runtime.tensor(np.zeros(COUNT, values.dtype))
    built["main"](tvm.runtime.tensor(values), result)
    return result.numpy()


@pytest.fixture(scope="module", params=FUNCTIONS)
def case(request):
    make, reference, bound = FUNCTIONS[request.param]
    return request.param, build(make), reference, bound


def inputs():
    rng = np.random.default_rng(0)
    special = [np.inf, -np.inf, np.nan, 0.0, -0.0, 88.72283, 88.8, -87.3, -103.9, -110.0, 1e30, -1e30]
    special += [1e-45, -1e-40, 1.17e-38, 3.4e38, 1.0, -1.0]
    parts = [
        rng.uniform(-110, 95, COUNT // 2),
        rng.uniform(-4, 4, COUNT // 4),
        rng.standard_normal(COUNT // 4 - len(special)) * 1e-3,
    ]
    return np.concatenate([*parts, special]).astype("float32")


def test_error_in_ulp(case):
    name, built, reference, bound = case
    x = inputs()
    with np.errstate(all="ignore"):
        exact = reference(x.astype("float64"))
        rounded = exact.astype("float32")
    normal = np.isfinite(rounded) & (np.abs(exact) > np.finfo("float32").tiny)
    error = np.abs(run(built, x)[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal]))
    assert error.max() <= bound, f"{name}: {error.max()} ulp at {x[normal][error.argmax()]}"


def test_special_values(case):
    name, built, reference, _ = case
    x = inputs()
    with np.errstate(all="ignore"):
        expected = reference(x.astype("float64")).astype("float32")
    got = run(built, x)
    assert np.array_equal(np.isnan(got), np.isnan(expected)), name
    for check in (np.isposinf, np.isneginf):
        assert np.array_equal(check(got), check(expected)), name
    tiny = np.abs(expected) < np.finfo("float32").tiny
    assert np.abs(got[tiny] - expected[tiny]).max(initial=0) <= 1e-38, name


def test_no_call_of_the_mathematics_library(case):
    _, built, _, _ = case
    assembly = built.mod.inspect_source("asm")
    assert not any(call in assembly for call in ("expf", "tanhf", "erff", "logf"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_half_precision_is_rounded_once(name):
    """Within half an ulp and what float32 is off."""
    _, reference, _ = FUNCTIONS[name]

    def make(x):
        return te.compute(x.shape, lambda i: getattr(tvm.tirx, name)(x[i]))

    built = build(make, "float16")
    x = inputs().clip(-60000, 60000).astype("float16")
    assert not any(call in built.mod.inspect_source("asm") for call in ("expf", "tanhf", "erff", "logf"))
    with np.errstate(all="ignore"):
        exact = reference(x.astype("float64"))
        rounded = exact.astype("float16")
    got = run(built, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    normal = np.isfinite(rounded) & (np.abs(exact) > np.finfo("float16").tiny)
    error = np.abs(got[normal] - exact[normal]) / np.spacing(np.abs(rounded[normal])).astype("float64")
    assert error.max() < 0.51, x[normal][error.argmax()]


def test_other_types_keep_their_calls():
    x = te.placeholder((64,), "float64", name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, topi.exp(x)])})
    assert tvm.ir.save_json(VectorMath()(mod)) == tvm.ir.save_json(mod)


def test_the_input_module_stays_as_it_is():
    x = te.placeholder((64,), name="x")
    mod = tvm.IRModule({"main": te.create_prim_func([x, topi.exp(x)])})
    before = tvm.ir.save_json(mod)
    changed = VectorMath()(mod)
    assert tvm.ir.save_json(mod) == before
    assert "autotir_dlight.exp" in changed.script()
