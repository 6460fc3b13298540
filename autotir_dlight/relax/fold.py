# SPDX-License-Identifier: Apache-2.0
"""Fold calls on constants with one build for all of them.

Upstream's ``FoldConstant`` compiles each call by itself: on a detector of 500 operators that takes twice as
long as the rest of the compilation. This pass collects every foldable ``call_tir`` and evaluates them in
order: with NumPy where the function is a simple one, else from one build of all of them for the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi

from .._tvm import IRModule, PassContext, Target, ir, module_pass, relax, tirx
from ..blocks import as_int
from .evaluate import evaluate

# A result may be this much larger than what it is computed from, or this large in any case (bytes); above
# that the constant would cost more memory traffic than the call.
MAX_GROWTH = 2
MAX_SMALL_RESULT = 1 << 16


@dataclass(frozen=True)
class _Call:
    """A foldable call: the variable it is bound to, its function, its arguments, its result's type."""

    var: Any
    callee: Any
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str


def _static(ty: Any) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a tensor type, where all is known."""
    shape = getattr(ty, "shape", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
        return None
    dims = [as_int(d) for d in shape.values]
    if any(d is None for d in dims):
        return None
    return tuple(d for d in dims if d is not None), str(ty.dtype)


def _bytes(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * max(1, tvm.DataType(dtype).bits // 8)


def _foldable(binding: Any, known: dict[Any, _Call]) -> _Call | None:
    value = binding.value
    if not isinstance(value, ir.Call) or value.op != ir.Op.get("relax.call_tir"):
        return None
    if len(value.args) != 2 or not isinstance(value.args[1], ir.Tuple):
        return None
    args = tuple(value.args[1].fields)
    result = _static(value.ty_args[0])
    if not args or result is None:
        return None
    size = 0
    for arg in args:
        if not isinstance(arg, ir.GenericConst) and arg not in known:
            return None
        known_type = _static(arg.ty)
        if known_type is None:
            return None
        size += _bytes(*known_type)
    if _bytes(*result) > max(MAX_GROWTH * size, MAX_SMALL_RESULT):
        return None
    return _Call(binding.var, value.args[0], args, *result)


def _collect(mod: IRModule) -> list[_Call]:
    known: dict[Any, _Call] = {}
    for _, func in sorted(mod.functions_items(), key=lambda item: item[0].name_hint):
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        for block in func.body.blocks:
            for binding in block.bindings:
                if isinstance(binding, relax.VarBinding):
                    call = _foldable(binding, known)
                    if call is not None and isinstance(mod[call.callee], tirx.PrimFunc):
                        known[call.var] = call
    return list(known.values())


def _evaluate(mod: IRModule, calls: list[_Call]) -> dict[Any, Any]:
    """The constants of all calls: by NumPy where it can, the others from one build for the host."""
    values: dict[Any, Any] = {}
    built: Any = None
    for call in calls:
        args = [values[a].value if a in values else a.value for a in call.args]
        result = evaluate(mod[call.callee], [a.numpy() for a in args], call.shape, call.dtype)
        if result is not None:
            values[call.var] = relax.const(tvm.runtime.tensor(result))
            continue
        built = _build(mod, calls) if built is None else built
        out = tvm.runtime.empty(call.shape, call.dtype)
        built[call.callee.name_hint](*args, out)
        values[call.var] = relax.const(out)
    return values


def _build(mod: IRModule, calls: list[_Call]) -> Any:
    """All functions of ``calls`` in one build; each runs a few times, so it is compiled fast, not well."""
    funcs = {}
    for call in calls:
        name = call.callee.name_hint
        funcs[name] = mod[call.callee].without_attr("target").with_attr("global_symbol", name)
    return tvm.compile(IRModule(funcs), target=Target({"kind": "llvm", "opt-level": 0}))


def _substitute(func: Any, values: dict[Any, Any]) -> Any:
    """Replace the uses of the folded variables; their bindings die in the next clean-up."""

    def on_var(var: Any, kind: Any) -> Any:
        if kind != tvm_ffi.structural.DefRegionKind.NONE:
            return var
        return values.get(var, var)

    return tvm_ffi.structural_map(func, with_def_region_kind=[(ir.Var, on_var)])


@module_pass(opt_level=0, name="autotir.FoldConstants")
class FoldConstants:
    """Evaluate at compile time every ``call_tir`` whose arguments are constants.

    Calls whose result would be much larger than their arguments stay calls.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module without the folded calls."""
        calls = _collect(mod)
        if not calls:
            return mod
        values = _evaluate(mod, calls)
        updated = {
            var: _substitute(func, values) if isinstance(func, relax.Function) else func
            for var, func in mod.functions_items()
        }
        folded = IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)
        return relax.transform.DeadCodeElimination()(folded)
