# SPDX-License-Identifier: Apache-2.0
"""The whole Relax pipeline: from a model as imported to functions ready for code generation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from .._tvm import (
    IRModule,
    PassContext,
    SBlock,
    SBlockRealize,
    ScheduleRule,
    Target,
    ir,
    module_pass,
    relax,
    structural_walk,
    tirx,
)
from ..apply import ApplyDefaultSchedule
from ..report import Report
from ..rules import rules as default_rules
from ..steps import LAYOUT_FREE, LAYOUT_REWRITE
from ..tune.lookup import TunedPlans, existing
from ..vector_math import VectorMath
from .accumulate import FLOAT32_SUMS
from .fold import FoldConstants
from .layout import ChannelsLast
from .transposed import TRANSPOSED_CONVOLUTIONS

Pass = Any
_T = relax.transform


@module_pass(opt_level=0, name="autotir.DecomposeForInference")
class DecomposeForInference:
    """Batch norm as a scale and a shift that fold into the convolution before it; dropout as nothing.

    Upstream's pass does so whatever a batch norm's ``training`` says; a module that has one in training mode
    is left to its legalisation, which computes the statistics of the batch.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module, or ``mod`` itself."""
        batch_norm = ir.Op.get("relax.nn.batch_norm")
        training: list[bool] = []

        def on_call(call: Any) -> None:
            if call.op == batch_norm:
                training.append(bool(call.attrs.training))

        for _var, func in mod.functions_items():
            if isinstance(func, relax.Function):
                structural_walk(func, [(ir.Call, on_call)])
        return mod if any(training) else _T.DecomposeOpsForInference()(mod)


Layout = Literal["auto", "keep", "channels_last"]


def graph_passes(layout: Layout = "auto") -> list[Pass]:
    """From operators to fused TensorIR functions, constants folded, tensors laid out by ``layout``."""
    relayout = [
        ChannelsLast(layout == "channels_last"),
        _T.LegalizeOps(),
        _T.AnnotateTIROpPattern(),
        FoldConstants(),
    ]
    return [
        DecomposeForInference(),
        _T.CanonicalizeBindings(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        _T.LegalizeOps({**TRANSPOSED_CONVOLUTIONS, **FLOAT32_SUMS}),
        _T.AnnotateTIROpPattern(),
        FoldConstants(),
        *(relayout if layout != "keep" else []),
        _T.FuseOps(),
        _T.FuseTIR(),
        _T.DeadCodeElimination(),
    ]


def lowering_passes() -> list[Pass]:
    """From scheduled functions to what the virtual machine runs, memory planned."""
    return [
        _T.RewriteDataflowReshape(),
        _T.ToNonDataflow(),
        _T.RemovePurityChecking(),
        _T.CallTIRRewrite(),
        _T.StaticPlanBlockMemory(),
        _T.LowerAllocTensor(),
        _T.KillAfterLastUse(),
        _T.LowerRuntimeBuiltin(),
        _T.ComputePrimValue(),
        _T.VMShapeLower(),
        _T.AttachGlobalSymbol(),
    ]


@module_pass(opt_level=0, name="autotir.MarkConstantWeights")
class MarkConstantWeights:
    """Let rules change the layout of arguments that are constants in every call (``layout_free_buffers``).

    Upstream's ``AttachAttrLayoutFreeBuffers`` also marks the parameters behind ``num_input``, whose packing
    would then run on every call, and breaks functions without blocks whose shapes are symbolic.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module; functions that are called with constants have the attribute."""
        constants = _constant_positions(mod)
        updated = {
            var: func.with_attr(LAYOUT_FREE, sorted(constants[var])) if constants.get(var) else func
            for var, func in mod.functions_items()
        }
        return IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)


def _constant_positions(mod: IRModule) -> dict[Any, set[int]]:
    """For each function that is only ever called by ``call_tir``: the arguments that always are constants."""
    call_tir = ir.Op.get("relax.call_tir")
    found: dict[Any, set[int]] = {}
    calls: Counter[Any] = Counter()
    uses: Counter[Any] = Counter()

    def on_call(call: Any) -> None:
        if call.op == call_tir and isinstance(call.args[1], ir.Tuple):
            here = {i for i, a in enumerate(call.args[1].fields) if isinstance(a, ir.GenericConst)}
            callee = call.args[0]
            found[callee] = found[callee] & here if callee in found else here
            calls[callee] += 1

    def on_use(var: Any) -> None:
        uses[var] += 1

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            structural_walk(func, [(ir.Call, on_call), (ir.GlobalVar, on_use)])
    return {var: where for var, where in found.items() if calls[var] == uses[var]}


@module_pass(opt_level=0, name="autotir.SplitPacking")
class SplitPacking:
    """Take the blocks that pack constants out of their functions, into functions of their own.

    Upstream's ``SplitLayoutRewritePreproc`` does it, but fails on a module that also holds functions without
    blocks (sorts, scans); those stand aside meanwhile.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module."""
        aside: dict[Any, Any] = {}
        functions: dict[Any, Any] = {}
        for var, func in mod.functions_items():
            functions[var] = func
            if isinstance(func, tirx.PrimFunc) and not _packs_constants(func):
                aside[var.name_hint] = func
                functions[var] = _placeholder(func)
        if len(aside) == sum(isinstance(f, tirx.PrimFunc) for _, f in mod.functions_items()):
            return mod
        split = _T.SplitLayoutRewritePreproc()(
            IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        )
        for var, _func in list(split.functions_items()):
            if var.name_hint in aside:
                split[var] = aside[var.name_hint]
        return split


def _packs_constants(func: Any) -> bool:
    found: list[bool] = []

    def on_block(block: Any) -> None:
        if LAYOUT_REWRITE in block.annotations:
            found.append(True)

    structural_walk(func.body, [(SBlock, on_block)])
    return bool(found)


def _placeholder(func: Any) -> Any:
    """A function with ``func``'s parameters and one empty block."""
    block = SBlock([], [], [], "empty", tirx.Evaluate(tirx.const(0, "int32")))
    root = SBlock([], [], [], "root", SBlockRealize([], tirx.const(True, "bool"), block))
    return tirx.PrimFunc(
        func.params, SBlockRealize([], tirx.const(True, "bool"), root), func.ret_type, func.attrs
    )


