# SPDX-License-Identifier: Apache-2.0
"""Channels-last inside the graph: same numbers, same interface, permutes at the edges only."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax, tirx
from tvm.relax import op as R
from tvm_ffi import structural_walk

import autotir_dlight as dl
from autotir_dlight.relax import pipeline as stages
from autotir_dlight.relax.layout import ChannelsLast
from autotir_dlight.relax.permute import from_last, to_last, traits


def tensor(name, shape, dtype="float32"):
    return relax.Var(name, relax.TensorType(shape, dtype))


def module(args, body):
    builder = relax.BlockBuilder()
    with builder.function("main", args):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *args))
        builder.emit_func_output(out)
    return builder.get()


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def weight(*shape, seed=1):
    return relax.const(normal(*shape, seed=seed) / np.float32(np.sqrt(np.prod(shape[1:]))))


def conv(emit, x, outputs, size=3, groups=1, seed=1, **attrs):
    """A convolution with a bias, of as many dimensions as ``x`` has."""
    rank = len(x.ty.shape)
    channels = int(x.ty.shape[1])
    operator = {3: R.nn.conv1d, 4: R.nn.conv2d, 5: R.nn.conv3d}[rank]
    kernel = weight(outputs, channels // groups, *[size] * (rank - 2), seed=seed)
    bias = weight(1, outputs, *[1] * (rank - 2), seed=seed + 7)
    return emit(R.add(emit(operator(x, kernel, groups=groups, **attrs)), bias))


def moved(mod):
    """``mod`` legalised, with channels last wherever that is possible."""
    with dl.host_target():
        before = [p for p in stages.graph_passes("keep") if "Fuse" not in str(p.info.name)]
        return tvm.transform.Sequential([*before, ChannelsLast(always=True)])(mod)


def operators(mod):
    found = []

    def on_call(call):
        if isinstance(call.op, ir.Op):
            found.append(call.op.name.rpartition(".")[2])

    structural_walk(mod["main"], [(ir.Call, on_call)])
    return found


def run(mod, layout, *arrays):
    target = dl.host_target()
    executable = tvm.compile(mod, target, relax_pipeline=dl.pipeline(target, layout=layout))
    out = relax.VirtualMachine(executable, tvm.cpu())["main"](*[tvm.runtime.tensor(a) for a in arrays])
    return [out.numpy()] if hasattr(out, "numpy") else [o.numpy() for o in out]


def check(mod, *arrays, permutes):
    """Both layouts agree, the types stay, and ``permutes`` of them are left in the whole graph."""
    after = moved(mod)
    assert after["main"].ty == mod["main"].ty
    assert operators(after).count("permute_dims") == permutes
    for kept, last in zip(run(mod, "keep", *arrays), run(mod, "channels_last", *arrays)):
        np.testing.assert_allclose(last, kept, rtol=1e-4, atol=1e-4 * max(1e-30, np.abs(kept).max()))


WINDOWS = {
    "plain": ((2, 5, 9, 11), 7, {}),
    "padded": ((1, 8, 10, 13), 16, {"padding": 1}),
    "one side padded": ((1, 8, 10, 13), 6, {"padding": (0, 2, 1, 0)}),
    "strided": ((1, 6, 11, 9), 9, {"strides": (2, 1), "padding": 1}),
    "dilated": ((1, 6, 12, 12), 5, {"dilation": (2, 3), "padding": 2}),
    "pointwise": ((2, 33, 5, 7), 17, {"size": 1}),
    "pointwise strided": ((1, 6, 7, 7), 8, {"size": 1, "strides": 2}),
    "depthwise": ((1, 19, 8, 8), 19, {"groups": 19, "padding": 1}),
    "multiplier": ((1, 6, 8, 8), 12, {"groups": 6, "padding": 1}),
    "grouped": ((1, 12, 8, 8), 8, {"groups": 4, "padding": 1}),
    "one output": ((1, 9, 8, 8), 1, {"padding": 1}),
    "one-dimensional": ((2, 7, 31), 10, {"strides": 2, "padding": 1}),
    "three-dimensional": ((1, 5, 6, 7, 8), 6, {"padding": 1, "dilation": 2}),
}


@pytest.mark.parametrize("case", WINDOWS)
def test_a_convolution_of_every_kind(case):
    shape, outputs, attrs = WINDOWS[case]
    mod = module([tensor("x", shape)], lambda emit, x: emit(R.nn.relu(conv(emit, x, outputs, **attrs))))
    # One in, one out; a result of a single channel lies the same either way.
    check(mod, normal(*shape), permutes=2 if outputs > 1 else 1)


def test_the_first_layer_reads_the_image_as_it_is():
    mod = module([tensor("x", (1, 3, 12, 14))], lambda emit, x: conv(emit, x, 16, strides=2, padding=1))
    check(mod, normal(1, 3, 12, 14), permutes=1)


def chain(emit, x):
    """Everything that goes along: pooling, resizing, concatenation, splits, channel attention, softmax."""
    y = emit(R.nn.silu(conv(emit, x, 24, padding=1)))
    pooled = emit(R.nn.max_pool2d(y, (2, 2), (2, 2)))
    scale = emit(R.sigmoid(conv(emit, emit(R.mean(pooled, [2, 3], keepdims=True)), 24, size=1, seed=3)))
    y = emit(
        R.image.resize2d(emit(R.multiply(pooled, scale)), (12, 14), layout="NCHW", method="nearest_neighbor")
    )
    y = emit(R.concat([y, conv(emit, x, 5, padding=1, seed=4)], axis=1))
    parts = emit(R.split(y, [9], axis=1))
    left, right = emit(relax.TupleGetItem(parts, 0)), emit(relax.TupleGetItem(parts, 1))
    y = emit(R.add(conv(emit, left, 20, padding=1, seed=5), right))
    y = emit(R.nn.softmax(emit(R.nn.avg_pool2d(y, (3, 3), padding=1, count_include_pad=True)), axis=1))
    y = emit(R.strided_slice(y, [2, 3], [1, 2], [11, 12]))
    return conv(emit, emit(R.nn.pad(y, [0, 0, 0, 0, 1, 2, 3, 0])), 10, seed=6)


def test_what_lies_between_convolutions_goes_along():
    check(module([tensor("x", (1, 3, 12, 14))], chain), normal(1, 3, 12, 14), permutes=1)


def test_reshapes_that_keep_the_channels_and_a_transposition_behind_them_are_free():
    def tokens(emit, x):
        y = conv(emit, x, 24, size=4, strides=4)
        y = emit(R.permute_dims(emit(R.reshape(y, (1, 24, 12))), [0, 2, 1]))
        return emit(R.matmul(y, weight(24, 8, seed=9)))

    check(module([tensor("x", (1, 3, 16, 12))], tokens), normal(1, 3, 16, 12), permutes=0)


def test_a_mean_over_the_image_reads_it_as_it_lies():
    body = lambda emit, x: emit(R.mean(conv(emit, x, 24), [2, 3]))  # noqa: E731
    check(module([tensor("x", (2, 3, 9, 9))], body), normal(2, 3, 9, 9), permutes=0)


def test_transpositions_around_a_convolution_cancel():
    def body(emit, x):
        y = conv(emit, emit(R.permute_dims(x, [0, 3, 1, 2])), 12, padding=1)
        return emit(R.permute_dims(emit(R.nn.relu(y)), [0, 2, 3, 1]))

    check(module([tensor("x", (1, 9, 10, 8))], body), normal(1, 9, 10, 8), permutes=0)


def test_a_value_that_is_also_a_result():
    def body(emit, x):
        y = conv(emit, x, 12, padding=1)
        return emit(relax.Tuple([y, conv(emit, y, 6, padding=1, seed=2), emit(R.sum(y, [1]))]))

    check(module([tensor("x", (1, 3, 7, 6))], body), normal(1, 3, 7, 6), permutes=2)


def test_a_result_that_nobody_needs_channels_last_stays():
    def body(emit, x, other):
        y = emit(R.sigmoid(conv(emit, x, 4, padding=1)))
        return emit(R.concat([y, other], axis=1))

    mod = module([tensor("x", (1, 3, 7, 6)), tensor("other", (1, 60, 7, 6))], body)
    after = moved(mod)
    [permuted] = [
        b.value.args[0]
        for block in after["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, ir.Call) and b.value.op == ir.Op.get("relax.permute_dims")
    ]
    assert [int(d) for d in permuted.ty.shape] == [1, 7, 6, 4], "the small one, before the concatenation"
    check(mod, normal(1, 3, 7, 6), normal(1, 60, 7, 6, seed=3), permutes=1)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_symbolic_batch(rows):
    n = tirx.Var("n", "int64")
    body = lambda emit, x: emit(R.nn.relu(conv(emit, emit(R.nn.relu(conv(emit, x, 8))), 6, seed=3)))  # noqa: E731
    check(module([tensor("x", (n, 3, 9, 9))], body), normal(rows, 3, 9, 9), permutes=1)


def test_what_is_channels_last_or_has_weights_as_parameters_stays():
    def last(emit, x):
        return emit(R.nn.conv2d(x, weight(3, 3, 5, 8), data_layout="NHWC", kernel_layout="HWIO"))

    def parameter(emit, x, w):
        return emit(R.nn.conv2d(x, w))

    for mod in (
        module([tensor("x", (1, 9, 9, 5))], last),
        module([tensor("x", (1, 5, 9, 9)), tensor("w", (8, 5, 3, 3))], parameter),
        module([tensor("x", (2, 4, 6, 5))], lambda emit, x: emit(R.matmul(x, weight(2, 4, 5, 7)))),
    ):
        assert "permute_dims" not in operators(moved(mod))


def layout_of(mod):
    """What the automatic choice does with ``mod``."""
    with dl.host_target():
        passes = [*stages.graph_passes("keep")[:7], ChannelsLast()]
        return "last" if "permute_dims" in operators(tvm.transform.Sequential(passes)(mod)) else "keep"


def test_the_choice_follows_the_work():
    def dense(emit, x):
        return conv(emit, conv(emit, x, 64, padding=1), 64, padding=1, seed=2)

    def depthwise(emit, x):
        return conv(emit, conv(emit, x, 64, padding=1, groups=64), 64, size=1, seed=2)

    x = tensor("x", (1, 64, 32, 32))
    assert layout_of(module([x], dense)) == "last"
    assert layout_of(module([x], depthwise)) == "keep"


def test_an_unknown_layout_is_refused():
    with pytest.raises(ValueError, match="'nhwc' is not one of auto, keep, channels_last"):
        dl.pipeline(dl.host_target(), layout="nhwc")


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_the_two_permutations_are_inverse(rank):
    assert [to_last(rank)[a] for a in from_last(rank)] == list(range(rank))


def kind_of(body, *shapes):
    with dl.host_target():
        mod = relax.transform.LegalizeOps()(module([tensor(f"p{i}", s) for i, s in enumerate(shapes)], body))
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return traits(func, 1)


def test_kinds_are_read_from_index_sets():
    image = (1, 6, 8, 8)
    assert kind_of(lambda emit, x, w: emit(R.nn.conv2d(x, w, padding=1)), image, (4, 6, 3, 3)).kind == "conv"
    assert kind_of(lambda emit, x, y: emit(R.matmul(x, y)), image, image).kind == "other"
    assert kind_of(lambda emit, x, y: emit(R.add(x, y)), image, image).kind == "aligned"
    assert kind_of(lambda emit, x: emit(R.permute_dims(x, [0, 2, 1, 3])), image).axes == (0, 2, 1, 3)
    assert kind_of(lambda emit, x: emit(R.reshape(x, (1, 6, 64))), image).kind == "reshape"
    assert kind_of(lambda emit, x, y: emit(R.matmul(x, y)), (1, 6, 8), (8, 4)).kind == "other"
    assert kind_of(lambda emit, x: emit(R.mean(x, [2, 3])), image).kind == "reduce"
    assert kind_of(lambda emit, x: emit(R.mean(x, [1, 3])), image).kind == "other"
