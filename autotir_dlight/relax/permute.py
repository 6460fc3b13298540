# SPDX-License-Identifier: Apache-2.0
"""What a function does to the axes of its tensors, and the same function on tensors stored channels-last.

"Channels-last" stores a tensor of logical shape ``[N, C, *S]`` as ``[N, *S, C]``. Which functions gain from
moving there is read from their index sets, so that every operator is covered without a rule for each; what
they compute stays the same whatever this finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from .._tvm import SBlockRealize, Schedule, TensorLoad, ir, relax, tirx
from ..blocks import Access, Block, FuncView, rebuilt_block
from ..expressions import uses_any
from .transposed import TRANSPOSED

# Tensors of these ranks have a channel axis (1) and at least one spatial axis.
RANKS = range(3, 6)

Kind = Literal["conv", "aligned", "permute", "reshape", "reduce", "other"]


@dataclass(frozen=True)
class Traits:
    """How a function moves its axes.

    ``conv``: parameter ``data`` convolved with parameter ``weight``; ``aligned``: axis k of every tensor of
    the result's rank goes with axis k of the result; ``permute``: the result's axis k is the source's axis
    ``axes[k]``; ``reshape``: the bytes stay as they are;
    ``reduce``: the spatial axes are summed away. ``ranks`` are those of all parameters, results included.
    """

    kind: Kind
    ranks: tuple[int, ...]
    results: int
    data: int = -1
    weight: int = -1
    multiplies: int = 0
    axes: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return self.ranks[-1]


def to_last(rank: int) -> tuple[int, ...]:
    """The axes of ``permute_dims`` from ``[N, C, *S]`` to ``[N, *S, C]``."""
    return (0, *range(2, rank), 1)


def from_last(rank: int) -> tuple[int, ...]:
    """The axes of ``permute_dims`` from ``[N, *S, C]`` to ``[N, C, *S]``."""
    return (0, rank - 1, *range(1, rank - 1))


def traits(func: Any, results: int) -> Traits:
    """Classify ``func`` (a ``PrimFunc``), the last ``results`` of whose parameters are its results."""
    view = FuncView.of(func)
    ranks = tuple(len(p.shape) for p in view.params)
    other = Traits("other", ranks, results)
    if view.unreadable or any(b.opaque or b.mixed_indices for b in view.blocks):
        return other
    if len(view.params) != len(func.params) or len(view.params) <= results or not view.blocks:
        return other
    if TRANSPOSED in (func.attrs or {}):
        volume = max(_multiplies(b) for b in view.blocks if b.is_reduction)
        return Traits("conv", ranks, 1, 0, 1, volume)
    conv = _convolution(view, ranks) if results == 1 else None
    if conv is not None:
        return conv
    rank = ranks[-1]
    if results == 1 and len(view.blocks) == 1 and len(ranks) == 2 and ranks[0] == rank:
        axes = _permutation(view.blocks[0])
        if axes is not None and axes != tuple(range(rank)):
            return Traits("permute", ranks, results, axes=axes)
    if results == 1 and len(ranks) == 2 and relax.analysis.has_reshape_pattern(func):
        return Traits("reshape", ranks, results)
    alike = rank in RANKS and set(ranks[-results:]) == {rank} and rank in ranks[:-results]
    if alike and all(_aligned(b, rank) for b in view.blocks):
        return Traits("aligned", ranks, results)
    if _sums_space(view, ranks):
        return Traits("reduce", ranks, results)
    return other


def _axis_sets(block: Block, rank: int) -> dict[int, set[int]]:
    """For each iterator the axes in which it moves the tensors of ``rank``."""
    found: dict[int, set[int]] = {}
    for access in (*block.reads, *block.writes):
        if len(access.used) == rank:
            for axis, used in enumerate(access.used):
                for i in used:
                    found.setdefault(i, set()).add(axis)
    return found


def _aligned(block: Block, rank: int) -> bool:
    if block.is_reduction and _is_product(block):
        return False
    return all(len(axes) == 1 for axes in _axis_sets(block, rank).values())


def _permutation(block: Block) -> tuple[int, ...] | None:
    """The axes of a block that only permutes its one source."""
    if len(block.reads) != 1 or not isinstance(block.value, TensorLoad) or not block.writes_identity():
        return None
    axes = []
    for position in block.spatial:
        where = [d for d, used in enumerate(block.reads[0].used) if used == frozenset([position])]
        if len(where) != 1:
            return None
        axes.append(where[0])
    source = [axes.index(d) for d in range(len(axes))] if sorted(axes) == list(range(len(axes))) else []
    return tuple(axes) if source and block.reads[0].is_identity(source) else None


def _sums_space(view: FuncView, ranks: tuple[int, ...]) -> bool:
    """Whether the first parameter's spatial axes are reduced away, all of them, and its first two stay."""
    if len(ranks) != 2 or ranks[0] not in RANKS or ranks[1] != 2:
        return False
    block = view.blocks[0]
    reads = [r for r in block.reads if r.buffer.same_as(view.params[0])]
    return len(reads) == 1 and all(
        used <= frozenset(block.reduce if d > 1 else block.spatial) for d, used in enumerate(reads[0].used)
    )


