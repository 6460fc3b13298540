# SPDX-License-Identifier: Apache-2.0
"""What the default rules would do with a module, without compiling it."""

from __future__ import annotations

from ._tvm import IRModule, Target, ir, relax
from .apply import apply_rules
from .relax.pipeline import MarkConstantWeights, graph_passes
from .report import Report
from .rules import rules


def explain(mod: IRModule, target: Target) -> Report:
    """Per function: what was recognised, which rules refused it and why, the plan and each knob's origin.

    ``mod`` is a Relax module as imported (it is legalised and fused first, as :func:`pipeline` does) or a
    module of TensorIR functions. Nothing is compiled for ``target`` and ``mod`` is not changed.
    """
    report = Report(target=str(target))
    with target:
        if any(isinstance(f, relax.Function) for _, f in mod.functions_items()):
            mod = ir.transform.Sequential([*graph_passes(), MarkConstantWeights()])(mod)
    apply_rules(mod, target, rules(target), report)
    return report
