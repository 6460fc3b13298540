# SPDX-License-Identifier: Apache-2.0
"""Under what a tuning record is kept: what a function computes, its extents, and the machine.

Names of functions, buffers and blocks are no part of a key, nor is TVM's hash of a function: records outlive
renaming and upgrades. A collision can cost time and never a wrong result, since a record only chooses among
the plans and the values that a rule offers for the very function that it is applied to.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from .._tvm import Target, ir, structural_walk, tirx
from ..blocks import Access, Block, FuncView
from ..machine import NUMBERS, CpuMachine
from ..rule import machine_of

# Hexadecimal digits of a key: enough that a model's functions never meet.
DIGITS = 20

_OPERATIONS = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Max, tirx.Min,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not, tirx.Select, tirx.Cast,
)  # fmt: skip


@dataclass(frozen=True)
class Key:
    """What a function computes.

    Attributes
    ----------
    pattern : a digest of the blocks' structure, the same for every extent
    dtype : the type of the largest operation's result, for people and for the cost model
    extents : the extents of all block iterators in order; ``None`` where symbolic
    """

    pattern: str
    dtype: str
    extents: tuple[int | None, ...]

    @property
    def group(self) -> str:
        """A digest of pattern and extents: points of one group are compared with each other."""
        return digest([self.pattern, list(self.extents)])

    @property
    def symbolic(self) -> bool:
        """Whether some extent is only known when the function runs."""
        return None in self.extents


def digest(value: Any) -> str:
    """A short digest of anything that JSON can write."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def key_of(view: FuncView) -> Key:
    """The key of the (normalised) function that ``view`` shows."""
    numbers = {param: position for position, param in enumerate(view.params)}
    blocks = [_block(block, numbers, view) for block in view.blocks]
    extents = tuple(it.extent for block in view.blocks for it in block.iters)
    dtypes = [w.dtype for block in view.blocks for w in block.writes]
    if view.unreadable:
        blocks.append([view.unreadable, _operations(view.func.body)])
        extents = tuple(_extent(d) for p in view.params for d in p.shape)
        dtypes = [str(p.dtype) for p in view.params]
    return Key(digest(blocks), dtypes[-1] if dtypes else "", extents)


def _extent(dim: Any) -> int | None:
    return int(dim) if isinstance(dim, int | tirx.IntImm) else None


def _block(block: Block, numbers: dict[Any, int], view: FuncView) -> list[Any]:
    """A block without its extents; ``numbers`` names each buffer by when it was first met."""
    for access in (*block.reads, *block.writes):
        numbers.setdefault(access.buffer, len(numbers))

    def described(access: Access) -> list[Any]:
        constant = view.is_constant_weight(access.buffer)
        return [numbers[access.buffer], access.dtype, constant, _index(access, block)]

    kinds = "".join(it.kind for it in block.iters)
    single = [i for i, it in enumerate(block.iters) if it.extent == 1]
    body = block.value if block.value is not None else block.opaque
    operations = _operations(body) if block.value is not None else [body]
    return [
        kinds,
        single,
        [described(a) for a in block.reads],
        [described(a) for a in block.writes],
        operations,
    ]


def _index(access: Access, block: Block) -> list[Any]:
    """Per dimension the iterators and their factors; a factor that is another iterator's extent, as a
    reshape makes them, is written as such."""
    extents = {it.extent for it in block.iters if it.extent is not None and it.extent > 2}
    dims: list[Any] = []
    for row, used in zip(access.coefficients, access.used):
        if row is None:
            dims.append(["?", *sorted(used)])
        else:
            dims.append([[i, "e" if c in extents else c] for i, c in enumerate(row) if c])
    return dims


def _operations(body: Any) -> list[str]:
    """The operations of an expression or statement, in order."""
    found: list[str] = []

    def on_call(call: Any) -> None:
        found.append(str(getattr(call.op, "name", "call")))

    def seen(kind: Any) -> Any:
        return lambda _: found.append(kind.__name__)

    structural_walk(body, [(ir.Call, on_call), *((kind, seen(kind)) for kind in _OPERATIONS)])
    return found


def machine_key(target: Target) -> str:
    """A digest of what the rules know of the machine: another one's records may not fit it."""
    return digest(_facts(machine_of(target)))


def machine_name(target: Target) -> str:
    """The machine for people: CPU, vector width and cores."""
    machine = machine_of(target)
    cpu = str(dict(target.attrs).get("mcpu", "") or "generic")
    return f"{machine.arch} {cpu}, {machine.vector_bits} bits, {machine.cores} cores"


def _facts(machine: CpuMachine) -> dict[str, Any]:
    return {
        "arch": machine.arch,
        "features": sorted(machine.features),
        "numbers": [getattr(machine, name) for name in NUMBERS],
    }
