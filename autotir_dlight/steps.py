# SPDX-License-Identifier: Apache-2.0
"""Small schedule steps with named results; each docstring shows the nest before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ._tvm import LoopRV, SBlockRV, Schedule, tirx
from .blocks import Block, as_int

# Bytes of a page of memory on every machine that there are rules for.
PAGE_BYTES = 4096

PARTITION_HINT = "pragma_loop_partition_hint"


def block_handles(sch: Schedule) -> list[SBlockRV]:
    """The blocks under the root, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def iter_loops(sch: Schedule, handle: SBlockRV, block: Block) -> list[LoopRV]:
    """The block's loops, put in the order of its iterators; an iterator bound to a constant has none.

    ``for j, i: B[i, j]`` → ``for i, j: B[i, j]``
    """
    loops = list(sch.get_loops(handle))
    order = [it.loop for it in block.iters if it.loop >= 0]
    if order != sorted(order):
        ordered = [loops[k] for k in order]
        sch.reorder(*ordered)
        return ordered
    return [loops[k] for k in order]


def fuse(sch: Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """``for i, j`` → ``for ij``; one loop is returned as it is."""
    return loops[0] if len(loops) == 1 else sch.fuse(*loops)


def parallelise(sch: Schedule, loops: Sequence[LoopRV]) -> LoopRV | None:
    """``for i, j`` → ``parallel for ij``; loops of one step stay outside; ``None`` for no loops."""
    busy = [loop for loop in loops if as_int(sch.get(loop).extent) != 1]
    if not busy:
        return None
    fused = fuse(sch, busy if len(busy) < len(loops) and loops[-len(busy) :] == busy else loops)
    sch.parallel(fused)
    return fused


def separate_init(sch: Schedule, handle: SBlockRV, block: Block) -> None:
    """``for i, k: {if k == 0: y = 0}; y += x`` → ``for i: y = 0`` and ``for i, k: y += x``.

    An empty reduction then still writes its identity, which the nest on the left never does.
    """
    loops = list(sch.get_loops(handle))
    reduce = {it.loop for it in block.iters if it.kind == "R" and it.loop >= 0}
    if block.init is not None and reduce:
        sch.decompose_reduction(handle, loops[min(reduce)])


def vectorise_columns(sch: Schedule, loop: LoopRV, lanes: int) -> None:
    """``for j in n·lanes`` → ``unrolled j0, vectorised j1 in lanes``; ``lanes`` 1 leaves the loop alone."""
    if lanes <= 1:
        return
    outer, inner = sch.split(loop, [None, lanes])
    sch.unroll(outer)
    sch.vectorize(inner)


def vectorise_init(sch: Schedule, init: SBlockRV) -> None:
    """The init nest copies the split of the update's lanes: unroll the outer, vectorise the inner."""
    unrolled, lane = sch.get_loops(init)[-2:]
    sch.unroll(unrolled)
    sch.vectorize(lane)


def reads_index(sch: Schedule, handle: SBlockRV, buffer: Any) -> int:
    """The position of ``buffer`` among the block's declared reads."""
    for position, region in enumerate(sch.get(handle).reads):
        if region.source.same_as(buffer):
            return position
    raise LookupError(f"the block does not read {buffer}")


# Of a function: the parameters whose layout may change; of a block: that it packs such a parameter.
LAYOUT_FREE = "layout_free_buffers"
LAYOUT_REWRITE = "meta_schedule.layout_rewrite_preproc"


def index_map(sch: Schedule, handle: SBlockRV, mapping: Callable[..., list[Any]], rank: int) -> Any:
    """A layout's index map over ``rank`` indices of the type that ``handle``'s iterators have."""
    iter_vars = sch.get(handle).iter_vars
    dtype = str(iter_vars[0].var.ty) if len(iter_vars) else "int32"
    return tirx.IndexMap.from_func(mapping, ndim=rank, index_dtype=dtype)


def fuse_columns(
    sch: Schedule, anchor: SBlockRV, final: SBlockRV, block: Block, columns: Sequence[int]
) -> None:
    """``C[n, m, h, w]`` → ``C[n, m, h·W+w]`` in the anchor and in the block that reads it.

    ``columns`` are the anchor's spatial iterators to fuse, adjacent and trailing.
    """
    spatial = list(block.spatial)
    extents = [block.extent(i) for i in columns]
    at = [spatial.index(i) for i in columns]
    where = list(columns)

    def fused(values: Sequence[Any]) -> Any:
        total = values[0]
        for value, extent in zip(values[1:], extents[1:]):
            total = total * extent + value
        return total

    def over(positions: Sequence[int]) -> Any:
        def mapping(*index: Any) -> list[Any]:
            out: list[Any] = []
            for k, value in enumerate(index):
                if k == positions[0]:
                    out.append(fused([index[p] for p in positions]))
                elif k not in positions:
                    out.append(value)
            return out

        return mapping

    sch.transform_layout(anchor, ("write", 0), index_map(sch, anchor, over(at), len(spatial)))
    sch.transform_block_layout(anchor, index_map(sch, anchor, over(where), len(block.iters)))
    sch.transform_block_layout(final, index_map(sch, final, over(at), len(spatial)))


def loops_after_fusion(
    sch: Schedule, handle: SBlockRV, block: Block, columns: Sequence[int]
) -> dict[int, LoopRV]:
    """The loop of each iterator; after :func:`fuse_columns` the fused one stands for ``columns[0]``."""
    if len(columns) <= 1:
        loops = iter_loops(sch, handle, block)
        live = [i for i, it in enumerate(block.iters) if it.loop >= 0]
        return dict(zip(live, loops))
    kept = [i for i in range(len(block.iters)) if i == columns[0] or i not in columns]
    return dict(zip(kept, sch.get_loops(handle)))
