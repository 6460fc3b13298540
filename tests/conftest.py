# SPDX-License-Identifier: Apache-2.0
"""Every test runs strictly (a rule's bug is an error) and on two threads, so that loops are parallel."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["AUTOTIR_STRICT"] = "1"

import autotir_dlight as dl

THREADS = 2


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> None:
    """TVM's pool starts with the first compiled function and cannot grow afterwards."""
    assert dl.set_num_threads(THREADS) == THREADS


@pytest.fixture(scope="session")
def target() -> Any:
    """This machine."""
    return dl.host_target()


@pytest.fixture
def onnx_file(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes an ONNX model, given as ONNX's text form of a graph, and returns its path."""
    import onnx

    def write(graph: str, name: str = "model.onnx", functions: str = "", domains: str = "") -> Path:
        header = f'<ir_version: 8, opset_import: ["" : 17{domains}]>'
        path = tmp_path / name
        path.write_bytes(onnx.parser.parse_model(header + graph + functions).SerializeToString())
        return path

    return write
