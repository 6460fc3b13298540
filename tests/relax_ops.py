# SPDX-License-Identifier: Apache-2.0
"""The table of the operator sweep: small Relax functions of every operator that TVM can legalise.

Each operator comes in at least three shapes: aligned, ragged (odd or prime extents) and with a symbolic
extent. :data:`FAMILIES` holds the cases; :data:`EXCLUDED` says of each other operator why it has none.
"""

# ruff: noqa: E731, B008  a named lambda is the shortest way to write one operator with its attributes

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from relax_cases import Case, Spec
from tvm import relax, topi
from tvm.relax import op
from tvm.relax.op import grad, image, nn, vision


def cases(
    name: str, build: Callable[..., Any], *shapes: str, note: str = "", upstream: str = ""
) -> list[Case]:
    """One case for each of ``shapes``, which holds the inputs separated by blanks.

    ``upstream`` says why TVM itself cannot build it.
    """
    return [Case(name, tuple(Spec.parse(s) for s in text.split()), build, note, upstream) for text in shapes]


def typed(dtypes: str, shape: str) -> list[str]:
    """``shape`` in each of ``dtypes``: every ``?`` becomes the type."""
    return [shape.replace("?", dtype) for dtype in dtypes.split()]


def dims(x: Any) -> list[Any]:
    """The extents of a tensor."""
    return list(x.ty.shape)


# --- elementwise ----------------------------------------------------------------------------------------

# Operator -> the range of its argument.
UNARY = {
    "abs": "", "acos": ":-1..1", "acosh": ":1..9", "asin": ":-1..1", "asinh": ":-3..3", "atan": ":-3..3",
    "atanh": ":-0.9..0.9", "ceil": ":-9..9", "cos": ":-9..9", "cosh": ":-3..3", "erf": ":-3..3",
    "exp": ":-9..9", "floor": ":-9..9", "isfinite": "", "isinf": "", "isnan": "", "log": ":0.1..9",
    "negative": "", "round": ":-9..9", "rsqrt": ":0.1..9", "sigmoid": ":-9..9", "sign": "", "sin": ":-9..9",
    "sinh": ":-3..3", "sqrt": ":0..9", "square": "", "tan": ":-1..1", "tanh": ":-9..9", "trunc": ":-9..9",
}  # fmt: skip
ACTIVATIONS = "gelu gelu_tanh leakyrelu relu selu silu softplus"
SIGNED = "int8 int16 int32 int64"
UNSIGNED = "uint8 uint16 uint32 uint64"
HALF = "float16 bfloat16"


def unary() -> list[Case]:
    found: list[Case] = []
    for name, span in UNARY.items():
        shapes = [f"[64,512]{span}", f"[7,33]{span}", f"[n,33]{span}"]
        found += cases(name, getattr(op, name), *shapes)
    for name in "exp sigmoid tanh erf sqrt rsqrt log".split():
        for shape in typed("float16 bfloat16 float64", f"?[7,33]{UNARY[name]}"):
            found += cases(name, getattr(op, name), shape)
    for name in "abs negative sign square".split():
        found += cases(name, getattr(op, name), *typed(SIGNED + " " + HALF, "?[64,512]:-9..9"))
    for name in ACTIVATIONS.split():
        shapes = ["[64,512]:-9..9", "[7,33]:-9..9", "[n,33]:-9..9", "float16[3,5,7]:-9..9"]
        found += cases(f"nn.{name}", getattr(nn, name), *shapes)
    found += cases("bitwise_not", op.bitwise_not, *typed(f"{SIGNED} {UNSIGNED}", "?[7,33]"), "int32[64,512]")
    found += cases("bitwise_not", op.bitwise_not, "int32[n,33]", "bool[7,33]")
    found += cases("logical_not", op.logical_not, "bool[64,512]", "bool[7,33]", "bool[n,33]")
    found += cases("clip", lambda x: op.clip(x, -0.5, 0.25), "[64,512]", "[7,33]", "[n,33]")
    found += cases("clip", lambda x: op.clip(x, -3, 5), *typed("int8 int32", "?[7,33]"))
    found += cases("nn.dropout", nn.dropout, "[64,512]", "[7,33]", "[n,33]")
    found += cases("tanh", lambda x: op.tanh(x), "[]", "[1]", "[0,4]", "[n]", "[2,3,4,5,6]", note="ranks")
    return found


def casts() -> list[Case]:
    found: list[Case] = []
    for source in "float32 float16 bfloat16 float64 int8 uint8 int32 int64 bool".split():
        for wanted in "float32 float16 bfloat16 int8 uint8 int32 int64 bool".split():
            if wanted == source:
                continue
            shape = f"{source}[7,33]:0..90"
            found += cases("astype", lambda x, t=wanted: op.astype(x, t), shape, note=f"to {wanted}")
    wide = ["int8[64,512]", "[64,512]", "[n,33]", "[0,4]"]
    return found + cases("astype", lambda x: op.astype(x, "float16"), *wide)


# --- two and three operands ------------------------------------------------------------------------------

ARITHMETIC = "add subtract multiply maximum minimum"
COMPARISON = "equal greater greater_equal less less_equal not_equal"
# Two operands of the same shape, and broadcasts over leading, trailing and inner extents.
PAIRS = ["?[64,512] ?[64,512]", "?[7,33] ?[7,33]", "?[n,33] ?[n,33]"]
BROADCASTS = ["?[64,512] ?[512]", "?[3,1,33] ?[7,1]", "?[n,1] ?[1,33]", "?[2,n,5] ?[5]", "?[7,33] ?[]"]


def filled(patterns: list[str], dtype: str) -> list[str]:
    return [p.replace("?", dtype) for p in patterns]


