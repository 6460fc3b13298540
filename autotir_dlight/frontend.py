# SPDX-License-Identifier: Apache-2.0
"""Read an ONNX file into a Relax module, with its inputs and outputs named.

The file is read and checked, its input shapes are fixed, computed shapes are folded by onnxsim, and TVM's
importer does the rest. Every way in which that can fail is a :class:`ModelError` of one sentence.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from .errors import ModelError, UserError, first_line
from .extras import installed, require

if TYPE_CHECKING:
    import onnx

# The domains whose operators TVM's importer knows: it looks at an operator's name only, so the same name in
# another domain would silently be taken for the standard operator.
_KNOWN_DOMAINS = ("", "ai.onnx", "com.microsoft")
# What the importer handles beside its table of conversions.
_BUILT_IN = {"Constant", "If"}


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model: its ONNX name, shape and NumPy type name.

    A dimension is an ``int``, or a ``str`` where it is only known when the model runs.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as numbers; raises ``ModelError`` where a dimension is open."""
        if not self.is_static:
            raise ModelError(
                f"the input {self} has open dimensions: give it a shape with --shape {self.name}=…"
            )
        return tuple(int(dim) for dim in self.shape)

    def __str__(self) -> str:
        return f"{self.name} ({self.dtype}, {' x '.join(map(str, self.shape)) or 'a single number'})"


