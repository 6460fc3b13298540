# SPDX-License-Identifier: Apache-2.0
"""Compiling a scheduled function to a library that a runner can load; what a builder's worker runs.

What packs constant weights is taken out of the function first, as the Relax pipeline does: a model does that
while compiling, so it is no part of the time.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._tvm import IRModule, Target, ir, relax, structural_walk, tirx
from ..apply import run_pass
from ..relax.pipeline import SplitPacking
from ..steps import LAYOUT_FREE
from ..vector_math import VectorMath

MAIN = "main"
# End of the name of the file beside a library that says how to call it.
CALLS = ".calls.json"


@dataclass(frozen=True)
class Call:
    """A function of the library and its arguments: positions among the parameters of the whole, and behind
    them the results of earlier calls. ``shape`` and ``dtype`` are those of its result, empty for the last
    call, which writes parameters."""

    function: str
    args: tuple[int, ...]
    shape: tuple[int, ...] = ()
    dtype: str = ""


def compile_candidate(module: str, target: str, path: str, compiler: str = "") -> str:
    """Compile the function ``main`` of ``module`` (TVM's JSON) for ``target`` (JSON) to the library ``path``.

    The list of its calls is written beside it. Returns ``path``. ``compiler`` links (default: the system's).
    """
    import tvm

    func = ir.load_json(module)[MAIN]
    goal = Target(json.loads(target))
    functions, calls = split_packing(func)
    with goal:
        ready = run_pass(VectorMath(), IRModule(functions))
    options = {"cc": compiler} if compiler else {}
    tvm.compile(ready, goal).export_library(path, **options)
    Path(path + CALLS).write_text(json.dumps([asdict(call) for call in calls]))
    return path


def load_calls(path: str) -> tuple[Call, ...]:
    """The calls of the library at ``path``; none where nothing lies beside it."""
    beside = Path(path + CALLS)
    if not beside.is_file():
        return ()
    raw = json.loads(beside.read_text())
    return tuple(Call(c["function"], tuple(c["args"]), tuple(c["shape"]), c["dtype"]) for c in raw)


def split_packing(func: Any) -> tuple[dict[str, Any], tuple[Call, ...]]:
    """The functions that compute what ``func`` does, and how to call them in turn."""
    count = len(func.params)
    whole = Call(MAIN, tuple(range(count)))
    named = func.with_attr("global_symbol", MAIN)
    if not (func.attrs and func.attrs.get(LAYOUT_FREE)):
        return {MAIN: named}, (whole,)
    split = run_pass(SplitPacking(), _called(func))
    functions = {
        var.name_hint: f.with_attr("global_symbol", var.name_hint)
        for var, f in split.functions_items()
        if isinstance(f, tirx.PrimFunc)
    }
    calls = _calls(split["run"], count)
    return {call.function: functions[call.function] for call in calls}, calls


def _called(func: Any) -> IRModule:
    """A module whose Relax function calls ``func`` with its own parameters; the last one is the result."""
    params = [
        relax.Var(f"p{k}", relax.TensorType(list(p.shape), str(p.dtype))) for k, p in enumerate(func.params)
    ]
    block = relax.BlockBuilder()
    callee = block.add_func(func.without_attr("global_symbol") if func.attrs else func, MAIN)
    with block.function("run", params[:-1]):
        result = block.emit(relax.call_tir(callee, params[:-1], params[-1].ty))
        block.emit_func_output(result)
    return block.finalize()


def _calls(run: Any, count: int) -> tuple[Call, ...]:
    """The calls of the Relax function ``run``, in order."""
    places: dict[Any, int] = {param: k for k, param in enumerate(run.params)}
    call_tir = ir.Op.get("relax.call_tir")
    found: list[Call] = []

    def on_binding(binding: Any) -> None:
        value = binding.value
        if not isinstance(value, ir.Call) or value.op != call_tir:
            return
        args = tuple(places[arg] for arg in value.args[1].fields)
        places[binding.var] = count + len(found)
        ty = binding.var.ty
        shape = tuple(int(d) if isinstance(d, tirx.IntImm) else -1 for d in ty.shape.values)
        found.append(Call(value.args[0].name_hint, args, shape, str(ty.dtype)))

    structural_walk(run.body, [(relax.VarBinding, on_binding)])
    last = found[-1]
    found[-1] = Call(last.function, (*last.args, count - 1))
    return tuple(found)