def _convolution(view: FuncView, ranks: tuple[int, ...]) -> Traits | None:
    """A convolution of channels-first tensors; the weight moves with the channels and the window alone."""
    rank = ranks[-1]
    if rank not in RANKS:
        return None
    for block in view.blocks:
        if not block.is_reduction or not _is_product(block) or len(block.reads) != 2:
            continue
        for data, weight in (block.reads, block.reads[::-1]):
            if _convolves(block, data, weight, rank):
                where = _position(view, weight.buffer)
                source = _source(view, data.buffer)
                if where is not None and source is not None:
                    return Traits("conv", ranks, 1, source, where, _multiplies(block))
    return None


def _multiplies(block: Block) -> int:
    return prod(it.extent or 1 for it in block.iters)


def _is_product(block: Block) -> bool:
    """Whether the block adds up products."""
    value = block.value
    return isinstance(value, tirx.Add) and any(isinstance(v, tirx.Mul) for v in (value.a, value.b))


def _convolves(block: Block, data: Access, weight: Access, rank: int) -> bool:
    if len(data.used) != rank or len(weight.used) != rank or len(block.writes) != 1:
        return False
    out = block.writes[0]
    if len(out.used) != rank:
        return False
    spatial = frozenset(block.spatial)
    channel = out.used[1] & spatial
    window = frozenset(i for used in out.used[2:] for i in used)
    weights = frozenset(i for used in weight.used for i in used)
    # Without a channel iterator there is one channel of output; a window needs its own axes either way.
    return weights & spatial <= channel and all(
        used & window <= out.used[d] for d, used in enumerate(data.used)
    )


def _position(view: FuncView, buffer: Any) -> int | None:
    return next((i for i, p in enumerate(view.params) if p.same_as(buffer)), None)


def _source(view: FuncView, buffer: Any) -> int | None:
    """The parameter that ``buffer`` is, or is copied or padded from."""
    where = _position(view, buffer)
    if where is not None:
        return where
    writers = view.writers(buffer)
    if len(writers) != 1 or not writers[0].is_injective or len(writers[0].reads) != 1:
        return None
    return _source(view, writers[0].reads[0].buffer) if _aligned(writers[0], len(buffer.shape)) else None


def channels_last(func: Any, positions: frozenset[int], weight: int = -1) -> Any:
    """``func`` with the parameters at ``positions``, and its own buffers of their rank, stored channels-last.

    ``weight`` is the parameter of a convolution's weight ``[O, I, *K]``, to be stored as ``[*K, I, O]``. The
    loops follow the order in which the result lies in memory. ``func`` is one that :func:`traits` can read.
    """
    sch = Schedule(ir.IRModule({"main": func}), debug_mask=0)
    ranks = {len(func.params[i].shape) for i in positions}
    done: list[Any] = []
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        for kind in ("write", "read"):
            for index in range(len(getattr(sch.get(block), kind + "s"))):
                buffer = getattr(sch.get(block), kind + "s")[index].source
                where = next((i for i, p in enumerate(sch.mod["main"].params) if p.same_as(buffer)), None)
                axes = _stored(buffer, where, positions, weight, ranks)
                if axes and not any(buffer.same_as(d) for d in done):
                    sch.transform_layout(block, (kind, index), _index_map(axes))
                    done.append(getattr(sch.get(block), kind + "s")[index].source)
    return _follow_layout(sch.mod["main"])


def _index_map(axes: tuple[int, ...]) -> Any:
    return tirx.IndexMap.from_func(lambda *v: [v[a] for a in axes], ndim=len(axes), index_dtype="int64")


def _stored(
    buffer: Any, where: int | None, positions: frozenset[int], weight: int, ranks: set[int]
) -> tuple[int, ...]:
    """The order in which the axes of ``buffer`` are to be stored; empty where they stay."""
    rank = len(buffer.shape)
    if where is not None and where == weight:
        return (*range(2, rank), 1, 0)
    return to_last(rank) if where in positions or (where is None and rank in ranks) else ()


def _follow_layout(func: Any) -> Any:
    """Order each block's iterators and loops as its result lies in memory, its reductions as its source."""
    realize = func.body
    root = realize.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    body = [_reorder(nest) for nest in nests]
    block = rebuilt_block(root, body=tirx.SeqStmt(body) if len(body) > 1 else body[0])
    return func.with_body(SBlockRealize(realize.iter_values, realize.predicate, block))


def _reorder(nest: Any) -> Any:
    loops: list[Any] = []
    while isinstance(nest, tirx.For):
        loops.append(nest)
        nest = nest.body
    block, values = nest.block, list(nest.iter_values)
    order = _order(block)
    chosen = [x for i in order for x in loops if x.loop_var.same_as(values[i])]
    moved = rebuilt_block(block, block.body, [block.iter_vars[i] for i in order])
    body = SBlockRealize([values[i] for i in order], nest.predicate, moved)
    for loop in reversed(chosen):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)
    return body


def _order(block: Any) -> list[int]:
    """The iterators in memory order: spatial ones first, then the reductions."""
    variables = [iv.var for iv in block.iter_vars]
    is_reduction = [iv.iter_type == tirx.IterVar.CommReduce for iv in block.iter_vars]
    dims = [dim.min for region in (*block.writes, *block.reads) for dim in region.region]
    met = [i for dim in dims for i, used in enumerate(uses_any(dim, variables)) if used]
    ranked = list(dict.fromkeys([*met, *range(len(variables))]))
    return sorted(ranked, key=lambda i: is_reduction[i])
