# SPDX-License-Identifier: Apache-2.0
"""The common body of the CPU rules: cut a function into stages, plan each, schedule each.

The rules differ in what they take (:meth:`StagedRule.wanted`); how a stage is scheduled depends on the
stage alone, so a matmul is the same inside ``Matmul`` and beside a softmax inside ``Reduction``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import steps
from .._tvm import LoopRV, SBlockRV, Schedule
from ..blocks import FuncView
from ..knobs import Draw
from ..machine import CpuMachine, dtype_bits
from ..patterns import Stage, Staging, stage_function
from ..rule import Reject, Rule
from .dot import DotPlan, plan_dot
from .dot_nest import schedule_dot
from .gemm import schedule_packed
from .halo import HaloPlan, attach, padded_read
from .map import MapPlan, SerialPlan, plan_map, plan_nested, schedule_map
from .nest import Nest, StageMatch, facts, lanes_of
from .packed import PackedPlan, plan_packed
from .row_operand import row_run, rows_spread
from .rows import RowPlan, is_row_reduction, plan_rows, schedule_rows
from .rowwise import RowwisePlan, chain_of, plan_rowwise
from .rowwise_nest import schedule_rowwise
from .stream import StreamPlan, plan_stream, schedule_stream
from .tile import TilePlan, plan_tile
from .tile_nest import schedule_tile
from .transpose import TransposePlan, plan_transpose, schedule_transpose

StagePlan = (
    MapPlan
    | SerialPlan
    | RowPlan
    | TilePlan
    | PackedPlan
    | DotPlan
    | StreamPlan
    | RowwisePlan
    | TransposePlan
    | HaloPlan
)


@dataclass(frozen=True)
class FunctionMatch:
    """A function's stages on a machine, and the positions of the stages that a rule is about."""

    view: FuncView
    staging: Staging
    machine: CpuMachine
    about: tuple[int, ...]

    def stage_match(self, stage: Stage) -> StageMatch:
        return StageMatch(self.view, stage, self.machine)


@dataclass(frozen=True)
class FunctionPlan:
    """One plan a stage, in program order, and one an epilogue that keeps a nest of its own.

    A :class:`RowwisePlan` stands alone, for all stages. A stage with a :class:`HaloPlan` runs inside the
    parallel loop of the next one.
    """

    stages: tuple[StagePlan, ...]
    epilogues: tuple[MapPlan | SerialPlan | None, ...]

    @property
    def title(self) -> str:
        """The plan in a word or two: the kinds of its stages, each once."""
        return "+".join(dict.fromkeys(p.kind for p in self.stages)) or "nothing to schedule"


def fuses_epilogue(plan: StagePlan) -> bool:
    """Whether this kind of plan runs the epilogue on its tiles."""
    return isinstance(plan, PackedPlan | DotPlan | StreamPlan) or (
        isinstance(plan, TilePlan) and bool(plan.columns)
    )


def stage_plans(match: StageMatch) -> list[StagePlan]:
    """The plans of one stage, best first."""
    stage = match.stage
    if stage.kind == "serial":
        return [plan_nested(match)]
    if stage.kind == "map":
        moved = plan_transpose(match)
        return [plan_map(match)] if moved is None else [moved, plan_map(match)]
    rows = [plan_rows(match)] if is_row_reduction(match) else []
    if stage.kind == "reduction":
        return [rows[0] if rows else plan_tile(match)]
    tile, packed = plan_tile(match), plan_packed(match)
    ranked: list[tuple[int, int, StagePlan]] = []
    if isinstance(tile, TilePlan):
        ranked.append((tile.cost + conflict_penalty(match), 1, tile))
    if packed is not None:
        ranked.append((packed.cost, 0, packed))
    ranked.extend((row_cost(match), 2, r) for r in rows)
    ranked.sort(key=lambda entry: entry[:2])
    # Nothing to weigh: one dot-product instruction does the work of two to four of the other plans' ones, and
    # a matrix that no cache holds is bound by memory.
    first: list[StagePlan] = [p for p in (plan_dot(match), plan_stream(match)) if p is not None]
    return [*first, *(plan for _, _, plan in ranked)] or [tile]