def scheduling_passes(
    rules: list[ScheduleRule], database: str | Path | TunedPlans | None, report: Report | None
) -> list[Pass]:
    """Schedule every function, move what packs a constant to compile time, lower calls to vectors."""
    return [
        MarkConstantWeights(),
        ApplyDefaultSchedule(*rules, database=database, report=report),
        SplitPacking(),
        FoldConstants(),
        VectorMath(),
    ]


def pipeline(
    target: Target,
    *,
    rules: list[ScheduleRule] | None = None,
    database: str | Path | TunedPlans | None = None,
    report: Report | None = None,
    layout: Layout = "auto",
) -> Callable[..., IRModule]:
    """The pass for ``tvm.compile(mod, target, relax_pipeline=pipeline(target))``.

    Decompose for inference, fold constants, legalise, fuse, schedule by ``rules`` (default: those of the
    target), pack constant weights, lower. The calling interface of the compiled functions is that of the
    input.

    Parameters
    ----------
    target : the target that the module is compiled for
    rules : the rules in order; default ``autotir_dlight.rules(target)``
    database : tuning records, see :class:`ApplyDefaultSchedule`
    report : filled with what was decided for each function
    layout : "channels_last" stores the tensors around convolutions as ``[N, *S, C]`` inside the model, "keep"
        leaves them as they are, "auto" takes what the model looks cheaper with

    Raises ``ValueError`` for a kind of target that has no rules, or a layout that is none of these.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"layout {layout!r} is not one of {', '.join(get_args(Layout))}")
    chosen = default_rules(target) if rules is None else rules
    tuned = None if database is None else existing(database)

    @module_pass(opt_level=0, name="autotir.pipeline")
    def run(mod: IRModule, _: PassContext) -> IRModule:
        with target:
            return ir.transform.Sequential(
                [*graph_passes(layout), *scheduling_passes(chosen, tuned, report), *lowering_passes()]
            )(mod)

    return run
