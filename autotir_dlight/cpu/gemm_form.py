# SPDX-License-Identifier: Apache-2.0
"""Any contraction as ``C'[b, m, n] += A'[b, m, k...] * B'[b, n, k...]``, padded to whole tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import steps
from .._tvm import SBlockRV, Schedule
from .nest import Nest

Mapping = Callable[..., list[Any]]


@dataclass(frozen=True)
class GemmForm:
    """Handles of a contraction in GEMM form; ``row_iters`` and ``column_iters`` are the anchor's iterators
    (``None``: a constant) that indexed the operands before."""

    anchor: SBlockRV
    row_pack: SBlockRV
    column_pack: SBlockRV
    final: SBlockRV
    row_iters: list[int | None]
    column_iters: list[int | None]


def _grouping(
    groups: Sequence[Sequence[int]], extents: dict[int, Any], present: Sequence[int | None]
) -> Mapping:
    """An index map from the iterators ``present`` to one fused index a group that has any."""

    def mapping(*index: Any) -> list[Any]:
        value = dict(zip(present, index))
        fused = []
        for group in groups:
            members = [i for i in group if i in value]
            if not members:
                continue
            total = value[members[0]]
            for i in members[1:]:
                total = total * extents[i] + value[i]
            fused.append(total)
        return fused

    return mapping


def index_iters(sch: Schedule, handle: SBlockRV, region: Any) -> list[int | None]:
    """Which of the block's iterators each dimension of an access is; ``None`` for a constant of extent 1."""
    variables = [iv.var for iv in sch.get(handle).iter_vars]
    return [next((k for k, v in enumerate(variables) if v.same_as(r.min)), None) for r in region.region]


def operands(nest: Nest) -> list[Any]:
    """The buffers that the contraction reads: the rows', the columns'."""
    roles = nest.stage.contraction
    assert roles is not None
    return [nest.stage.reads[r].buffer for r in (roles.row_read, roles.vector_read)]


def to_gemm_form(
    nest: Nest,
    spatial_groups: Sequence[Sequence[int]],
    reduce_groups: Sequence[Sequence[int]],
    buffers: Sequence[Any] | None = None,
) -> GemmForm:
    """``C[n, f, h, w] += X[n, c, h+r, w+s] * W[f, c, r, s]`` → ``C'[m, n] += A'[m, k...] * B'[n, k...]``.

    The iterators of a group become one index, in the order of the groups. ``buffers`` are what stands in for
    the contraction's :func:`operands` by now.
    """
    sch, anchor, block = nest.sch, nest.anchor, nest.stage.anchor
    at = [steps.reads_index(sch, anchor, buffer) for buffer in buffers or operands(nest)]
    packs = [sch.reindex(anchor, ("read", position)) for position in at]
    final = sch.reindex(anchor, ("write", 0))
    if nest.epilogue is not None:
        sch.compute_inline(final)
        final = nest.epilogue
    groups = [*spatial_groups, *reduce_groups]
    extents = {i: it.extent_expr for i, it in enumerate(block.iters)}
    indexed = []

    def regroup(handle: SBlockRV, within: Sequence[Sequence[int]], present: Sequence[int | None]) -> Any:
        return steps.index_map(sch, handle, _grouping(within, extents, present), len(present))

    for pack, position in zip(packs, at):
        present = index_iters(sch, anchor, sch.get(anchor).reads[position])
        indexed.append(present)
        sch.transform_layout(anchor, ("read", position), regroup(anchor, groups, present))
        sch.transform_block_layout(pack, regroup(pack, groups, present))
    written = index_iters(sch, anchor, sch.get(anchor).writes[0])
    sch.transform_layout(anchor, ("write", 0), regroup(anchor, spatial_groups, written))
    sch.transform_block_layout(final, regroup(final, spatial_groups, list(block.spatial)))
    sch.transform_block_layout(anchor, regroup(anchor, groups, list(range(len(block.iters)))))
    return GemmForm(anchor, packs[0], packs[1], final, indexed[0], indexed[1])


def absorb_padding(sch: Schedule, pack: SBlockRV, anchor: SBlockRV) -> SBlockRV:
    """Inline a pack block into the zero-padding copy that follows it; returns the copy.

    Where TVM can prove that a symbolic extent is a multiple of the tile there is no copy: returns ``pack``.
    """
    (consumer,) = sch.get_consumers(pack)
    if sch.get(consumer).same_as(sch.get(anchor)):
        return pack
    sch.compute_inline(pack)
    return consumer


def drop_result_padding(sch: Schedule, anchor: SBlockRV, final: SBlockRV) -> None:
    """Inline the copy that cuts the padding off the result, where there is one, into ``final``."""
    (consumer,) = sch.get_consumers(anchor)
    if not sch.get(consumer).same_as(sch.get(final)):
        sch.compute_inline(consumer)