# Bytes between the rows of a power-of-two matrix that fall into the same set of the L1 and L2 caches.
CONFLICT_STRIDE = 2048
# Rows of a tile, for the question of whether they fall into the same sets.
TYPICAL_TILE_ROWS = 12
# Thousandths of a cycle an element that conflict misses cost (a column panel read from the L3 cache).
CONFLICT_COST = 150


def conflict_penalty(match: StageMatch) -> int:
    """What reading the operands in place costs more when their rows share cache sets."""
    stage, block = match.stage, match.stage.anchor
    roles = stage.contraction
    if roles is None or block.volume(roles.rows) == 1:
        return 0
    if row_run(match, roles) and not rows_spread(match, roles, TYPICAL_TILE_ROWS):
        return CONFLICT_COST
    read = stage.reads[roles.vector_read]
    itemsize = max(1, dtype_bits(read.dtype) // 8)
    for i in roles.reduce:
        step = read.stride(i)
        if step and (block.extent(i) or 0) > 16 and step * itemsize % CONFLICT_STRIDE == 0:
            return CONFLICT_COST
    return 0


def row_cost(match: StageMatch) -> int:
    """Thousandths of a cycle an element of a dot product along contiguous rows: two loads a vector."""
    lanes = min(lanes_of(match, r.dtype) for r in match.stage.reads)
    return round(1000 * (1 / lanes + 1 / (lanes * 4)))


class StagedRule(Rule):
    """A CPU rule that takes a function when :meth:`wanted` says so of one of its stages."""

    knob_names = frozenset({"inner", "width", "row_block", "steps"})

    def wanted(self, match: StageMatch) -> bool | Reject:
        """Whether this stage is what the rule is about, or why it is not."""
        raise NotImplementedError

    def match(self, view: FuncView, machine: CpuMachine) -> FunctionMatch | Reject:
        if view.unreadable:
            return Reject(view.unreadable)
        staging = stage_function(view)
        about: list[int] = []
        reasons: list[Reject] = []
        for position, stage in enumerate(staging.stages):
            verdict = self.wanted(StageMatch(view, stage, machine))
            if isinstance(verdict, Reject):
                reasons.append(verdict)
            elif verdict:
                about.append(position)
        if not about:
            return reasons[0] if reasons else Reject("the function has no computation block")
        return FunctionMatch(view, staging, machine, tuple(about))

    def plans(self, match: FunctionMatch, machine: CpuMachine) -> Sequence[FunctionPlan]:
        choices = [stage_plans(match.stage_match(s)) for s in match.staging.stages]
        best = tuple(c[0] for c in choices)
        plans = [self._function_plan(match, best)]
        whole = plan_rowwise(match.view, match.staging, machine)
        if whole is not None:
            plans.insert(0, FunctionPlan((whole,), ()))
        for position in match.about:
            for other in choices[position][1:]:
                changed = (*best[:position], other, *best[position + 1 :])
                plans.append(self._function_plan(match, changed))
        return plans

    def _function_plan(self, match: FunctionMatch, stages: tuple[StagePlan, ...]) -> FunctionPlan:
        epilogues: list[MapPlan | SerialPlan | None] = []
        for stage, plan in zip(match.staging.stages, stages):
            apart = stage.epilogue is not None and not fuses_epilogue(plan)
            epilogues.append(
                plan_map(match.stage_match(stage.epilogue)) if apart and stage.epilogue else None
            )
        return FunctionPlan(_with_halos(match, stages), tuple(epilogues))

    def schedule(self, sch: Schedule, match: FunctionMatch, plan: FunctionPlan, draw: Draw) -> None:
        handles = steps.block_handles(sch)
        for index in match.staging.inline:
            sch.compute_inline(handles[index])
        if any(isinstance(p, RowPlan) for p in plan.stages):
            _wrap_single_elements(sch, match, handles)
        if isinstance(plan.stages[0], RowwisePlan):
            schedule_rowwise(sch, chain_of(match.staging), plan.stages[0], handles, draw)
            return
        waiting: list[tuple[SBlockRV, HaloPlan]] = []
        for stage, stage_plan, apart in zip(match.staging.stages, plan.stages, plan.epilogues):
            if isinstance(stage_plan, HaloPlan):
                waiting.append((handles[stage.anchor.index], stage_plan))
                continue
            epilogue = None if stage.epilogue is None else handles[stage.epilogue.anchor.index]
            nest = Nest(sch, match.stage_match(stage), handles[stage.anchor.index], epilogue, draw)
            tasks = schedule_stage(nest, stage_plan)
            while waiting and tasks is not None:
                attach(sch, *waiting.pop(), tasks)
            if apart is not None and stage.epilogue is not None and epilogue is not None:
                schedule_stage(_epilogue_nest(nest, match, stage.epilogue, epilogue), apart)

    def describe(self, match: FunctionMatch) -> dict[str, Any]:
        found: dict[str, Any] = {}
        many = len(match.about) > 1
        for position in match.about:
            for key, value in facts(match.stage_match(match.staging.stages[position])).items():
                found[f"{position}.{key}" if many else key] = value
        others = len(match.staging.stages) - len(match.about)
        if others:
            found["other stages"] = others
        return found


def _wrap_single_elements(sch: Schedule, match: FunctionMatch, handles: Sequence[SBlockRV]) -> None:
    """``B[()]`` → ``for u in 1: B[()]``: ``rfactor`` fails an internal check beside a block without loops."""
    kept = set(range(len(match.view.blocks))) - set(match.staging.inline)
    for index in sorted(kept):
        if match.view.blocks[index].loop_count == 0:
            sch.add_unit_loop(handles[index])


def _epilogue_nest(nest: Nest, match: FunctionMatch, stage: Stage, handle: SBlockRV) -> Nest:
    return Nest(nest.sch, match.stage_match(stage), handle, None, nest.draw)


def _with_halos(match: FunctionMatch, stages: tuple[StagePlan, ...]) -> tuple[StagePlan, ...]:
    """``stages`` with those that make the padded input of the next one, task by task, planned so."""
    planned = list(stages)
    for position, (stage, plan) in enumerate(zip(match.staging.stages[1:], stages[1:])):
        if isinstance(plan, TilePlan | PackedPlan) and plan.attach:
            read = padded_read(match.stage_match(stage))
            made, before = match.staging.stages[position].anchor.writes, stages[position]
            if read is not None and made[0].buffer.same_as(read.buffer):
                planned[position] = HaloPlan("halo", before.lanes if isinstance(before, MapPlan) else 1)
    return tuple(planned)


def schedule_stage(nest: Nest, plan: StagePlan) -> LoopRV | None:
    """Apply one stage's plan; returns the parallel loop of a tiled one."""
    if isinstance(plan, MapPlan):
        schedule_map(nest, plan)
    elif isinstance(plan, TransposePlan):
        schedule_transpose(nest, plan)
    elif isinstance(plan, RowPlan):
        schedule_rows(nest, plan)
    elif isinstance(plan, TilePlan):
        return schedule_tile(nest, plan)
    elif isinstance(plan, PackedPlan):
        return schedule_packed(nest, plan)
    elif isinstance(plan, StreamPlan):
        return schedule_stream(nest, plan)
    elif isinstance(plan, DotPlan):
        schedule_dot(nest, plan)
    elif nest.stage.anchor.is_reduction and not nest.stage.anchor.opaque:
        steps.separate_init(nest.sch, nest.anchor, nest.stage.anchor)
    return None
