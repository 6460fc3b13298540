# SPDX-License-Identifier: Apache-2.0
"""Choose the tensors that are stored channels-last: which go along with the convolutions, and whether any."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm

from .._tvm import IRModule, ir, relax, tirx
from ..blocks import as_int
from .permute import RANKS, Traits, traits

# What a layout is worth, in multiplications of a dense convolution. Measured on six models (PP-OCRv4,
# YOLOv8n, basic-pitch, MobileNetV3) on AVX-512: a dense convolution with a window takes about half the time
# when channels lie last, one without takes a little less, a depthwise one up to as much again, and a byte
# that is permuted costs what 16 multiplications do.
WINDOW_GAIN = 0.5
POINTWISE_GAIN = 0.15
DEPTHWISE_LOSS = 1.0
PERMUTED_BYTE = 16.0
# Under this many output channels vectors of channels stay half empty: nothing is gained.
MIN_CHANNELS = 8
# An input of at most this many channels is read as it is: its pixels are too short for vectors either way.
MAX_DIRECT_CHANNELS = 4


@dataclass(frozen=True)
class Step:
    """A binding of a block: a call of a function (``traits``), or a field of a tuple (``traits`` is None)."""

    var: Any
    value: Any
    callee: Any
    args: tuple[Any, ...]
    traits: Traits | None


def shape_of(ty: Any) -> tuple[Any, ...]:
    shape = getattr(ty, "shape", None)
    return tuple(shape.values) if isinstance(shape, relax.ShapeExpr) else ()


def result_types(call: Any) -> list[Any]:
    ty = call.ty_args[0]
    return list(ty.fields) if isinstance(ty, ir.TupleType) else [ty]


def _same(a: Any, b: Any) -> bool:
    left, right = as_int(a), as_int(b)
    return left == right if left is not None or right is not None else bool(a.same_as(b))


def _keeps_channels(step: Step) -> bool:
    """Whether a reshape leaves batch and channels as its first two axes."""
    old, new = shape_of(step.args[0].ty), shape_of(step.var.ty)
    return len(old) in RANKS and len(new) in RANKS and all(_same(a, b) for a, b in zip(old[:2], new[:2]))


def steps_of(mod: IRModule, block: Any, known: dict[Any, Traits]) -> list[Step]:
    """The bindings of ``block`` that the pass knows."""
    call_tir = ir.Op.get("relax.call_tir")
    steps: list[Step] = []
    for binding in block.bindings:
        value = binding.value
        if not isinstance(binding, relax.VarBinding):
            continue
        if isinstance(value, relax.TupleGetItem):
            steps.append(Step(binding.var, value, None, (value.tuple_value,), None))
        if not isinstance(value, ir.Call) or value.op != call_tir or not isinstance(value.args[1], ir.Tuple):
            continue
        callee, args = value.args[0], tuple(value.args[1].fields)
        if len(value.args) > 2 or not isinstance(mod[callee], tirx.PrimFunc):
            continue
        results = len(result_types(value))
        if callee not in known:
            known[callee] = traits(mod[callee], results)
        found = known[callee]
        if len(found.ranks) == len(args) + results:
            steps.append(Step(binding.var, value, callee, args, found))
    return steps


def is_const(expr: Any) -> bool:
    return isinstance(expr, ir.GenericConst)


def _moves(step: Step, last: set[Any], wanted: set[Any]) -> bool:
    """Whether the result of ``step`` is to be stored channels-last, given what else is."""
    t = step.traits
    if t is None:
        return step.args[0] in last
    if t.kind == "conv":
        return is_const(step.args[t.weight])
    if t.kind == "aligned":
        return any(a in last for a, rank in zip(step.args, t.ranks) if rank == t.rank)
    if t.kind == "reshape":
        return _keeps_channels(step) and step.args[0] in last
    return t.kind == "permute" and t.rank in RANKS and step.var in wanted


def _wants(step: Step, last: set[Any], wanted: set[Any]) -> list[Any]:
    """The arguments of ``step`` that had better come channels-last."""
    t = step.traits
    if step.var not in last and step.var not in wanted:
        return []
    if t is None:
        return list(step.args)
    if t.kind == "conv":
        return [step.args[t.data]] if step.var in last else []
    if t.kind == "aligned":
        return [a for a, rank in zip(step.args, t.ranks) if rank == t.rank and not is_const(a)]
    return [step.args[0]] if t.kind == "reshape" and _keeps_channels(step) else []


def reach(steps: list[Step]) -> set[Any]:
    """The variables to be stored channels-last: forward from the convolutions, back from what they read."""
    last: set[Any] = set()
    wanted: set[Any] = set()
    size = -1
    while len(last) > size:
        size = len(last)
        last.update(s.var for s in steps if _moves(s, last, wanted))
        for step in reversed(steps):
            wanted.update(_wants(step, last, wanted))
    return last


def trim(steps: list[Step], last: set[Any]) -> set[Any]:
    """``last`` without what is cheaper to compute as it was: results that nobody reads channels-last."""
    kept = set(last)
    readers: set[Any] = set()
    for step in reversed(steps):
        t = step.traits
        if (
            step.var in kept
            and t is not None
            and t.kind in ("aligned", "reshape")
            and step.var not in readers
        ):
            inputs = [a for a in step.args if not is_const(a)]
            entering = sum(_bytes(a.ty) for a in inputs if a in kept)
            leaving = _bytes(step.var.ty) + sum(_bytes(a.ty) for a in inputs if a not in kept)
            if entering <= leaving:
                kept.discard(step.var)
        if step.var in kept or (t is not None and t.kind in ("permute", "reduce")):
            readers.update(step.args)
    return kept


def gain(steps: list[Step], last: set[Any]) -> float:
    """What storing ``last`` channels-last saves, in multiplications; negative where it costs."""
    saved = 0.0
    permuted: dict[Any, int] = {}
    for step in steps:
        t = step.traits
        if t is None:
            continue
        if t.kind == "conv" and step.var in last:
            saved += t.multiplies * _conv_gain(step, t)
        for arg, rank in zip(step.args, t.ranks):
            inside = step.var in last and rank == t.rank
            if not is_const(arg) and rank in RANKS and (arg in last) != inside and t.kind != "permute":
                direct = t.kind == "conv" and as_int(shape_of(arg.ty)[1]) in range(MAX_DIRECT_CHANNELS + 1)
                permuted[arg] = 0 if direct and arg not in last else _moved_bytes(arg.ty)
    return saved - PERMUTED_BYTE * sum(permuted.values())


def _conv_gain(step: Step, t: Traits) -> float:
    """What a convolution gains, as a share of its multiplications."""
    channels = as_int(shape_of(step.args[t.data].ty)[1])
    if t.ranks[t.weight] != t.rank:
        return WINDOW_GAIN
    outputs, inputs, *window = (as_int(d) or 1 for d in shape_of(step.args[t.weight].ty))
    if outputs < MIN_CHANNELS:
        return 0.0
    if inputs == 1 and channels != 1:
        return -DEPTHWISE_LOSS
    return WINDOW_GAIN if prod(window) > 1 else POINTWISE_GAIN


def _moved_bytes(ty: Any) -> int:
    """The bytes that change their place between the layouts; none where only axes of one element move."""
    shape = [as_int(d) for d in shape_of(ty)]
    return 0 if shape[1] == 1 or all(d == 1 for d in shape[2:]) else _bytes(ty)


def _bytes(ty: Any) -> int:
    """The size of a tensor, or of a tuple of them; a symbolic extent counts as one."""
    if isinstance(ty, ir.TupleType):
        return sum(_bytes(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType):
        return 0
    return prod(as_int(d) or 1 for d in shape_of(ty)) * max(1, tvm.DataType(str(ty.dtype)).bits // 8)


def choose(steps: list[Step], always: bool) -> set[Any]:
    """The variables to be stored channels-last; empty where that costs more than it saves (or, with
    ``always``, where there is no convolution)."""
    last = trim(steps, reach(steps))
    return last if always or gain(steps, last) > 0 else set()
