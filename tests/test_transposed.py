# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions by phase: the numbers of TOPI's lowering, without its multiplications by zero."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op as R

import autotir_dlight as dl
from autotir_dlight.relax.permute import traits
from autotir_dlight.relax.transposed import TRANSPOSED, TRANSPOSED_CONVOLUTIONS

# Shape of the data, of the kernel, and what the operator is called with.
CASES = {
    "kernel as long as the stride": ((1, 7, 5, 6), (7, 4, 2, 2), {"strides": 2}),
    "stride of one": ((2, 5, 6, 5), (5, 4, 3, 3), {"padding": 1}),
    "kernel of four": ((1, 6, 5, 7), (6, 5, 4, 4), {"strides": 2, "padding": 1}),
    "ragged phases": ((1, 6, 5, 7), (6, 5, 3, 5), {"strides": (2, 3), "padding": (1, 2, 0, 1)}),
    "output padding": ((1, 3, 4, 5), (3, 4, 3, 3), {"strides": 3, "padding": 1, "output_padding": (1, 2)}),
    "stride over kernel": ((1, 3, 4, 5), (3, 4, 2, 2), {"strides": 3, "output_padding": 1}),
    "padding over stride": ((1, 3, 6, 6), (3, 4, 5, 5), {"strides": 2, "padding": 4}),
    "dilated": ((1, 4, 5, 6), (4, 3, 3, 2), {"strides": 2, "dilation": (2, 3), "padding": 1}),
    "grouped": ((1, 6, 5, 6), (6, 4, 3, 3), {"strides": 2, "groups": 3, "padding": 1}),
    "depthwise": ((1, 6, 5, 6), (6, 1, 4, 4), {"strides": 2, "groups": 6, "padding": 1}),
    "one-dimensional": ((2, 5, 17), (5, 6, 7), {"strides": 4, "padding": (2, 1)}),
    "three-dimensional": ((1, 3, 4, 5, 3), (3, 4, 3, 2, 4), {"strides": (2, 1, 3), "padding": 1}),
}


def operator(rank):
    return {3: R.nn.conv1d_transpose, 4: R.nn.conv2d_transpose, 5: R.nn.conv3d_transpose}[rank]


def module(shape, kernel, attrs, symbolic=False):
    builder = relax.BlockBuilder()
    batch = tirx.Var("n", "int64") if symbolic else shape[0]
    x = relax.Var("x", relax.TensorType((batch, *shape[1:]), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(operator(len(shape))(x, relax.const(kernel), **attrs))
        builder.emit_func_output(out)
    return builder.get()


def run(mod, x, pipeline=None):
    target = dl.host_target() if pipeline else "llvm"
    executable = tvm.compile(mod, target, **({"relax_pipeline": pipeline} if pipeline else {}))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def numbers(shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype("float32")


@pytest.mark.parametrize("layout", ["keep", "channels_last"])
@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_the_spread_input(case, layout):
    shape, kernel, attrs = CASES[case]
    x, w = numbers(shape), numbers(kernel, 1)
    want = run(module(shape, w, attrs), x)
    got = run(module(shape, w, attrs), x, dl.pipeline(dl.host_target(), layout=layout))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_channels_last_data():
    shape, kernel, attrs = CASES["kernel of four"]
    x, w = numbers(shape), numbers(kernel, 1)
    want = run(module(shape, w, attrs), x).transpose(0, 2, 3, 1)
    last = module(
        tuple(shape[a] for a in (0, 2, 3, 1)),
        w.transpose(2, 3, 1, 0).copy(),
        {**attrs, "data_layout": "NHWC", "kernel_layout": "HWOI"},
    )
    got = run(last, x.transpose(0, 2, 3, 1).copy(), dl.pipeline(dl.host_target()))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_symbolic_batch():
    shape, kernel, attrs = CASES["ragged phases"]
    w = numbers(kernel, 1)
    for rows in (1, 3):
        x = numbers((rows, *shape[1:]))
        want = run(module(x.shape, w, attrs), x)
        got = run(module(shape, w, attrs, symbolic=True), x, dl.pipeline(dl.host_target()))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_no_zero_is_multiplied():
    shape, kernel, attrs = CASES["kernel of four"]
    with dl.host_target():
        mod = relax.transform.LegalizeOps(TRANSPOSED_CONVOLUTIONS)(module(shape, numbers(kernel), attrs))
    [func] = [f for _, f in mod.functions_items() if f.attrs and TRANSPOSED in f.attrs]
    found = traits(func, 1)
    # 16 taps and 2 × 2 results for each pixel of the input and one more line of them on each side.
    assert (found.kind, found.multiplies) == ("conv", 6 * 8 * 6 * 5 * 16)