def binary() -> list[Case]:
    found: list[Case] = []
    for name in ARITHMETIC.split():
        build = getattr(op, name)
        found += cases(name, build, *filled(PAIRS, "float32"), *filled(BROADCASTS, "float32"))
        for dtype in f"{SIGNED} uint8 {HALF} float64".split():
            found += cases(name, build, f"{dtype}[7,33]:0..9 {dtype}[7,33]:0..9")
    for name in COMPARISON.split():
        build = getattr(op, name)
        found += cases(name, build, *filled(PAIRS, "int8"), "[64,512] [512]", "[7,33] [7,33]", "[n,1] [1,33]")
    for name in "logical_and logical_or logical_xor".split():
        found += cases(name, getattr(op, name), *filled(PAIRS, "bool"), "bool[n,1] bool[1,33]")
    for name in "bitwise_and bitwise_or bitwise_xor".split():
        found += cases(name, getattr(op, name), *filled(PAIRS, "int32"), "uint8[7,33] uint8[33]")
    for name in "left_shift right_shift".split():
        shapes = [
            "int32[64,512] int32[64,512]:0..7",
            "int32[7,33] int32[33]:0..7",
            "int64[n,3] int64[n,3]:0..7",
        ]
        found += cases(name, getattr(op, name), *shapes)
    return found + division()


def division() -> list[Case]:
    found: list[Case] = []
    by = "[64,512] [64,512]:1..9", "[7,33] [33]:1..9", "[n,33] [n,1]:1..9"
    integers = "int32[64,512] int32[64,512]:1..9", "int32[7,33] int32[33]:1..9", "int64[n,33] int64[n,1]:1..9"
    for name in "divide floor_divide floor_mod mod".split():
        build = getattr(op, name)
        found += cases(name, build, *by)
        if name != "divide":
            found += cases(
                name, build, *integers, "int32[7,33] int32[33]:-9..-1", "uint8[7,33] uint8[33]:1..9"
            )
    powers = "[64,512]:0.1..3 [64,512]", "[7,33]:0.1..3 [33]", "[n,33]:0.1..3 [n,1]"
    found += cases("power", op.power, *powers)
    found += cases("atan2", op.atan2, *by)
    return found + cases("log_add_exp", op.log_add_exp, *by)


def select() -> list[Case]:
    shapes = ["bool[64,512] [64,512] [64,512]", "bool[7,1] [7,33] [33]", "bool[n,33] [n,33] []"]
    halves = "bool[7,33] float16[7,33] float16[7,33]", "bool[7,33] int8[7,33] int8[33]"
    found = cases("where", op.where, *shapes, *halves)
    buckets = "[64,512] [9]:-1..1", "[7,33] [3]:-1..1", "[n] [5]:-1..1"
    found += cases("bucketize", lambda x, b: op.bucketize(x, b), *buckets)
    right = cases(
        "bucketize", lambda x, b: op.bucketize(x, b, out_int32=True, right=True), *buckets, note="right"
    )
    prelu = "[2,16,8,8] [16]", "[1,5,7,3] [5]", "[n,5,7] [5]", "[7,33] [33]"
    return found + right + cases("nn.prelu", nn.prelu, *prelu)


# --- creation -------------------------------------------------------------------------------------------


def creation() -> list[Case]:
    three = "[64,512]", "[7,33]", "[n,33]"
    found: list[Case] = []
    for name in "ones zeros".split():
        found += cases(name, lambda x, f=getattr(op, name): f(dims(x), "float32"), *three)
        found += cases(f"{name}_like", getattr(op, f"{name}_like"), *three, "int8[7,33]")
    found += cases("full", lambda x: op.full(dims(x), relax.const(3.5, "float32"), "float32"), *three)
    found += cases("full", lambda v: op.full((7, 33), v, "float32"), "[]", note="of a value")
    found += cases("full_like", lambda x, v: op.full_like(x, v), *(f"{s} []" for s in three))
    found += cases("eye", lambda x: op.eye(dims(x)[0], dims(x)[1], 1), *three)
    found += cases("eye_like", lambda x: op.eye_like(x, 2), *three, "int8[7,33]")
    found += cases("arange", lambda x: op.arange(0, dims(x)[0], 1, "int64"), "[m]", "[64]", "[7]")
    found += cases("arange", lambda x: op.arange(3, dims(x)[0] + 40, 2, "float32"), "[n,2]", note="step 2")
    window = lambda x: op.hamming_window(dims(x)[0], True, 0.54, 0.46, "float32")
    found += cases("hamming_window", window, "[64]", "[33]")
    found += cases("hamming_window", window, "[k]", upstream="the legalisation wants a constant size")
    for name in "tril triu".split():
        build = getattr(op, name)
        found += cases(name, build, "[64,64]", "[3,7,33]", "[n,33]", "int8[7,7]")
        found += cases(name, lambda x, f=build: f(x, -2), "[7,33]", note="k=-2")
    found += cases(
        "shape_to_tensor", lambda x: op.shape_to_tensor(op.shape_of(x)), "[64,512]", "[7]", "[n,3,m]"
    )
    return found + cases("size", op.size, "[64,512]", "[7,33]", "[n,33]")


# --- moving elements -------------------------------------------------------------------------------------


