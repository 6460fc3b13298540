# SPDX-License-Identifier: Apache-2.0
"""One operator as every contender says it, and the list of all that ``bench ops`` knows."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ..errors import UserError
from ..extras import installed, require
from .memory import aligned
from .roofline import Work

Arrays = list[np.ndarray]
ONNX_TYPES = {"float32": "float", "int8": "int8", "uint8": "uint8", "int32": "int32"}


@dataclass(frozen=True)
class Tensor:
    """Shape and NumPy type name of an operand."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Operator:
    """An operator on operands of fixed shapes, all of them inputs at run time.

    Attributes
    ----------
    name : how it is asked for
    inputs, output : its operands as TensorIR has them
    tir : makes the function, unscheduled; its parameters are the inputs and then the output
    flops : floating-point operations (or integer ones) that it cannot do without; 0 where only bytes count
    tolerance : the allowed difference as a share of the largest output; ``None`` for that of its type
    numpy : the same in NumPy, of arrays as TensorIR has them; ``None`` where it has no fast way to say it
    torch : ``torch(torch_module, *tensors)``, the same in PyTorch on prepared operands
    onnx : ONNX's text of the nodes from ``a0``, ``a1``… (prepared operands) to ``y``; empty where it has none
    prepare : operands as TensorIR has them to the layout of PyTorch and ONNX, which is not timed
    restore : their output back to TensorIR's layout
    """

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    tir: Callable[[], Any]
    flops: float = 0.0
    tolerance: float | None = None
    numpy: Callable[..., np.ndarray] | None = None
    torch: Callable[..., Any] | None = None
    onnx: str = ""
    prepare: Callable[[Arrays], Arrays] = field(default=list)
    restore: Callable[[np.ndarray], np.ndarray] = field(default=lambda y: y)

    @property
    def work(self) -> Work:
        """Its arithmetic and the bytes of its operands, each moved once."""
        return Work(self.flops, sum(t.nbytes for t in self.inputs), self.output.nbytes)

    def arrays(self, seed: int = 0) -> Arrays:
        """Operands: floats from the normal distribution, integers over the whole of their type."""
        rng = np.random.default_rng(seed)
        return [_random(tensor, rng) for tensor in self.inputs]

    def onnx_model(self) -> bytes:
        """The operator as a model in ONNX, with :meth:`prepare`'s operands as its inputs."""
        onnx = require("onnx", "onnx", "writing an ONNX model")
        shapes = [_shape_only(tensor) for tensor in self.inputs]
        inputs = ", ".join(
            f"{ONNX_TYPES[str(a.dtype)]}[{','.join(map(str, a.shape))}] a{i}"
            for i, a in enumerate(self.prepare(shapes))
        )
        output = ONNX_TYPES[self.output.dtype]
        text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({output} y) {{ {self.onnx} }}'
        model = onnx.parser.parse_model(text)
        model.graph.output[0].type.tensor_type.ClearField("shape")  # the text can only say that it is scalar
        return model.SerializeToString()


def _random(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    array = aligned(tensor.shape, tensor.dtype)
    if array.dtype.kind == "f":
        array[...] = rng.standard_normal(tensor.shape, dtype=array.dtype)
    else:
        limits = np.iinfo(array.dtype)
        array[...] = rng.integers(limits.min, limits.max, tensor.shape, dtype=array.dtype, endpoint=True)
    return array


def _shape_only(tensor: Tensor) -> np.ndarray:
    """An array of the tensor's shape that takes no memory."""
    return np.broadcast_to(np.zeros((), tensor.dtype), tensor.shape)


@cache
def all_operators() -> dict[str, Operator]:
    """Every operator by name, in the order of the table."""
    from . import dense_operators, moving_operators, te_operators

    found: Iterable[Operator] = (
        *te_operators.operators(),
        *dense_operators.operators(),
        *moving_operators.operators(),
    )
    return {operator.name: operator for operator in found}


def select(patterns: Sequence[str]) -> list[Operator]:
    """The operators whose names match any of ``patterns`` (as in a shell, in any case); all for none.

    Raises ``UserError`` for a pattern that matches nothing.
    """
    known = all_operators()
    wanted: set[str] = set()
    for pattern in patterns:
        matching = [name for name in known if fnmatch.fnmatchcase(name.lower(), pattern.lower())]
        if not matching:
            raise UserError(f"no operator is named {pattern!r}: bench ops --list names them all")
        wanted.update(matching)
    return [op for name, op in known.items() if not patterns or name in wanted]


def can_express(operator: Operator, library: str) -> bool:
    """Whether ``operator`` has a form for ``library``: ``"numpy"``, ``"torch"`` or ``"onnx"``."""
    return bool(getattr(operator, library)) and (library != "onnx" or installed("onnx"))
