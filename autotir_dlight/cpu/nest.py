# SPDX-License-Identifier: Apache-2.0
"""What every stage scheduler gets: the stage, the machine, and the plan's interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._tvm import SBlockRV, Schedule
from ..blocks import FuncView
from ..knobs import Draw
from ..machine import CpuMachine, dtype_bits
from ..patterns import Contraction, Stage
from ..rule import Reject
from .blocking import STACK_BYTES, worth_parallel


@dataclass(frozen=True)
class StageMatch:
    """One stage of one function on one machine."""

    view: FuncView
    stage: Stage
    machine: CpuMachine


@dataclass(frozen=True)
class Nest:
    """A stage inside a schedule under construction: handles of its anchor and of its epilogue."""

    sch: Schedule
    match: StageMatch
    anchor: SBlockRV
    epilogue: SBlockRV | None
    draw: Draw

    @property
    def stage(self) -> Stage:
        return self.match.stage

    def tile_scope(self, elements: int) -> str:
        """The storage scope of a register tile of that many elements of the result's type.

        Inside a parallel loop TVM takes a ``"local"`` buffer from its workspace pool, whatever its size; one
        in ``"global"`` of less than 1 KiB stands on the stack, from where LLVM moves it into registers.
        """
        size = elements * max(1, dtype_bits(self.stage.anchor.writes[0].dtype) // 8)
        return "global" if size < STACK_BYTES else "local"


def lanes_of(match: StageMatch, dtype: str) -> int:
    """Elements of ``dtype`` in one vector of a loop of this stage; 1 leaves vectors to LLVM.

    TVM's RISC-V code generator mixes vector widths; with SVE its guard of a symbolic vector's end is a lane
    mask whose declared type does not fit int64 (0.27): both fail in LLVM's verifier.
    """
    machine, block = match.machine, match.stage.anchor
    symbolic = any(it.extent is None for it in block.iters)
    if machine.arch == "riscv64" or (symbolic and machine.has("sve")):
        return 1
    return machine.lanes(dtype)


def result_lanes(match: StageMatch) -> int:
    """Elements of the result's type in one vector."""
    return lanes_of(match, match.stage.anchor.writes[0].dtype)


def product_of(match: StageMatch, window: bool) -> Contraction | Reject:
    """The stage's contraction, with or without a window as asked, or why it is none."""
    roles, where = match.stage.contraction, match.stage.anchor.name
    if roles is None:
        return Reject("no sum of products of two operands", where)
    if roles.window and not window:
        return Reject("the operand is read through a window: a convolution", where)
    if window and not roles.window:
        return Reject("no index mixes a spatial with a reduced iterator: no window", where)
    return roles


def is_parallel(match: StageMatch, lanes: int) -> bool:
    """Whether the stage has enough work to wake threads."""
    return worth_parallel(match.stage.cycles(max(1, lanes)), match.machine)


def facts(match: StageMatch) -> dict[str, Any]:
    """What the report says of a stage."""
    stage, block = match.stage, match.stage.anchor
    found: dict[str, Any] = {
        "kind": stage.kind,
        "dtypes": "→".join(
            [*dict.fromkeys(r.dtype for r in stage.reads), *dict.fromkeys(w.dtype for w in block.writes[:1])]
        ),
        "extents": "×".join(f"{it.extent if it.extent is not None else '?'}{it.kind}" for it in block.iters),
    }
    if stage.epilogue is not None:
        found["epilogue"] = f"{len(stage.epilogue.reads) - 1} operand(s), fused"
    if stage.inlined:
        found["inlined"] = len(stage.inlined)
    return found