def layout() -> list[Case]:
    found = cases(
        "permute_dims", op.permute_dims, "[64,512]", "[7,33]", "[n,33]", "int8[64,64]", "float16[7,5,3]"
    )
    found += cases(
        "permute_dims", lambda x: op.permute_dims(x, [0, 2, 3, 1]), "[2,16,8,8]", "[1,3,5,7]", "[n,3,h,w]"
    )
    found += cases(
        "permute_dims", lambda x: op.permute_dims(x, [0, 2, 1, 3]), "[1,8,4,16]", "[2,3,n,5]", note="heads"
    )
    found += cases("reshape", lambda x: op.reshape(x, (-1, 8)), "[64,512]", "[7,24]", "[n,16]")
    found += cases("flatten", op.flatten, "[64,512]", "[7,33]", "[n,33]")
    found += cases("nn.batch_flatten", nn.batch_flatten, "[4,16,8,8]", "[3,5,7]", "[n,5,7]")
    found += cases("expand_dims", lambda x: op.expand_dims(x, [0, 2]), "[64,512]", "[7,33]", "[n,33]")
    found += cases("squeeze", lambda x: op.squeeze(x, [1]), "[64,1,512]", "[7,1,33]", "[n,1,33]")
    blocked = lambda x: op.layout_transform(x, lambda n, c, h, w: (n, c // 4, h, w, c % 4))
    found += cases("layout_transform", blocked, "[2,16,8,8]", "[1,4,5,7]", "[n,8,5,7]", note="NCHW4c")
    padded = lambda x: op.layout_transform(x, lambda i: (i // 16, i % 16), 0.0)
    found += cases("layout_transform", padded, "[64]", "[33]", note="padded")
    found += cases(
        "nn.pixel_shuffle",
        lambda x: nn.pixel_shuffle(x, 2),
        *("[1,16,8,8]", "[2,12,5,7]", "[n,8,h,w]"),
        upstream="the legalisation calls topi.nn.pixel_shuffle, which does not exist",
    )
    found += cases("flip", lambda x: op.flip(x, 1), "[64,512]", "[7,33]", "[n,33]")
    found += cases("flip", lambda x: op.flip(x, 0), "[7,33]", "[n,33]", note="axis 0")
    reverse = "[4,64] int32[4]:1..64", "[3,7,5] int64[3]:1..7", "[m,9] int64[m]:1..9"
    return found + cases("reverse_sequence", op.reverse_sequence, *reverse)


def joining() -> list[Case]:
    join = lambda axis: lambda *xs: op.concat(list(xs), axis)
    found = cases("concat", join(1), "[4,64] [4,32]", "[7,3] [7,5] [7,1]", "[n,3] [n,5]", note="axis 1")
    found += cases(
        "concat", join(0), "[64,512] [64,512]", "[3,7] [5,7]", "[n,7] [m,7]", "int8[3,7] int8[5,7]"
    )
    stack = lambda axis: lambda *xs: op.stack(list(xs), axis)
    found += cases("stack", stack(0), "[64,512] [64,512]", "[7,33] [7,33] [7,33]", "[n,33] [n,33]")
    found += cases("stack", stack(2), "[7,33] [7,33]", note="axis 2")
    found += cases("split", lambda x: op.split(x, 4, 1), "[64,512]", "[7,36]", "[n,36]")
    found += cases("split", lambda x: op.split(x, [3, 10], 1), "[7,33]", "[n,33]", note="at indices")
    found += cases("repeat", lambda x: op.repeat(x, 3, 1), "[64,128]", "[7,33]", "[n,33]")
    found += cases("repeat", lambda x: op.repeat(x, 2), "[7,33]", note="flat")
    found += cases("tile", lambda x: op.tile(x, (2, 3)), "[64,128]", "[7,33]", "[n,33]")
    found += cases(
        "broadcast_to", lambda x, y: op.broadcast_to(x, dims(y)), "[1,512] [64,512]", "[7,1] [3,7,33]"
    )
    found += cases("broadcast_to", lambda x, y: op.broadcast_to(x, dims(y)), "[33] [n,33]", "[n,1] [n,33]")
    grids = "[64] [32]", "[7] [33] [5]", "[n] [5]"
    return found + cases("meshgrid", lambda *xs: op.meshgrid(list(xs), "ij"), *grids)


def slicing() -> list[Case]:
    take = lambda x: op.strided_slice(x, [0, 1], [1, 2], [7, 30])
    found = cases("strided_slice", take, "[64,512]", "[7,33]", "[k,33]", "int8[7,33]")
    found += cases(
        "strided_slice", lambda x: op.strided_slice(x, [1], [0], [33], [3]), "[7,33]", "[n,33]", note="step 3"
    )
    found += cases(
        "strided_slice",
        lambda x: op.strided_slice(x, [1], [30], [2], [-2]),
        "[7,33]",
        "[n,33]",
        note="backwards",
    )
    bounds = [relax.const(np.array(v), "int64") for v in ([1, 2], [3, 9], [1, 2])]
    dynamic = lambda x: op.dynamic_strided_slice(x, *bounds)
    found += cases("dynamic_strided_slice", dynamic, "[64,512]", "[7,33]", "[k,33]")
    scatter = lambda x, y: op.slice_scatter(x, y, 1, 5, 2, axis=1)
    found += cases("slice_scatter", scatter, "[64,512] [64,2]", "[7,33] [7,2]", "[n,33] [n,2]")
    found += cases("nn.pad", lambda x: nn.pad(x, [1, 2, 3, 0]), "[64,512]", "[7,33]", "[n,33]", "int8[7,33]")
    for mode in "reflect replicate circular".split():
        pad = lambda x, m=mode: nn.pad(x, [1, 2, 3, 1], m)
        found += cases("nn.pad", pad, "[64,512]", "[7,33]", "[k,33]", note=mode)
    return found


def gathering() -> list[Case]:
    indexed = "[64,512] int32[16]:0..63", "[7,33] int64[5,3]:0..6", "[m,33] int64[n]:0..0"
    found = cases("take", lambda x, i: op.take(x, i, 0), *indexed, "int8[7,33] int32[9]:0..6")
    inner = "[64,512] int32[16]:0..511", "[7,33] int64[5]:0..32", "[n,33] int64[5]:0..32"
    found += cases("take", lambda x, i: op.take(x, i, 1), *inner, note="axis 1")
    found += cases("take", lambda x, i: op.take(x, i, mode="clip"), "[64] int32[7]:-9..99", note="clip")
    found += cases("take", lambda x, i: op.take(x, i, mode="wrap"), "[64] int32[7]:0..99", note="wrap")
    elements = "[64,512] int64[64,16]:0..511", "[7,33] int64[7,5]:0..32", "[n,33] int64[n,5]:0..32"
    found += cases("gather_elements", lambda x, i: op.gather_elements(x, i, 1), *elements)
    nd = "[64,512] int64[16,2]:0..63", "[7,33] int64[5,3,1]:0..6", "[m,33] int64[n,1]:0..0"
    found += cases("gather_nd", op.gather_nd, *nd)
    found += cases(
        "gather_nd", lambda x, i: op.gather_nd(x, i, 1), "[4,7,5] int64[4,3,1]:0..6", note="batched"
    )
    tensor = (
        "[64,512] int64[16]:0..63 int64[16]:0..63",
        "[7,33] int64[3,1]:0..6 int64[5]:0..6",
        "[m,33] int64[n]:0..0",
    )
    found += cases("index_tensor", lambda x, *i: op.index_tensor(x, list(i)), *tensor)
    hot = "int32[64]:0..9", "int64[7,3]:0..9", "int64[n]:0..9"
    for axis in (-1, 0):
        build = lambda x, a=axis: op.one_hot(x, relax.prim_value(1.0), relax.prim_value(0.0), 10, a)
        found += cases("one_hot", build, *hot, note=f"axis {axis}")
    return found


def scattering() -> list[Case]:
    found: list[Case] = []
    elements = (
        "[64,128] int64[64,16]:0..127 [64,16]",
        "[7,33] int64[7,5]:0..32 [7,5]",
        "[m,33] int64[m,5]:0..32 [m,5]",
    )
    for reduction in "update add mul min max".split():
        build = lambda x, i, u, r=reduction: op.scatter_elements(x, i, u, 1, r)
        found += cases(
            "scatter_elements", build, *elements[: 3 if reduction in ("update", "add") else 2], note=reduction
        )
    nd = "[64,128] int64[16,1]:0..63 [16,128]", "[7,33] int64[5,2]:0..6 [5]", "[m,33] int64[k,1]:0..0 [k,33]"
    for reduction in "update add".split():
        found += cases(
            "scatter_nd", lambda x, i, u, r=reduction: op.scatter_nd(x, i, u, r), *nd, note=reduction
        )
    put = "[64,128] int64[16]:0..63 int64[16]:0..127 [16]", "[7,33] int64[5]:0..6 int64[5]:0..6 [5]"
    put += ("[m,33] int64[9]:0..0 int64[9]:0..32 [9]",)
    for add in (False, True):
        build = lambda x, i, j, v, a=add: op.index_put(x, (i, j), v, a)
        found += cases("index_put", build, *put, note="accumulate" if add else "")
    return found


# --- reductions ------------------------------------------------------------------------------------------


def reductions() -> list[Case]:
    found: list[Case] = []
    for name in "sum mean max min prod std variance".split():
        build = getattr(op, name)
        span = ":0.9..1.1" if name == "prod" else ""
        rows = [s + span for s in ("[64,512]", "[7,33]", "[m,33]", "[7,m]")]
        found += cases(name, lambda x, f=build: f(x, -1), *rows, note="rows")
        found += cases(name, lambda x, f=build: f(x, 0, True), *rows, note="columns")
        found += cases(name, build, "[64,512]" + span, "[7,33]" + span, "[m,33]" + span, note="all")
        found += cases(
            name, lambda x, f=build: f(x, [0, 2]), "[8,32,16]" + span, "[3,5,7]" + span, "[m,5,k]" + span
        )
        found += cases(
            name, lambda x, f=build: f(x, [1, 2]), "[8,32,16]" + span, "[3,5,7]" + span, note="inner"
        )
    for name in "sum max min".split():
        for shape in typed(f"{SIGNED} {HALF} float64", "?[7,33]"):
            found += cases(name, lambda x, f=getattr(op, name): f(x, 1), shape)
    found += cases("sum", lambda x: op.sum(x, 1), "[512,1024]", "[1,65536]", "[n,33]", note="long")
    found += cases("sum", op.sum, "[512,1024]", note="parallel")
    return found


def empty() -> list[Case]:
    """Reductions of nothing, whose result plain TVM leaves unwritten: compared with NumPy."""
    found = cases("sum", lambda x: op.sum(x, 1), "[3,0]", "[3,n]")
    found += cases("matmul", op.matmul, "[7,0] [0,5]", "[7,n] [n,13]")
    return found


def statistics() -> list[Case]:
    found = cases("median", lambda x: op.median(x, 1), "[16,64]", "[7,33]", "[m,33]")
    for name in "argmax argmin".split():
        build = getattr(op, name)
        ties = "int8[64,512]:0..3", "int8[7,33]:0..3", "int8[m,33]:0..3"
        found += cases(name, lambda x, f=build: f(x, 1), *ties, note="ties")
        found += cases(name, lambda x, f=build: f(x, 0, True), *ties, "[7,33]", note="columns")
        found += cases(name, lambda x, f=build: f(op.astype(x, "float32")), *ties, note="all")
        found += cases(name, lambda x, f=build: f(x, 1), "[3,5,7]", "[8,32,16]", "float16[7,33]")
    like = "[64,512] [512]", "[3,7,33] [7,1]", "[m,33] [33]"
    found += cases("collapse_sum_like", op.collapse_sum_like, *like)
    found += cases("collapse_sum_to", lambda x, y: op.collapse_sum_to(x, dims(y)), *like)
    for name in "cumsum cumprod".split():
        build = getattr(op, name)
        shapes = "[16,64]:0.9..1.1", "[7,33]:0.9..1.1", "[m,33]:0.9..1.1"
        found += cases(name, lambda x, f=build: f(x, 1), *shapes)
    for descending in (False, True):
        note = "descending" if descending else ""
        for name in "sort argsort".split():
            build = lambda x, f=getattr(op, name), d=descending: f(x, -1, d)
            found += cases(name, build, "[16,64]", "[7,33]", "[m,33]", note=note)
        build = lambda x, d=descending: op.topk(x, 5, largest=d)
        found += cases("topk", build, "[16,64]", "[7,33]", "[m,33]", note=note)
    return found


# --- products --------------------------------------------------------------------------------------------


def products() -> list[Case]:
    plain = ["[64,128] [128,96]", "[7,33] [33,13]", "[n,33] [33,13]", "[1,128] [128,96]", "[64,128] [128,1]"]
    found = cases("matmul", op.matmul, *plain, "[7,m] [m,13]", "[7,33] [33,m]", "[m,k] [k,m]")
    found += cases(
        "matmul", op.matmul, "[128] [128,96]", "[7,33] [33]", "[33] [33]", "[n,33] [33]", note="vectors"
    )
    batched = (
        "[4,16,32] [4,32,16]",
        "[3,7,5] [5,9]",
        "[n,7,5] [n,5,9]",
        "[m,16,33] [33,33]",
        "[2,1,7,5] [3,5,9]",
        "[2,m,8] [2,8,m]",
    )
    found += cases("matmul", op.matmul, *batched, note="batched")
    right = lambda a, b: op.matmul(a, op.permute_dims(b, [1, 0]))
    found += cases(
        "matmul",
        right,
        "[64,128] [96,128]",
        "[7,33] [13,33]",
        "[n,33] [13,33]",
        "[1,128] [96,128]",
        note="NT",
    )
    left = lambda a, b: op.matmul(op.permute_dims(a, [1, 0]), b)
    found += cases("matmul", left, "[128,64] [128,96]", "[33,7] [33,13]", "[33,n] [33,13]", note="TN")
    both = lambda a, b: op.matmul(op.permute_dims(a, [1, 0]), op.permute_dims(b, [1, 0]))
    found += cases("matmul", both, "[128,64] [96,128]", "[33,7] [13,33]", note="TT")
    for dtype in "float16 bfloat16 float64 int32".split():
        found += cases("matmul", op.matmul, f"{dtype}[16,64] {dtype}[64,32]", f"{dtype}[7,33] {dtype}[33,13]")
    for wide, shapes in (("int32", "int8 uint8"), ("float32", "float16 bfloat16")):
        build = lambda a, b, t=wide: op.matmul(a, b, out_dtype=t)
        for dtype in shapes.split():
            pairs = [
                f"{dtype}[16,64] {dtype}[64,32]",
                f"{dtype}[7,33] {dtype}[33,13]",
                f"{dtype}[n,33] {dtype}[33,13]",
            ]
            found += cases("matmul", build, *pairs, note=f"to {wide}")
    found += cases("outer", op.outer, "[64] [128]", "[7] [33]", "[n] [33]")
    for text in ("ij,jk->ik", "ij,kj->ki", "ij,ij->i"):
        build = lambda a, b, s=text: op.einsum((a, b), s)
        shapes = {
            "ij,jk->ik": ["[64,128] [128,96]", "[7,33] [33,13]", "[m,33] [33,13]"],
            "ij,kj->ki": ["[7,33] [13,33]"],
        }
        found += cases("einsum", build, *shapes.get(text, ["[7,33] [7,33]"]), note=text)
    return found


# --- windows ---------------------------------------------------------------------------------------------


def convolutions() -> list[Case]:
    def conv(data: str, weight: str, **attrs: Any) -> list[Case]:
        rank = len(Spec.parse(data).dims) - 2
        build = lambda x, w: getattr(nn, f"conv{rank}d")(x, w, **attrs)
        note = " ".join(f"{k}={v}" for k, v in attrs.items())
        return cases(f"nn.conv{rank}d", build, f"{data} {weight}", note=note)

    found = conv("[1,16,28]", "[32,16,3]", padding=1) + conv("[2,3,13]", "[5,3,3]", strides=2, dilation=2)
    found += conv("[n,4,w]", "[6,4,3]") + conv("[1,w,4]", "[3,4,6]", data_layout="NWC", kernel_layout="WIO")
    found += conv("[1,16,14,14]", "[32,16,3,3]", padding=1) + conv("[1,64,14,14]", "[64,64,1,1]")
    found += conv("[1,3,13,7]", "[5,3,3,3]") + conv("[1,3,15,17]", "[7,3,3,3]", strides=2, padding=1)
    found += conv("[n,4,9,11]", "[6,4,3,3]", padding=1) + conv("[1,4,h,w]", "[6,4,3,3]", strides=2)
    found += conv("[1,8,15,15]", "[8,8,3,3]", dilation=2) + conv(
        "[2,8,9,9]", "[12,4,3,3]", groups=2, padding=1
    )
    found += conv("[1,32,14,14]", "[32,1,3,3]", groups=32, padding=1) + conv(
        "[n,5,9,7]", "[5,1,3,3]", groups=5
    )
    found += conv("[1,6,9,9]", "[12,1,3,3]", groups=6, strides=2)
    nhwc = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    found += conv("[1,14,14,16]", "[3,3,16,32]", padding=1, **nhwc) + conv("[1,9,7,3]", "[3,3,3,5]", **nhwc)
    found += conv("[n,9,7,3]", "[3,3,3,5]", **nhwc) + conv("[1,9,7,8]", "[3,3,2,8]", groups=4, **nhwc)
    found += conv("[1,8,6,8,8]", "[16,8,3,3,3]", padding=1) + conv("[1,2,5,6,7]", "[3,2,2,3,3]", strides=2)
    found += conv("[n,2,5,6,7]", "[3,2,3,3,3]", dilation=2)
    for dtype in "float16 bfloat16".split():
        found += conv(f"{dtype}[1,8,9,9]", f"{dtype}[8,8,3,3]", padding=1)
    found += conv("int8[1,8,9,9]", "int8[8,8,3,3]", padding=1, out_dtype="int32")
    return found + blocked() + transposed()


def blocked() -> list[Case]:
    """Layouts with channels in blocks, which Relax has no legalisation of: straight from TOPI."""

    def conv(x: Any, w: Any, padding: int = 0) -> Any:
        args = x, w, 1, padding, 1, "NCHW4c", "NCHW8c"
        return relax.BlockBuilder.current().call_te(topi.nn.conv2d_NCHWc, *args)

    found = cases("nn.conv2d", conv, "[1,2,9,7,4] [2,2,3,3,4,8]", "[1,1,5,5,4] [1,1,1,1,4,8]", note="NCHWc")
    found += cases("nn.conv2d", conv, "[n,2,9,7,4] [2,2,3,3,4,8]", note="NCHWc")
    padded = lambda x, w: conv(x, w, 1)
    return found + cases("nn.conv2d", padded, "[1,4,9,9,4] [2,4,3,3,4,8]", note="NCHWc padded")


def transposed() -> list[Case]:
    found: list[Case] = []
    by_two = {"strides": 2, "padding": 1, "output_padding": 1}
    for rank in (1, 2, 3):
        name = f"conv{rank}d_transpose"
        kernel = ",".join(["3"] * rank)
        shapes = [("8," + ",".join(["8"] * rank), 16), ("3," + ",".join("57"[:rank] + "3" * (rank - 2)), 5)]
        for data, out in shapes:
            channels = data.split(",")[0]
            for attrs in ({}, by_two):
                build = lambda x, w, f=getattr(nn, name), a=attrs: f(x, w, **a)
                note = "strided" if attrs else ""
                found += cases(f"nn.{name}", build, f"[1,{data}] [{channels},{out},{kernel}]", note=note)
        build = lambda x, w, f=getattr(nn, name): f(x, w, **by_two)
        dynamic = ",".join(["5"] * rank)
        found += cases(f"nn.{name}", build, f"[n,3,{dynamic}] [3,5,{kernel}]", note="strided")
    grouped = lambda x, w: nn.conv2d_transpose(x, w, strides=2, groups=2)
    return found + cases("nn.conv2d_transpose", grouped, "[1,4,5,7] [4,3,3,3]", note="groups")


def pools() -> list[Case]:
    found: list[Case] = []
    for rank in (1, 2, 3):
        side = ["32", "14,14", "8,8,8"][rank - 1]
        odd = ["13", "13,7", "5,7,6"][rank - 1]
        free = ["w", "h,w", "h,w,6"][rank - 1]
        layout = ["NWC", "NHWC", "NDHWC"][rank - 1]
        for kind in "max avg".split():
            build, name = getattr(nn, f"{kind}_pool{rank}d"), f"nn.{kind}_pool{rank}d"
            size = (3,) * rank

            def pool(x: Any, f: Any = build, size: Any = size, **attrs: Any) -> Any:
                return f(x, pool_size=size, strides=(2,) * len(size), **attrs)

            found += cases(name, pool, f"[1,16,{side}]", f"[2,3,{odd}]", f"[n,3,{odd}]", f"[1,3,{free}]")
            padded = {"padding": (1,) * (2 * rank), "ceil_mode": True, "count_include_pad": True}
            found += cases(
                name,
                lambda x, p=pool, a=padded: p(x, **a),
                f"[1,16,{side}]",
                f"[2,3,{odd}]",
                note="ceil padded",
            )
            exclusive = padded | {"ceil_mode": False, "count_include_pad": False}
            found += cases(
                name,
                lambda x, p=pool, a=exclusive: p(x, **a),
                f"[2,3,{odd}]",
                f"[n,3,{odd}]",
                note="exclusive",
            )
            last = lambda x, p=pool, t=layout: p(x, layout=t)
            found += cases(name, last, f"[1,{side},16]", f"[2,{odd},3]", note=layout)
        adaptive = getattr(nn, f"adaptive_avg_pool{rank}d")
        name = f"nn.adaptive_avg_pool{rank}d"
        for out in (1, 3):
            build = lambda x, f=adaptive, o=(out,) * rank: f(x, o)
            found += cases(name, build, f"[1,16,{side}]", f"[2,3,{odd}]", f"[n,3,{odd}]", note=f"to {out}")
    dilated = lambda x: nn.max_pool2d(x, (3, 3), dilation=(2, 2))
    return found + cases("nn.max_pool2d", dilated, "[1,4,13,11]", note="dilated")


# --- normalisation, attention, losses --------------------------------------------------------------------


def norms() -> list[Case]:
    found: list[Case] = []
    for name in "softmax log_softmax".split():
        build = getattr(nn, name)
        found += cases(
            f"nn.{name}", build, "[64,512]", "[7,33]", "[n,33]", "[7,m]", "float16[7,33]", "[2,3,5,7]"
        )
        found += cases(
            f"nn.{name}", lambda x, f=build: f(x, 1), "[4,32,16]", "[3,7,5]", "[n,7,5]", note="axis 1"
        )
    layer = lambda axes: lambda x, g, b: nn.layer_norm(x, g, b, axes)
    found += cases("nn.layer_norm", layer(-1), "[64,512] [512] [512]", "[7,33] [33] [33]", "[n,33] [33] [33]")
    found += cases(
        "nn.layer_norm", layer([1, 2]), "[4,8,16] [8,16] [8,16]", "[3,5,7] [5,7] [5,7]", note="two axes"
    )
    found += cases("nn.layer_norm", layer(-1), "float16[7,33] float16[33] float16[33]")
    rms = lambda x, w: nn.rms_norm(x, w, -1)
    found += cases(
        "nn.rms_norm", rms, "[64,512] [512]", "[7,33] [33]", "[n,33] [33]", "float16[7,33] float16[33]"
    )
    group = lambda count: lambda x, g, b: nn.group_norm(x, g, b, count, 1, [2, 3])
    found += cases("nn.group_norm", group(4), "[2,16,8,8] [16] [16]")
    found += cases("nn.group_norm", group(3), "[1,9,5,7] [9] [9]", "[n,9,5,7] [9] [9]")
    instance = lambda x, g, b: nn.instance_norm(x, g, b, 1, [2, 3])
    found += cases(
        "nn.instance_norm", instance, "[2,16,8,8] [16] [16]", "[1,3,5,7] [3] [3]", "[n,3,5,7] [3] [3]"
    )
    for training in (False, True):
        build = lambda *a, t=training: nn.batch_norm(*a, axis=1, training=t)[0]
        vectors = lambda c: " ".join([f"[{c}]"] * 3 + [f"[{c}]:0.1..2"])
        shapes = f"[2,16,8,8] {vectors(16)}", f"[1,3,5,7] {vectors(3)}", f"[m,3,5,7] {vectors(3)}"
        found += cases("nn.batch_norm", build, *shapes, note="training" if training else "")
    return found


def attention() -> list[Case]:
    qkv = (
        "[1,16,4,32] [1,16,4,32] [1,16,4,32]",
        "[2,7,3,5] [2,9,3,5] [2,9,3,11]",
        "[1,m,2,8] [1,m,2,8] [1,m,2,8]",
    )
    found = cases("nn.attention", nn.attention, *qkv)
    for mask in ("TopLeft", "BottomRight"):
        build = lambda q, k, v, m=mask: nn.attention(q, k, v, causal_mask=m)
        found += cases("nn.attention", build, *qkv, note=mask)
    bias = [f"{s} {b}" for s, b in zip(qkv, ("[1,4,16,16]", "[2,3,7,9]", "[1,2,m,m]"))]
    found += cases("nn.attention_bias", nn.attention_bias, *bias)
    return found + losses()


def losses() -> list[Case]:
    pairs = "[64,10] [64,10]", "[7,33] [7,33]", "[m,33] [m,33]"
    found = cases("nn.cross_entropy_with_logits", nn.cross_entropy_with_logits, *pairs)
    targets = (
        "[64,10] int64[64]:0..9 [10]:1..2",
        "[7,5,3] int64[7,3]:0..4 [5]:1..2",
        "[m,5] int64[m]:0..4 [5]:1..2",
    )
    for reduction in "mean sum none".split():
        build = lambda x, t, w, r=reduction: nn.nll_loss(x, t, w, r)
        found += cases("nn.nll_loss", build, *targets, note=reduction)
    found += cases("nn.nll_loss", lambda x, t: nn.nll_loss(x, t), "[7,5] int64[7]:0..4", note="no weights")
    backward = [f"[] {shape}" for shape in targets]
    build = lambda g, x, t, w: grad.nll_loss_backward(g, x, t, w, "mean")
    return found + cases("grad.nll_loss_backward", build, *backward)


def gradients() -> list[Case]:
    found: list[Case] = []
    for name in "no_grad start_checkpoint end_checkpoint".split():
        build = lambda x, f=getattr(grad, name): op.add(f(op.exp(x)), x)
        found += cases(f"grad.{name}", build, "[64,512]", "[7,33]", "[n,33]")
    for name in "max_pool2d avg_pool2d".split():
        build = lambda g, x, f=getattr(grad, f"{name}_backward"): f(g, x, (2, 2), (2, 2))
        shapes = "[1,4,4,4] [1,4,8,8]", "[2,3,3,2] [2,3,6,5]", "[m,3,3,2] [m,3,6,5]"
        found += cases(f"grad.{name}_backward", build, *shapes)
    take = "[16,32] [64,32] int32[16]:0..63", "[5,33] [7,33] int64[5]:0..6", "[k,33] [7,33] int64[k]:0..6"
    return found + cases("grad.take_backward", lambda g, x, i: grad.take_backward(g, x, i, 0), *take)


# --- quantisation, images, detection ---------------------------------------------------------------------


def quantisation() -> list[Case]:
    found: list[Case] = []
    for dtype in "int8 uint8".split():
        build = lambda x, s, z, t=dtype: op.quantize(x, s, z, 1, t)
        shapes = [
            f"[{s}] [{c}]:0.01..0.02 {dtype}[{c}]:0..9"
            for s, c in (("64,512", 512), ("7,33", 33), ("n,33", 33))
        ]
        found += cases("quantize", build, *shapes, note=dtype)
        back = lambda x, s, z: op.dequantize(x, s, z, 1)
        shapes = [
            f"{dtype}[{s}] [{c}]:0.01..0.02 {dtype}[{c}]:0..9"
            for s, c in (("64,512", 512), ("7,33", 33), ("n,33", 33))
        ]
        found += cases("dequantize", back, *shapes)
    one = lambda x: op.quantize(x, relax.const(0.02, "float32"), relax.const(3, "int8"), -1, "int8")
    return found + cases("quantize", one, "[7,33]", "[n,33]", note="one scale")


def images() -> list[Case]:
    found: list[Case] = []
    modes = "half_pixel align_corners asymmetric pytorch_half_pixel tf_half_pixel_for_nn"
    for method in "nearest_neighbor linear cubic".split():
        for mode in modes.split():
            rounding = "round" if method != "nearest_neighbor" or mode != "asymmetric" else "floor"
            attrs = {"method": method, "coordinate_transformation_mode": mode, "rounding_method": rounding}
            build = lambda x, a=attrs: image.resize2d(x, (11, 20), **a)
            shapes = "[1,16,8,8]", "[2,3,13,7]", "[n,3,5,7]"
            found += cases(
                "image.resize2d", build, *shapes[: 3 if mode == "half_pixel" else 1], note=f"{method} {mode}"
            )
    last = lambda x: image.resize2d(x, (16, 16), layout="NHWC")
    found += cases("image.resize2d", last, "[1,8,8,16]", "[2,5,7,3]", note="NHWC")
    for method in "nearest_neighbor linear cubic".split():
        build = lambda x, m=method: image.resize3d(x, (6, 9, 11), method=m, rounding_method="round")
        found += cases("image.resize3d", build, "[1,8,4,4,4]", "[1,3,5,3,7]", "[n,2,3,4,5]", note=method)
    grids = "[1,4,8,8] [1,2,8,8]", "[2,3,5,7] [2,2,4,9]", "[m,3,5,7] [m,2,4,9]"
    for method in "bilinear nearest bicubic".split():
        # TVM takes 12 s to build bicubic with reflection, 2 s for bilinear: expressions that it never shares.
        for padding in ["zeros", "border", *["reflection"] * (method == "nearest")]:
            build = lambda x, g, m=method, p=padding: image.grid_sample(x, g, m, "NCHW", p)
            found += cases(
                "image.grid_sample",
                build,
                *grids[: 3 if padding == "zeros" else 2],
                note=f"{method} {padding}",
            )
    affine = lambda x: image.affine_grid(x, (8, 12))
    return found + cases("image.affine_grid", affine, "[4,2,3]", "[1,2,3]", "[n,2,3]")


def detection() -> list[Case]:
    found: list[Case] = []
    rois = "[1,16,14,14]:0..1 [8,5]:0..0.9", "[1,3,9,7] [5,5]:0..0.9", "[1,3,9,7] [n,5]:0..0.9"
    for mode in "avg max".split():
        build = lambda x, r, m=mode: vision.roi_align(x, r, (3, 3), 8.0, 2, mode=m)
        found += cases("vision.roi_align", build, *rois, note=mode)
    found += cases("vision.roi_pool", lambda x, r: vision.roi_pool(x, r, (3, 3), 8.0), *rois)
    boxes = "[1,4,8] [1,32] [1,8,4]", "[2,3,7] [2,28] [1,7,4]", "[m,3,7] [m,28] [1,7,4]"
    found += cases("vision.multibox_transform_loc", vision.multibox_transform_loc, *boxes)
    count = lambda x: vision.get_valid_counts(x, 0.2, 0, 1)
    found += cases("vision.get_valid_counts", count, "[1,32,6]:0..1", "[2,7,6]:0..1", "[m,7,6]:0..1")
    suppress = lambda x, c, i: vision.non_max_suppression(x, c, i, return_indices=False)
    shapes = [
        f"[{b},{n},6]:0..1 int32[{b}]:{n}..{n} int32[{b},{n}]:0..{n - 1}"
        for b, n in ((1, 32), (2, 7), ("m", 7))
    ]
    found += cases("vision.non_max_suppression", suppress, *shapes)

    def every_class(boxes: Any, scores: Any) -> Any:
        limits = relax.const(np.array(3, "int64")), relax.const(np.float32(0.5)), relax.const(np.float32(0.1))
        return vision.all_class_non_max_suppression(boxes, scores, *limits)

    shapes = ["[1,16,4]:0..1 [1,2,16]:0..1", "[2,7,4]:0..1 [2,3,7]:0..1", "[m,7,4]:0..1 [m,3,7]:0..1"]
    return found + cases("vision.all_class_non_max_suppression", every_class, *shapes)


FAMILIES: dict[str, Callable[[], list[Case]]] = {
    f.__name__: f
    for f in (
        unary, casts, binary, select, creation, layout, joining, slicing, gathering, scattering,
        reductions, statistics, products, convolutions, pools, norms, attention, gradients,
        quantisation, images, detection,
    )
}  # fmt: skip

_LOOPS = "its body is a loop nest in one block: a search, a sort, a scan or a scatter"
# Operators that may end in the Fallback rule, and why.
OPAQUE = {
    **dict.fromkeys("sort argsort topk cumsum cumprod median bucketize".split(), _LOOPS),
    **dict.fromkeys("scatter_elements scatter_nd index_put grad.take_backward".split(), _LOOPS),
    **dict.fromkeys([f"vision.{n}" for n in "get_valid_counts non_max_suppression".split()], _LOOPS),
    **dict.fromkeys(
        [f"nn.adaptive_avg_pool{r}d" for r in (1, 2, 3)], "a window of varying size is a block in a block"
    ),
}

_INSPECT = "reads the header of a tensor on the host: TVM makes it a host function that is marked scheduled"
_CCL = "calls a library that communicates between devices: no TensorIR"
EXCLUDED = {
    **dict.fromkeys(
        "ccl.allgather ccl.allreduce ccl.broadcast_from_worker0 ccl.scatter_from_worker0".split(), _CCL
    ),
    "dist.redistribute_replica_to_shard": "needs a device mesh",
    **dict.fromkeys(
        [f"inspect.tensor_{n}" for n in "byte_offset dtype_bits dtype_code dtype_lanes elem_offset".split()],
        _INSPECT,
    ),
    **dict.fromkeys([f"inspect.tensor_{n}" for n in "ndim shape_i stride_i".split()], _INSPECT),
    "nn.attention_var_len": "TVM's legalisation raises: not supported yet",
}
