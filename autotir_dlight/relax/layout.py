# SPDX-License-Identifier: Apache-2.0
"""Store the tensors around convolutions channels-last, with repacking at the edges only.

    conv(x[N,C,H,W], w[O,I,h,w]) + b[1,O,1,1]    ->    conv(x[N,H,W,C], w[h,w,I,O]) + b[1,1,1,O]

The output channels of a convolution then are its vectors, and each pixel is a row that is read in place: a
matrix product, whatever the window. The pass works on legalised functions. From index sets it sees which of
them may move along with the convolutions (elementwise, pooling, resizing, concatenation, softmax, padding,
slices ...: see :mod:`.permute`), rewrites those, and permutes what enters or leaves such a region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._tvm import IRModule, PassContext, module_pass, relax
from ..blocks import as_int
from .layout_choice import MAX_DIRECT_CHANNELS, Step, choose, is_const, result_types, shape_of, steps_of
from .permute import Traits, channels_last, from_last, to_last

_T = relax.transform


class _Rewriter:
    """Rewrites one block; ``emit`` gets the new bindings in order."""

    def __init__(self, builder: Any, last: set[Any], function: Callable[..., Any], is_dataflow: bool) -> None:
        self.builder = builder
        self.last = last
        self.function = function
        self.var_class = relax.DataflowVar if is_dataflow else relax.Var
        self.moved: dict[Any, Any] = {}
        self.bindings: list[Any] = []

    def bind(self, name: str, value: Any, var: Any = None) -> Any:
        """Bind ``value`` to ``var`` or a new variable."""
        value = self.builder.normalize(value)
        var = self.var_class(name, value.ty) if var is None else var
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def permute(self, value: Any, axes: tuple[int, ...]) -> Any:
        """``permute_dims``, or a reshape where only axes of one element move, or ``value`` itself."""
        shape = shape_of(value.ty)
        if axes == tuple(range(len(axes))):
            return value
        moving = [a for a in axes if as_int(shape[a]) != 1]
        if moving == sorted(moving):
            return relax.op.reshape(value, [shape[a] for a in axes])
        return relax.op.permute_dims(value, list(axes))

    def to_last(self, arg: Any) -> Any:
        """``arg`` as it lies channels-last."""
        if arg in self.moved:
            return self.moved[arg]
        axes = to_last(len(shape_of(arg.ty)))
        if is_const(arg):
            return relax.const(np.ascontiguousarray(np.transpose(arg.value.numpy(), axes)))
        self.moved[arg] = self.bind(f"{arg.name}_last", self.permute(arg, axes))
        return self.moved[arg]

    def leave(self, step: Step, moved: Any) -> None:
        """Record the moved result, and bind the old variable for those who still read it."""
        self.moved[step.var] = moved
        if isinstance(moved.ty, relax.TensorType):
            self.bind("", self.permute(moved, from_last(len(shape_of(moved.ty)))), step.var)
            return
        fields = []
        for i, ty in enumerate(moved.ty.fields):
            part = self.bind(f"{step.var.name}_{i}", relax.TupleGetItem(moved, i))
            fields.append(self.bind(part.name, self.permute(part, from_last(len(shape_of(ty))))))
        self.bind("", relax.Tuple(fields), step.var)

    def visit(self, step: Step) -> bool:
        """Rewrite ``step``; whether it was."""
        t = step.traits
        if step.var in self.last:
            self.leave(step, self.bind(f"{step.var.name}_last", self._moved_value(step)))
            return True
        if t is not None and t.kind == "permute" and step.args[0] in self.moved:
            source = from_last(t.rank)
            axes = tuple(source[a] for a in t.axes)
            self.bind("", self.permute(self.moved[step.args[0]], axes), step.var)
            return True
        if t is not None and t.kind == "reduce" and step.args[0] in self.moved:
            self.bind("", self._call(step, frozenset([0])), step.var)
            return True
        return False

    def _moved_value(self, step: Step) -> Any:
        t = step.traits
        if t is None:
            return relax.TupleGetItem(self.moved[step.args[0]], step.value.index)
        if t.kind == "permute":
            source = step.args[0]
            axes = tuple(t.axes[a] for a in to_last(t.rank))
            if source not in self.moved:
                return self.permute(source, axes)
            inner = from_last(t.rank)
            return self.permute(self.moved[source], tuple(inner[a] for a in axes))
        if t.kind == "reshape":
            shape = shape_of(step.var.ty)
            return relax.op.reshape(self.to_last(step.args[0]), [shape[a] for a in to_last(len(shape))])
        results = frozenset(range(len(step.args), len(t.ranks)))
        if t.kind == "conv":
            channels = as_int(shape_of(step.args[t.data].ty)[1]) or 0
            direct = step.args[t.data] not in self.moved and channels <= MAX_DIRECT_CHANNELS
            return self._call(step, results if direct else results | {t.data})
        moving = {i for i in range(len(step.args)) if t.ranks[i] == t.rank}
        return self._call(step, results | moving)

    def _call(self, step: Step, positions: frozenset[int]) -> Any:
        """The call with the parameters at ``positions`` stored channels-last."""
        t = step.traits
        assert t is not None
        weight = t.weight if t.kind == "conv" and t.ranks[t.weight] == t.rank else -1
        callee = self.function(step.callee, positions, weight)
        args = [self.to_last(a) if i in positions else a for i, a in enumerate(step.args)]
        if weight >= 0:
            axes = (*range(2, t.rank), 1, 0)
            kernel = np.transpose(step.args[weight].value.numpy(), axes)
            args[weight] = relax.const(np.ascontiguousarray(kernel))
        types = [
            _last_type(ty) if len(args) + i in positions else ty
            for i, ty in enumerate(result_types(step.value))
        ]
        return relax.call_tir(callee, args, types if len(types) > 1 else types[0])


def _last_type(ty: Any) -> Any:
    shape = shape_of(ty)
    return relax.TensorType([shape[a] for a in to_last(len(shape))], str(ty.dtype))


@module_pass(opt_level=0, name="autotir.ChannelsLast")
class ChannelsLast:
    """Move convolutions with constant weights, and what lies between them, to channels-last tensors.

    Takes and gives a legalised module; new functions are ``permute_dims`` and ``reshape`` operators that
    still have to be legalised. The types of parameters and results of Relax functions stay as they are.

    ``always``: also where the model looks cheaper as it is (:func:`.layout_choice.gain`).
    """

    def __init__(self, always: bool = False) -> None:
        self.always = always

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module, or ``mod`` itself where it has no such convolution."""
        builder = relax.BlockBuilder(mod)
        known: dict[Any, Traits] = {}
        made: dict[Any, Any] = {}

        def function(callee: Any, positions: frozenset[int], weight: int) -> Any:
            key = (callee, positions, weight)
            if key not in made:
                moved = channels_last(mod[callee], positions, weight)
                made[key] = builder.add_func(moved, callee.name_hint)
            return made[key]

        def move(block: Any) -> Any:
            return _move_block(block, steps_of(mod, block, known), self.always, builder, function)

        changed = {}
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr):
                blocks = [move(block) for block in func.body.blocks]
                if any(new is not old for new, old in zip(blocks, func.body.blocks)):
                    body = relax.SeqExpr(blocks, func.body.body)
                    changed[var] = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        if not changed:
            return mod
        result = builder.get()
        for var, func in changed.items():
            result.update_func(result.get_global_var(var.name_hint), func)
        return _T.DeadCodeElimination()(result)


def _move_block(
    block: Any, steps: list[Step], always: bool, builder: Any, function: Callable[..., Any]
) -> Any:
    last = choose(steps, always)
    if not last:
        return block
    is_dataflow = isinstance(block, relax.DataflowBlock)
    rewriter = _Rewriter(builder, last, function, is_dataflow)
    by_var = {step.var: step for step in steps}
    for binding in block.bindings:
        step = by_var.get(binding.var)
        if step is None or not rewriter.visit(step):
            rewriter.bindings.append(binding)
    return (relax.DataflowBlock if is_dataflow else relax.BindingBlock)(rewriter.bindings)
