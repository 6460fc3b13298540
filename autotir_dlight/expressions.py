# SPDX-License-Identifier: Apache-2.0
"""What an expression or statement costs, counted without looking at any name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from ._tvm import SBlock, TensorLoad, ir, structural_walk, tirx

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)
_COMPARE = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not, tirx.Select)
_DIVIDE = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_STATEMENTS = (tirx.IfThenElse, tirx.While, tirx.For, tirx.AttrStmt, tirx.AllocBuffer, tirx.Evaluate)

# Calls that cost about one instruction and have no side effect.
_CHEAP_CALLS = frozenset(
    "if_then_else likely reinterpret fabs abs floor ceil trunc round nearbyint sqrt rsqrt fma isnan isinf "
    "isfinite isnullptr bitwise_and bitwise_or bitwise_xor bitwise_not shift_left shift_right popcount clz "
    "copysign large_uint_imm max_value min_value infinity".split()
)
# Calls that cost tens of instructions and have no side effect.
_COSTLY_CALLS = frozenset(
    "exp exp2 exp10 log log2 log10 log1p expm1 erf tanh sigmoid sin cos tan asin acos atan sinh cosh asinh "
    "acosh atanh atan2 pow fmod hypot ldexp nextafter q_multiply_shift q_multiply_shift_per_axis "
    "call_pure_extern".split()
)

# Of these, the ones that VectorMath makes arithmetic of where the type is one of VECTOR_TYPES.
VECTOR_CALLS = frozenset("erf exp log sigmoid tanh".split())
VECTOR_TYPES = ("float32", "float16", "bfloat16")

# Annotation of a block: VectorMath may divide by multiplying with the reciprocal, which LLVM then takes out
# of the loop.
RECIPROCAL = "autotir.reciprocal"

# Calls that TVM's LLVM back end can lower for one element only: on vectors it fails (0.27).
_SCALAR_CALLS = frozenset(("cosh", "sinh"))

# A call of the mathematics library, or the arithmetic in its place, in simple operations.
COSTLY_WORK = 20


@dataclass(frozen=True)
class ExprStats:
    """Operation counts of one iteration; ``library`` are the costly calls that are made for one element at
    a time, even in a vector loop.
    """

    arithmetic: int = 0
    divisions: int = 0
    conditions: int = 0
    branches: int = 0
    costly: int = 0
    library: int = 0
    loads: int = 0
    casts: int = 0
    size: int = 0
    stores: int = 0
    statements: int = 0
    nested_blocks: int = 0
    scalar_only: bool = False
    opaque_call: str = ""

    @property
    def work(self) -> int:
        """Rough instruction count: a call of the mathematics library counts ``COSTLY_WORK``."""
        simple = self.arithmetic + 4 * self.divisions + self.conditions + self.branches + self.loads
        return simple + COSTLY_WORK * self.costly


class _Counter:
    """Counts the nodes of an expression as the walk meets them."""

    def __init__(self) -> None:
        names = [f.name for f in fields(ExprStats) if f.type == "int"]
        self.counts = dict.fromkeys(names, 0)
        self.opaque_call = ""
        self.scalar_only = False

    def bump(self, key: str) -> None:
        self.counts[key] += 1
        self.counts["size"] += 1

    def on_call(self, call: Any) -> None:
        name = call.op.name if isinstance(call.op, ir.Op) else str(getattr(call.op, "name_hint", call.op))
        short = name.rpartition(".")[2]
        self.scalar_only = self.scalar_only or short in _SCALAR_CALLS
        if short in _CHEAP_CALLS:
            self.bump("branches" if short == "if_then_else" else "arithmetic")
            return
        self.bump("costly")
        self.counts["library"] += short not in VECTOR_CALLS or str(call.ty) not in VECTOR_TYPES
        if short not in _COSTLY_CALLS:
            self.opaque_call = self.opaque_call or name

    def value(self, key: str) -> Callable[[Any], None]:
        """Count a node that is no index arithmetic."""

        def on_node(node: Any) -> None:
            if str(node.ty) != "int64":
                self.bump(key)

        return on_node

    def node(self, key: str) -> Callable[[Any], None]:
        return lambda _: self.bump(key)


def expr_stats(root: Any) -> ExprStats:
    """Count the operations under ``root``, index arithmetic left out."""
    counter = _Counter()
    structural_walk(
        root,
        [
            (_ARITHMETIC, counter.value("arithmetic")),
            (_DIVIDE, counter.value("divisions")),
            (_COMPARE, counter.node("conditions")),
            (tirx.Cast, counter.node("casts")),
            (TensorLoad, counter.node("loads")),
            (tirx.BufferStore, counter.node("stores")),
            (ir.Call, counter.on_call),
            (SBlock, counter.node("nested_blocks")),
            (_STATEMENTS, counter.node("statements")),
        ],
    )
    return ExprStats(**counter.counts, scalar_only=counter.scalar_only, opaque_call=counter.opaque_call)


def branch_conditions(root: Any) -> list[Any]:
    """The conditions of the ``if_then_else`` calls under ``root``."""
    found: list[Any] = []

    def on_call(call: Any) -> None:
        if isinstance(call.op, ir.Op) and call.op.name.endswith(".if_then_else"):
            found.append(call.args[0])

    structural_walk(root, [(ir.Call, on_call)])
    return found


def uses_any(expr: Any, variables: list[Any]) -> list[bool]:
    """For each of ``variables``, whether ``expr`` holds it."""
    present = [False] * len(variables)

    def on_var(var: Any) -> None:
        for k, candidate in enumerate(variables):
            present[k] = present[k] or candidate.same_as(var)

    structural_walk(expr, [(ir.Var, on_var)])
    return present


def floor_divisors(expr: Any, variable: Any) -> set[int] | None:
    """The constants ``c`` of the terms ``variable // c`` in ``expr``; ``None`` where it occurs otherwise."""
    divisors: list[int] = []
    occurrences = 0

    def on_divide(node: Any) -> None:
        if isinstance(node.b, tirx.IntImm) and variable.same_as(node.a):
            divisors.append(int(node.b.value))

    def on_var(var: Any) -> None:
        nonlocal occurrences
        occurrences += variable.same_as(var)

    structural_walk(expr, [(tirx.FloorDiv, on_divide), (ir.Var, on_var)])
    return set(divisors) if occurrences == len(divisors) else None
