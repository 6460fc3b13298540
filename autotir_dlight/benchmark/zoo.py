# SPDX-License-Identifier: Apache-2.0
"""The models that ``bench models`` knows by name: those out of wheels, and networks with random weights."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..artifact import replacing
from ..errors import UserError
from ..frontend import TensorInfo
from . import fetch, transformers, vision
from .compare import random_inputs

# Part of the files' names in the cache: another one for models that are built differently.
EDITION = 1
BATCHES = (1, 8)
# Padding behind the text, in tokens.
_PADDING = 16


class KnownModel(Protocol):
    """A model by name: its file, the shapes of its inputs, and arrays for them."""

    @property
    def name(self) -> str:
        """How it is asked for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its inputs by name."""

    def path(self) -> Path:
        """The ONNX file, made or fetched unless it is in the cache."""

    def inputs(self, infos: Sequence[TensorInfo]) -> list[np.ndarray]:
        """Arrays that the model has something to say about, one for each of its inputs."""


@dataclass(frozen=True)
class BuiltModel:
    """A network with random weights at one batch size; the file serves every batch size."""

    network: str
    batch: int
    build: Callable[[], Any]
    input_shapes: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """``resnet50`` for a batch of one, ``resnet50-b8`` for one of eight."""
        return self.network if self.batch == 1 else f"{self.network}-b{self.batch}"

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its inputs by name."""
        return {name: (self.batch, *shape) for name, shape in self.input_shapes.items()}

    def path(self) -> Path:
        """The ONNX file in the cache, built where it is not there."""
        path = fetch.cache_folder() / f"{self.network}-random-{EDITION}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                draft.write_bytes(self.build().SerializeToString())
        return path

    def inputs(self, infos: Sequence[TensorInfo]) -> list[np.ndarray]:
        """Images of noise, or text of random words with padding behind it."""
        if "input_ids" not in self.shapes:
            return random_inputs(infos)
        rng = np.random.default_rng(0)
        shape = self.shapes["input_ids"]
        arrays = {
            "input_ids": rng.integers(0, transformers.VOCABULARY, shape, "int64"),
            "attention_mask": np.ones(shape, "int64"),
            "token_type_ids": np.zeros(shape, "int64"),
        }
        arrays["attention_mask"][:, -_PADDING:] = 0
        return [arrays[info.name] for info in infos]


_IMAGE = {"image": vision.IMAGE}
_TEXT = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (transformers.SEQUENCE,))
_NETWORKS: dict[str, tuple[Callable[[], Any], Mapping[str, tuple[int, ...]]]] = {
    "resnet50": (vision.resnet50, _IMAGE),
    "mobilenetv3": (vision.mobilenet_v3, _IMAGE),
    "vit-b16": (transformers.vit, _IMAGE),
    "bert-base": (transformers.bert, _TEXT),
}


def known_models() -> dict[str, KnownModel]:
    """Every model by name, in the order of the table."""
    models: list[KnownModel] = list(fetch.MODELS.values())
    for network, (build, shapes) in _NETWORKS.items():
        models += [BuiltModel(network, batch, build, shapes) for batch in BATCHES]
    return {model.name: model for model in models}


def select(patterns: Sequence[str]) -> list[KnownModel]:
    """The models whose names match any of ``patterns`` (as in a shell); all for none.

    Raises ``UserError`` for a pattern that matches nothing.
    """
    known = known_models()
    wanted: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching:
            raise UserError(
                f"no model is named {pattern!r} and there is no such file: give an ONNX file, or one of "
                f"{', '.join(known)}"
            )
        wanted.update(matching)
    return [model for name, model in known.items() if not patterns or name in wanted]