@dataclass(frozen=True)
class Model:
    """An imported model: a Relax module whose ``main`` takes ``inputs`` in order and returns ``outputs``."""

    module: tvm.ir.IRModule
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def load_onnx(path: str | os.PathLike[str], shapes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """Import the ONNX file at ``path``.

    ``shapes`` gives the shape of an input by its name; it fixes dimensions that the file leaves open and must
    agree with those that it does not. What stays open becomes a symbolic dimension. Element types are kept.

    Raises ``ModelError`` for a file that is missing, is not ONNX, or that TVM cannot import (unsupported
    operators are all named), and for shapes that do not fit it; ``MissingExtraError`` without the extra
    ``onnx``.
    """
    path = os.fspath(path)
    proto = _read(path)
    inputs = _with_shapes(path, _declared_inputs(path, proto), shapes or {})
    try:
        simplified = _simplify(proto, inputs)
        _check_operators(path, simplified)
        module = _import(simplified, inputs)
        return Model(module, inputs, _outputs(proto, module))
    except UserError:
        raise
    except Exception as err:  # the importers raise whatever they please: any failure is about this file
        raise ModelError(_import_failed(path, inputs, err)) from err


def unsupported_operators(proto: onnx.ModelProto) -> list[str]:
    """The operators of ``proto`` that TVM's ONNX importer cannot convert, sorted, with their domain."""
    from tvm.relax.frontend.onnx import onnx_frontend

    known = _BUILT_IN | set(onnx_frontend._get_convert_map())
    missing = set()
    for node in _nodes(proto.graph):
        if node.domain not in _KNOWN_DOMAINS or node.op_type not in known:
            missing.add(f"{node.domain}::{node.op_type}" if node.domain else node.op_type)
    return sorted(missing)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in [attribute.g, *attribute.graphs]:
                yield from _nodes(subgraph)


def _check_operators(path: str, proto: onnx.ModelProto) -> None:
    missing = unsupported_operators(proto)
    if missing:
        what = f"operator{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        raise ModelError(f"TVM cannot import {path!r}: its ONNX importer does not support the {what}")


def _read(path: str) -> onnx.ModelProto:
    onnx = require("onnx", "onnx", "reading an ONNX file")
    if not Path(path).is_file():
        raise ModelError(f"there is no file {path!r}: give the path of an ONNX file")
    try:
        proto = onnx.load(path)
    except OSError as err:
        raise ModelError(
            f"{path!r} or a file of weights that it names cannot be read: {first_line(err)}"
        ) from err
    except Exception as err:  # protobuf's own error type depends on its version
        raise ModelError(f"{path!r} is not an ONNX file, or is damaged ({first_line(err)})") from err
    if not proto.ir_version or not (proto.graph.node or proto.graph.output):
        raise ModelError(f"{path!r} is not an ONNX file: it holds no graph")
    try:
        proto = require("onnx.inliner", "onnx", "reading an ONNX file").inline_local_functions(proto)
        onnx.checker.check_model(proto)
    except Exception as err:
        _check_operators(path, proto)  # the checker refuses unknown operators too, with a worse sentence
        raise ModelError(f"{path!r} is not a valid ONNX model: {first_line(err)}") from err
    return proto


def _declared_inputs(path: str, proto: onnx.ModelProto) -> list[TensorInfo]:
    """The inputs that a caller must give: those of the graph without the ones that carry a default value."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    return [_declared(path, value) for value in proto.graph.input if value.name not in constants]


def _declared(path: str, value: onnx.ValueInfoProto) -> TensorInfo:
    onnx = require("onnx", "onnx", "reading an ONNX file")
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or tensor.elem_type in (0, onnx.TensorProto.STRING):
        raise ModelError(
            f"the input {value.name!r} of {path!r} is not a tensor of numbers, which TVM cannot take"
        )
    if not tensor.HasField("shape"):
        raise ModelError(f"the input {value.name!r} of {path!r} does not say how many dimensions it has")
    dims = tuple(_dimension(dim, f"{value.name}_{axis}") for axis, dim in enumerate(tensor.shape.dim))
    return TensorInfo(value.name, dims, str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))


def _dimension(dim: Any, unnamed: str) -> int | str:
    """A dimension's extent, or the name under which it stays open; exporters write -1 and ``?`` for "any"."""
    if dim.dim_value > 0:
        return int(dim.dim_value)
    return dim.dim_param if dim.dim_param not in ("", "?") else unnamed


def _with_shapes(
    path: str, declared: Sequence[TensorInfo], shapes: Mapping[str, Sequence[int]]
) -> tuple[TensorInfo, ...]:
    """The inputs with the dimensions that ``shapes`` fixes; every disagreement is an error."""
    unknown = sorted(set(shapes) - {info.name for info in declared})
    if unknown:
        has = ", ".join(map(str, declared)) or "none"
        raise ModelError(f"{path!r} has no input {unknown[0]!r}; its inputs are: {has}")
    return tuple(_fix(info, shapes[info.name]) if info.name in shapes else info for info in declared)


def _fix(info: TensorInfo, shape: Sequence[int]) -> TensorInfo:
    given = f"the shape {','.join(map(str, shape))} given for the input {info}"
    if len(shape) != len(info.shape):
        raise ModelError(f"{given} has {len(shape)} dimensions instead of {len(info.shape)}")
    for axis, (dim, declared) in enumerate(zip(shape, info.shape, strict=True)):
        if dim < 1:
            raise ModelError(f"{given} has {dim} at axis {axis}: dimensions are positive numbers")
        if isinstance(declared, int) and dim != declared:
            raise ModelError(f"{given} has {dim} at axis {axis}, which the model fixes at {declared}")
    return TensorInfo(info.name, tuple(int(dim) for dim in shape), info.dtype)


def _simplify(proto: onnx.ModelProto, inputs: Sequence[TensorInfo]) -> onnx.ModelProto:
    """Fold the shapes that the model computes: the importer wants most of them as constants."""
    if not installed("onnxsim"):
        return proto
    from onnxsim import simplify

    fixed = {info.name: list(info.shape) for info in inputs if info.is_static and info.shape}
    simplified, _ = simplify(proto, overwrite_input_shapes=fixed)
    return simplified


def _import(proto: onnx.ModelProto, inputs: Sequence[TensorInfo]) -> tvm.ir.IRModule:
    from tvm.relax.frontend.onnx import from_onnx

    symbols: dict[str, tvm.tirx.Var] = {}
    shapes = {info.name: [_extent(dim, symbols) for dim in info.shape] for info in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about renamed inputs and open shapes, both of which are meant
        return from_onnx(proto, shape_dict=shapes, dtype_dict=None)


def _extent(dim: int | str, symbols: dict[str, tvm.tirx.Var]) -> int | tvm.tirx.Var:
    if isinstance(dim, int):
        return dim
    name = "".join(c if c.isalnum() else "_" for c in dim)
    return symbols.setdefault(dim, tvm.tirx.Var(name if name[0].isalpha() else f"n{name}", "int64"))


def _import_failed(path: str, inputs: Sequence[TensorInfo], err: Exception) -> str:
    message = f"TVM cannot import {path!r} ({first_line(err)})"
    dynamic = [info for info in inputs if not info.is_static]
    if not installed("onnxsim"):
        return f"{message}: models that compute shapes need onnxsim, pip install 'autotir-dlight[onnx]'"
    if dynamic:
        example = ",".join(str(dim) if isinstance(dim, int) else "N" for dim in dynamic[0].shape)
        return f"{message}: give its inputs fixed shapes, --shape {dynamic[0].name}={example} with numbers"
    return message


def _outputs(proto: onnx.ModelProto, module: tvm.ir.IRModule) -> tuple[TensorInfo, ...]:
    result = module["main"].ret_ty
    fields = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    names = [value.name for value in proto.graph.output]
    return tuple(_described(name, field) for name, field in zip(names, fields, strict=True))


def _described(name: str, ty: Any) -> TensorInfo:
    if not isinstance(ty, relax.TensorType) or ty.ndim < 0:
        raise ModelError(
            f"the output {name!r} of the model is not a tensor whose number of dimensions is known"
        )
    if ty.shape is None:
        return TensorInfo(name, tuple(f"{name}_{axis}" for axis in range(ty.ndim)), str(ty.dtype))
    return TensorInfo(name, tuple(_known(dim) for dim in ty.shape), str(ty.dtype))


def _known(dim: Any) -> int | str:
    """An extent, the name of the input's dimension that it equals, or ``?`` for anything computed."""
    if isinstance(dim, tvm.tirx.IntImm):
        return int(dim)
    return str(dim.name) if isinstance(dim, tvm.tirx.Var) else "?"
