# SPDX-License-Identifier: Apache-2.0
"""Random chains of operators: what fusion makes of them is scheduled and computes what plain TVM computes.

A chain starts from one tensor, of which the first extent may be symbolic. Each step takes one of the values
so far and tensors of its own, which are parameters or constants (constants are packed at compile time).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from relax_cases import EXTENTS, Case, Spec, check
from tvm import relax, tirx
from tvm.relax import op
from tvm.relax.op import nn

EXAMPLES = 80
MAX_STEPS = 9
# Errors of a chain add up, and a value may be what a cancellation left of elements of about one.
FLOOR = 2e-4
WIDTHS = (1, 2, 3, 5, 7, 8, 16, 33)

Draw = Callable[[Any], Any]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Step:
    """One operator: ``build`` of the value that it takes and of tensors of its own."""

    name: str
    build: Callable[..., Any]
    own: tuple[Spec, ...] = ()
    constant: bool = False
    second: int | None = None


def own(*dims: int, dtype: str = "float32", low: float = -1.0, high: float = 1.0) -> Spec:
    return Spec(dtype, dims, low, high)


# --- steps: each gives a Step for a value of a shape, or None where it does not apply --------------------


def pointwise(draw: Draw, shape: Shape) -> Step:
    bounded = {name: getattr(op, name) for name in "tanh sigmoid abs negative erf".split()}
    bounded |= {name: getattr(nn, name) for name in "relu gelu silu leakyrelu".split()}
    bounded["clip"] = lambda x: op.clip(x, -0.5, 0.75)
    bounded["double"] = lambda x: op.astype(op.astype(x, "float64"), "float32")
    name = draw(st.sampled_from(sorted(bounded)))
    return Step(name, bounded[name])


def bias(draw: Draw, shape: Shape) -> Step:
    """Add or multiply by a tensor that is broadcast over some axes."""
    kept = [extent if extent is not None and draw(st.booleans()) else 1 for extent in shape]
    name = draw(st.sampled_from(["add", "multiply", "maximum"]))
    first = draw(st.booleans())
    function = getattr(op, name)
    build = function if first else lambda x, w: function(w, x)
    return Step(f"{name} {kept}", build, (own(*kept),), draw(st.booleans()))


def transpose(draw: Draw, shape: Shape) -> Step:
    axes = draw(st.permutations(range(len(shape))))
    return Step(f"permute_dims {axes}", lambda x: op.permute_dims(x, list(axes)))


def reshape(draw: Draw, shape: Shape) -> Step | None:
    """Merge two neighbours, or split an axis."""
    if len(shape) > 2 and draw(st.booleans()):
        at = draw(st.integers(1, len(shape) - 2))
        if shape[at] is None or shape[at + 1] is None:
            return None
        wanted = [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    else:
        at = len(shape) - 1
        if shape[at] is None or shape[at] % 2 or len(shape) > 3:
            return None
        wanted = [*shape[:at], shape[at] // 2, 2]
    return Step(f"reshape {wanted}", lambda x: op.reshape(x, _with_symbols(x, wanted)))


def _with_symbols(x: Any, wanted: list[int | None]) -> list[Any]:
    """``wanted`` with the symbolic extents of ``x``, in their order, where it has ``None``."""
    symbols = iter(d for d in x.ty.shape if not isinstance(d, tirx.IntImm))
    return [next(symbols) if d is None else d for d in wanted]


def reduce(draw: Draw, shape: Shape) -> Step:
    name = draw(st.sampled_from("sum mean max min variance".split()))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True))
    return Step(f"{name} {axes}", lambda x: getattr(op, name)(x, axes, True))


def normalise(draw: Draw, shape: Shape) -> Step | None:
    name = draw(st.sampled_from("softmax log_softmax layer_norm rms_norm".split()))
    if name in ("softmax", "log_softmax"):
        axis = draw(st.integers(0, len(shape) - 1))
        return Step(f"{name} {axis}", lambda x: getattr(nn, name)(x, axis))
    if shape[-1] is None:
        return None
    if name == "layer_norm":
        return Step(name, lambda x, g, b: nn.layer_norm(x, g, b, -1), (own(shape[-1]), own(shape[-1])))
    return Step(name, lambda x, w: nn.rms_norm(x, w, -1), (own(shape[-1]),))


def matmul(draw: Draw, shape: Shape) -> Step | None:
    if shape[-1] is None:
        return None
    width, constant = draw(st.sampled_from(WIDTHS)), draw(st.booleans())
    if draw(st.booleans()):
        transposed = lambda x, w: op.matmul(x, op.permute_dims(w, [1, 0]))  # noqa: E731
        return Step(f"matmul NT {width}", transposed, (own(width, shape[-1]),), constant)
    return Step(f"matmul NN {width}", op.matmul, (own(shape[-1], width),), constant)


def gram(draw: Draw, shape: Shape) -> Step:
    """A product of a value with itself, scaled: batched, neither side a constant."""
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    scale = relax.const(0.25, "float32")
    return Step("gram", lambda x: op.matmul(x, op.multiply(op.permute_dims(x, axes), scale)))


def convolve(draw: Draw, shape: Shape) -> Step | None:
    if len(shape) != 4 or any(d is None for d in shape[1:]) or min(shape[2], shape[3]) < 3:
        return None
    channels = shape[1]
    groups = draw(st.sampled_from([g for g in (1, 2, channels) if channels % g == 0]))
    filters = groups * draw(st.sampled_from((1, 3, 8)))
    size, attrs = draw(st.sampled_from((1, 3))), {"groups": groups}
    attrs |= {"strides": draw(st.sampled_from((1, 2))), "padding": draw(st.sampled_from((0, 1)))}
    weight = own(filters, channels // groups, size, size)
    return Step(
        f"conv2d {filters} {attrs}", lambda x, w: nn.conv2d(x, w, **attrs), (weight,), draw(st.booleans())
    )


def pool(draw: Draw, shape: Shape) -> Step | None:
    if len(shape) != 4 or any(d is None for d in shape[2:]) or min(shape[2], shape[3]) < 3:
        return None
    name = draw(st.sampled_from(["max_pool2d", "avg_pool2d"]))
    stride, ceil = draw(st.sampled_from((1, 2))), draw(st.booleans())
    build = lambda x: getattr(nn, name)(x, (3, 3), (stride, stride), (1, 1), ceil_mode=ceil)  # noqa: E731
    return Step(f"{name} stride {stride} ceil {ceil}", build)


def move(draw: Draw, shape: Shape) -> Step | None:
    """Slices, padding, joins and repeats along one axis."""
    axis = draw(st.integers(0, len(shape) - 1))
    name = draw(st.sampled_from("slice pad concat flip repeat stack".split()))
    extent = shape[axis]
    if (name == "slice" and (extent is None or extent < 2)) or (name == "stack" and len(shape) > 3):
        return None
    widths = [0] * (2 * axis) + [1, 2] + [0] * (2 * (len(shape) - axis - 1))
    builds: dict[str, Callable[..., Any]] = {
        "slice": lambda x: op.strided_slice(x, [axis], [1], [extent], [2]),
        "pad": lambda x: nn.pad(x, widths),
        "concat": lambda x: op.concat([x, op.negative(x)], axis),
        "flip": lambda x: op.flip(x, axis),
        "repeat": lambda x: op.repeat(x, 2, axis),
        "stack": lambda x: op.stack([x, op.tanh(x)], axis),
    }
    return Step(f"{name} axis {axis}", builds[name])


def gather(draw: Draw, shape: Shape) -> Step | None:
    axis = draw(st.integers(0, len(shape) - 1))
    if shape[axis] is None:
        return None
    name = draw(st.sampled_from("take cumsum sort".split()))
    if name == "take":
        indices = own(draw(st.sampled_from(WIDTHS)), dtype="int64", low=0, high=shape[axis] - 1)
        return Step(f"take axis {axis}", lambda x, i: op.take(x, i, axis), (indices,))
    return Step(f"{name} axis {axis}", lambda x: getattr(op, name)(x, axis))


def scatter(draw: Draw, shape: Shape) -> Step | None:
    if any(d is None for d in shape):
        return None
    indices = own(3, 1, dtype="int64", low=0, high=shape[0] - 1)
    build = lambda x, i, u: op.scatter_nd(x, i, u, "add")  # noqa: E731
    return Step("scatter_nd", build, (indices, own(3, *shape[1:])))


STEPS = (
    pointwise, bias, transpose, reshape, reduce, normalise, matmul, gram, move, gather, scatter,
    convolve, convolve, convolve, pool,
)  # fmt: skip


# --- chains ----------------------------------------------------------------------------------------------


@dataclass
class Chain:
    """Steps from the first input on; ``values`` are stand-ins that only have the types."""

    first: Spec
    steps: list[tuple[int, Step]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    outputs: tuple[int, ...] = ()

    def __repr__(self) -> str:
        lines = [f"v0 = {list(self.first.dims)}"]
        for k, (source, step) in enumerate(self.steps, start=1):
            second = "" if step.second is None else f" v{step.second}"
            tensors = "".join(f" {'const' if step.constant else 'param'}{list(s.dims)}" for s in step.own)
            lines.append(f"v{k} = {step.name} v{source}{second}{tensors}")
        return "\n".join([*lines, f"return {', '.join(f'v{k}' for k in self.outputs)}"])

    def shape(self, k: int) -> Shape:
        return tuple(int(d) if isinstance(d, tirx.IntImm) else None for d in self.values[k].ty.shape)

    def apply(self, step: Step, source: int, values: list[Any], tensors: list[Any]) -> Any:
        second = [] if step.second is None else [values[step.second]]
        return step.build(values[source], *second, *tensors)

    def append(self, source: int, step: Step) -> None:
        tensors = [relax.Var("w", relax.TensorType(spec.dims, spec.dtype)) for spec in step.own]
        builder = relax.BlockBuilder()
        with builder.function("probe", [*self.values, *tensors]):
            with builder.dataflow():
                result = builder.emit_output(self.apply(step, source, self.values, tensors))
            builder.emit_func_output(result)
        self.values.append(relax.Var("v", result.ty))
        self.steps.append((source, step))

    def case(self) -> Case:
        own = [spec for _, step in self.steps if not step.constant for spec in step.own]
        return Case("chain", (self.first, *own), self.build)

    def build(self, first: Any, *params: Any) -> Any:
        """The body of the Relax function."""
        builder, values, left = relax.BlockBuilder.current(), [first], list(params)
        rng = np.random.default_rng(7)
        for source, step in self.steps:
            if step.constant:
                tensors = [relax.const(spec.array(0, rng), spec.dtype) for spec in step.own]
            else:
                tensors = [left.pop(0) for _ in step.own]
            values.append(builder.emit(self.apply(step, source, values, tensors)))
        outputs = [values[k] for k in self.outputs]
        return relax.Tuple(outputs) if len(outputs) > 1 else outputs[0]


MAX_ELEMENTS = 1 << 16


def combine(draw: Draw, chain: Chain, source: int) -> Step | None:
    """Join two values of one shape."""
    shape = [str(d) for d in chain.values[source].ty.shape]
    same = [k for k, v in enumerate(chain.values) if [str(d) for d in v.ty.shape] == shape]
    name, other = draw(st.sampled_from(["add", "maximum", "multiply"])), draw(st.sampled_from(same))
    build = getattr(op, name)
    # Products of products would overflow and then differ.
    bounded = build if name != "multiply" else lambda x, y: op.tanh(op.multiply(x, y))
    return Step(name, bounded, second=other)


@st.composite
def chains(draw: Draw) -> Chain:
    rank = draw(st.sampled_from((2, 3, 4, 4)))
    dims = [draw(st.sampled_from(WIDTHS)) for _ in range(rank)]
    symbolic = draw(st.integers(0, 2)) == 0
    first = Spec("float32", ("m", *dims[1:]) if symbolic else tuple(dims))
    symbols = {name: tirx.Var(name, "int64") for name in EXTENTS}
    chain = Chain(first)
    chain.values.append(relax.Var("x", relax.TensorType([symbols.get(d, d) for d in first.dims], "float32")))
    for _ in range(draw(st.integers(3, MAX_STEPS))):
        last = len(chain.values) - 1
        source = max(0, last - draw(st.sampled_from((0, 0, 0, 1, 2))))
        kind = draw(st.sampled_from((*STEPS, combine)))
        step = combine(draw, chain, source) if kind is combine else kind(draw, chain.shape(source))
        if step is not None:
            _append_small(chain, source, step)
    last = len(chain.values) - 1
    also = draw(st.integers(0, last))
    chain.outputs = (last,) if also == last or draw(st.booleans()) else (last, also)
    return chain


def _append_small(chain: Chain, source: int, step: Step) -> None:
    """Append, unless the value would be large: the time is better spent on more chains."""
    chain.append(source, step)
    elements = np.prod([EXTENTS["m"][-1] if d is None else d for d in chain.shape(-1)], dtype=np.int64)
    if elements > MAX_ELEMENTS:
        chain.values.pop()
        chain.steps.pop()


@pytest.mark.slow
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(chain=chains())
def test_scheduled_equals_unscheduled(chain, target):
    outcome = check([chain.case()], target, FLOOR)
    assume(not outcome.impossible)
    assert not outcome.failed, f"\n{chain}\n{outcome}"
