# SPDX-License-Identifier: Apache-2.0
"""The options that commands share, and the checks of what is given for them."""

from __future__ import annotations

import argparse
from importlib import metadata
from typing import TYPE_CHECKING

from ..errors import ArtifactError, UserError

if TYPE_CHECKING:
    import numpy as np


def version() -> str:
    """The versions of this package and of TVM, read without importing either."""
    names = ("autotir-dlight", "apache-tvm")
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in names)
    except metadata.PackageNotFoundError:
        return "autotir-dlight, run from a folder without being installed"


def add_model(parser: argparse.ArgumentParser) -> None:
    """``MODEL.onnx``, ``--shape`` and ``--target``."""
    parser.add_argument("model", metavar="MODEL.onnx")
    add_shapes(parser)
    add_target(parser)


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """``--shape``."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=shape,
        metavar="NAME=1,3,320,320",
        help="the shape of an input whose dimensions the model leaves open; once for each such input",
    )


def add_target(parser: argparse.ArgumentParser) -> None:
    """``--target``."""
    parser.add_argument(
        "--target",
        default="host",
        metavar="T",
        help='"host" (default), a CPU name of LLVM such as x86-64-v3, or a TVM target in JSON',
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """``--input``."""
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        default=[],
        metavar="X.npy",
        help="an array for each of the model's inputs, in order",
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """``--threads``."""
    parser.add_argument(
        "--threads",
        type=positive,
        default=None,
        metavar="N",
        help="threads to run on (default: the usable cores)",
    )


def add_operators(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench ops``."""
    from ..benchmark.names import ON_OPERATORS

    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="operators by name or pattern, such as 'C2D-*' (default: all)",
    )
    parser.add_argument("--list", action="store_true", help="name the operators and run none")
    parser.add_argument("--plot", default="", metavar="FILE", help="draw the roofline (.png, .svg, .pdf)")
    add_target(parser)
    _add_turns(parser, ON_OPERATORS, 5)


def add_models(parser: argparse.ArgumentParser) -> None:
    """The options of ``bench models``."""
    from ..benchmark.names import PUBLIC

    parser.add_argument(
        "names",
        nargs="*",
        metavar="MODEL",
        help="models by name or pattern, such as 'resnet50*', or ONNX files (default: all that have a name)",
    )
    parser.add_argument("--list", action="store_true", help="name the models and run none")
    add_shapes(parser)
    add_target(parser)
    add_inputs(parser)
    _add_turns(parser, PUBLIC, 7)


def add_document(parser: argparse.ArgumentParser) -> None:
    """``--format`` and ``--out``."""
    parser.add_argument(
        "--format",
        choices=("md", "json"),
        default="md",
        help="a Markdown table (default) or one JSON document",
    )
    parser.add_argument("--out", default="", metavar="FILE", help="write it there instead of printing it")


def _add_turns(parser: argparse.ArgumentParser, contenders: tuple[str, ...], turns: int) -> None:
    parser.add_argument(
        "--contender",
        action="append",
        default=[],
        choices=contenders,
        help="who takes part, once for each (default: all installed)",
    )
    parser.add_argument(
        "--turns",
        type=positive,
        default=turns,
        metavar="N",
        help=f"turns that each takes (default: {turns})",
    )


def positive(text: str) -> int:
    """A positive whole number."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """``NAME=1,3,320,320`` as name and dimensions; names may hold ``=`` themselves."""
    name, equals, dims = text.rpartition("=")
    parts = dims.split(",") if dims else []
    if not name or not equals or not all(_is_integer(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=1,3,320,320")
    return name, tuple(int(part) for part in parts)


def _is_integer(text: str) -> bool:
    return text.strip().removeprefix("-").isdecimal()


def shapes(given: list[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """The shapes by name; raises ``UserError`` where an input is given two."""
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"--shape gives the input {name!r} more than once")
    return dict(given)


def arrays(paths: list[str]) -> list[np.ndarray]:
    """The arrays of ``.npy`` files; raises ``ArtifactError`` for any other file, pickled objects too."""
    import numpy as np

    loaded = []
    for path in paths:
        try:
            array = np.load(path, allow_pickle=False)
        except FileNotFoundError as err:
            raise ArtifactError(f"there is no file {path!r}: give a .npy file") from err
        except (OSError, ValueError, EOFError) as err:
            raise ArtifactError(f"{path!r} cannot be read, or is not a .npy file of numbers") from err
        if not isinstance(array, np.ndarray):
            raise ArtifactError(f"{path!r} holds several arrays: give a .npy file with one")
        loaded.append(array)
    return loaded
