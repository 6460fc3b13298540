# SPDX-License-Identifier: Apache-2.0
"""The whole Relax pipeline: from a model as imported to functions ready for code generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from ..steps import LAYOUT_REWRITE
from ..vector_math import VectorMath
from .fold import FoldConstants

Pass = Any
_T = relax.transform


def graph_passes() -> list[Pass]:
    """From operators to fused TensorIR functions, constants folded."""
    return [
        _T.DecomposeOpsForInference(),
        _T.CanonicalizeBindings(),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        _T.LegalizeOps(),
        _T.AnnotateTIROpPattern(),
        FoldConstants(),
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
    """Let rules change the layout of constant arguments (``layout_free_buffers``).

    Upstream's pass also marks the parameters behind ``num_input``, whose packing would then run on every
    call; the calling interface and its cost stay as they are here, so that attribute is hidden from it.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: functions that are called with constants get the attribute."""
        hidden: dict[str, int] = {}
        functions: dict[Any, Any] = {}
        for var, func in mod.functions_items():
            if isinstance(func, relax.Function) and func.attrs and "num_input" in func.attrs:
                hidden[var.name_hint] = int(func.attrs["num_input"])
                func = func.without_attr("num_input")
            functions[var] = func
        marked = _T.AttachAttrLayoutFreeBuffers()(
            IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)
        )
        for var, func in list(marked.functions_items()):
            if var.name_hint in hidden:
                marked[var] = func.with_attr("num_input", hidden[var.name_hint])
        return marked


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
    rules: list[ScheduleRule], database: str | Path | None, report: Report | None
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
    database: str | Path | None = None,
    report: Report | None = None,
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

    Raises ``ValueError`` for a kind of target that has no rules.
    """
    chosen = default_rules(target) if rules is None else rules

    @module_pass(opt_level=0, name="autotir.pipeline")
    def run(mod: IRModule, _: PassContext) -> IRModule:
        with target:
            return ir.transform.Sequential(
                [*graph_passes(), *scheduling_passes(chosen, database, report), *lowering_passes()]
            )(mod)

    return run
