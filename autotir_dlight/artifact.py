# SPDX-License-Identifier: Apache-2.0
"""A compiled model in one shared library that carries the names, shapes and types of its tensors."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax

from .errors import ArtifactError, first_line
from .frontend import Model, TensorInfo

# A Relax function without parameters that returns the signature as bytes of JSON, so that it travels inside.
_SIGNATURE = "autotir_signature"
# TVM chooses how to write and load a file by the end of its name.
_SUFFIXES = (".so", ".dylib", ".dll")


@dataclass(frozen=True)
class Signature:
    """What a compiled model takes and returns, and the target (as JSON) that it was compiled for."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    target: str

    def to_bytes(self) -> bytes:
        """The signature as UTF-8 JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Signature:
        """Read back what :meth:`to_bytes` wrote."""
        raw = json.loads(data)
        return cls(_tensors(raw["inputs"]), _tensors(raw["outputs"]), raw["target"])


def _tensors(raw: list[dict[str, Any]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(entry["name"], tuple(entry["shape"]), entry["dtype"]) for entry in raw)


def compile_model(model: Model, target: tvm.target.Target, relax_pipeline: Any) -> relax.VMExecutable:
    """Compile ``model`` for ``target`` with ``relax_pipeline``, its signature included."""
    signature = Signature(model.inputs, model.outputs, json.dumps(json.loads(str(target))))
    data = relax.const(np.frombuffer(signature.to_bytes(), dtype="uint8"))
    function = relax.Function([], relax.SeqExpr([], data), data.ty, is_pure=True)
    module = tvm.IRModule(dict(model.module.functions_items()), attrs=model.module.attrs)
    module[_SIGNATURE] = function.with_attr("global_symbol", _SIGNATURE)
    return tvm.compile(module, target, relax_pipeline=relax_pipeline)


def check_writable(path: Path) -> None:
    """Raise ``ArtifactError`` where ``path`` is a folder or lies in none."""
    if path.is_dir() or not path.parent.is_dir():
        wrong = (
            "is a directory" if path.is_dir() else f"lies in {str(path.parent)!r}, which is not a directory"
        )
        raise ArtifactError(f"cannot write {str(path)!r}: it {wrong}")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to that takes ``path``'s place at the end; after an error nothing is left of it.

    Raises ``ArtifactError`` where ``path`` cannot be a file.
    """
    path = Path(path)
    check_writable(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            draft = Path(folder) / path.name
            yield draft
            draft.replace(path)
    except OSError as err:
        raise ArtifactError(f"cannot write {str(path)!r}: {err.strerror or first_line(err)}") from err


def link(executable: relax.VMExecutable, path: Path, compiler: str = "") -> None:
    """Write ``executable`` as the shared library ``path``, linked by ``compiler`` (default: the system's).

    Raises ``ArtifactError`` where there is no compiler or it fails.
    """
    from tvm.support import cc

    _check_suffix(path)
    compiler = compiler or cc.get_cc() or ""
    if not compiler and os.name == "posix":  # elsewhere TVM finds the linker itself
        raise ArtifactError(
            "no C++ compiler was found to link with: install g++ or clang++, or name one with --cc"
        )
    try:
        executable.export_library(str(path), **({"cc": compiler} if compiler else {}))
    except (RuntimeError, OSError) as err:
        hint = "a target of another kind of CPU needs its cross compiler, named with --cc"
        raise ArtifactError(
            f"{compiler} could not link the compiled model ({first_line(err)}): {hint}"
        ) from err


def _check_suffix(path: Path) -> None:
    if path.suffix not in _SUFFIXES:
        raise ArtifactError(
            f"{path.name!r} is no name for a compiled model: it must end in {', '.join(_SUFFIXES)}"
        )


class CompiledModel:
    """A compiled model ready to run on this machine's CPU.

    ``executable`` is what :func:`compile_model` returned; :meth:`load` reads a library instead.
    """

    def __init__(self, executable: Any, name: str = "the compiled model") -> None:
        self._vm = relax.VirtualMachine(executable, tvm.cpu())
        try:
            stored = self._vm[_SIGNATURE]()
        except (ValueError, AttributeError, RuntimeError) as err:
            raise ArtifactError(
                f"{name} was not written by autotir-dlight compile: it has no signature"
            ) from err
        self.signature = Signature.from_bytes(stored.numpy().tobytes())
        self._main = self._vm["main"]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledModel:
        """Load a library written by :func:`link`; loading runs code from it.

        Raises ``ArtifactError`` for a file that is missing, damaged, or something else.
        """
        path = os.fspath(path)
        if not Path(path).is_file():
            raise ArtifactError(f"there is no file {path!r}: give a model written by autotir-dlight compile")
        _check_suffix(Path(path))
        try:
            library = tvm.runtime.load_module(path)
            library["vm_load_executable"]
        except (RuntimeError, ValueError, AttributeError, OSError) as err:
            raise ArtifactError(
                f"{path!r} is not a compiled model for this machine: {first_line(err)}"
            ) from err
        return cls(library, repr(path))

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for ``arrays``, one for each input in order.

        Raises ``ArtifactError`` where number, shapes or types differ from the signature's.
        """
        return self.fetch(self.call(self.prepare(arrays)))

    def prepare(self, arrays: Sequence[np.ndarray]) -> list[tvm.runtime.Tensor]:
        """The arrays as TVM's tensors, checked against the signature."""
        return [tvm.runtime.tensor(array) for array in check_arrays(self.signature.inputs, arrays)]

    def call(self, tensors: Sequence[tvm.runtime.Tensor]) -> Any:
        """Run on what :meth:`prepare` returned; the result is for :meth:`fetch`."""
        return self._main(*tensors)

    @staticmethod
    def fetch(result: Any) -> list[np.ndarray]:
        """The arrays in a result of :meth:`call`."""
        return [part.numpy() for part in ([result] if hasattr(result, "numpy") else list(result))]


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy type of a TVM type name, the small floats of ``ml_dtypes`` included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def check_arrays(inputs: Sequence[TensorInfo], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """``arrays`` made contiguous, after a check that they are what ``inputs`` asks for.

    Raises ``ArtifactError`` for the first one that is not; a symbolic dimension is the same throughout.
    """
    if len(arrays) != len(inputs):
        wanted = "; ".join(map(str, inputs)) or "none"
        raise ArtifactError(
            f"the model takes {len(inputs)} inputs but {len(arrays)} were given; it takes: {wanted}"
        )
    seen: dict[str, int] = {}
    return [_check_array(info, array, seen) for info, array in zip(inputs, arrays, strict=True)]


def _check_array(info: TensorInfo, array: np.ndarray, seen: dict[str, int]) -> np.ndarray:
    dtype = numpy_dtype(info.dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)  # NumPy's files do not name the types of ml_dtypes
    if array.dtype != dtype:
        raise ArtifactError(
            f"the input {info} was given an array of {array.dtype}: convert it to {info.dtype}"
        )
    expected = [seen.setdefault(d, n) if isinstance(d, str) else d for d, n in zip(info.shape, array.shape)]
    if len(array.shape) != len(info.shape) or list(array.shape) != expected:
        given = " x ".join(map(str, array.shape)) or "a single number"
        raise ArtifactError(f"the input {info} was given an array of shape {given}")
    return np.ascontiguousarray(array) if array.ndim else array
