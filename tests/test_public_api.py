# SPDX-License-Identifier: Apache-2.0
"""The public names, what importing them costs, and which module may import which."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import autotir_dlight as dl

PACKAGE = Path(dl.__file__).parent
PUBLIC = {
    "autotir_dlight": dl.__all__,
    "autotir_dlight.cpu": dl.cpu.__all__,
    "autotir_dlight.relax.fold": ["FoldConstants"],
    "autotir_dlight.relax.pipeline": ["pipeline", "graph_passes", "scheduling_passes", "lowering_passes"],
    "autotir_dlight.vector_math": ["VectorMath"],
    "autotir_dlight.knobs": ["Knob", "knob"],
    "autotir_dlight.tune": dl.tune.__all__,
}
# Import goes one way: a module may import those of its own layer and of the layers before it.
LAYERS = [
    {"report", "errors", "machine", "settings", "knobs"},
    {"_tvm"},
    {"expressions", "blocks"},
    {"patterns"},
    {"rule", "steps"},
    {"cpu"},
    {"rules"},
    {"tune.keys", "tune.space", "tune.records", "tune.lookup"},
    {"apply", "vector_math"},
    {"relax"},
    {"tune"},
]
WITHOUT_TVM = ["machine", "settings", "knobs", "report", "errors", "cpu.blocking"]


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PUBLIC.items() for n in names])
def test_public_name(module, name):
    assert getattr(importlib.import_module(module), name) is not None


def test_the_front_page_is_short():
    assert len((PACKAGE / "__init__.py").read_text().splitlines()) < 60


LOADED = """
import sys, tvm
before = set(sys.modules)
import autotir_dlight
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_importing_loads_no_extra_and_no_tensor_intrinsic():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "autotir_dlight" in loaded
    costly = ("tensor_intrin", "onnx", "onnxruntime", "onnxsim", "xgboost", "matplotlib", "torch", "tqdm")
    assert not [m for m in loaded if any(part in costly for part in m.split("."))]
    assert not [m for m in loaded if m.startswith(("autotir_dlight.cli", "autotir_dlight.benchmark"))]
    assert not [m for m in loaded if m.startswith("tvm.s_tir.meta_schedule") or "sqlite3" in m]


def imports_of(path):
    """The package's own modules that a file imports, at any level, as dotted names below the package."""
    here = list(path.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = here[: len(here) - node.level]
            module = node.module.split(".") if node.module else []
            names = [base + module] if module else [[*base, alias.name] for alias in node.names]
            found.update(".".join(name) for name in names)
    return found


def layer_of(name):
    """The layer of a module: its own, else its package's."""
    for known in (name, name.split(".")[0]):
        for position, layer in enumerate(LAYERS):
            if known in layer:
                return position
    return None


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def layered_files():
    return [p for p in sorted(PACKAGE.rglob("*.py")) if layer_of(module_name(p)) is not None]


@pytest.mark.parametrize("path", layered_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    own = layer_of(module_name(path))
    for name in imports_of(path):
        other = layer_of(name)
        assert other is None or other <= own, f"{path.name} imports {name} from a later layer"


@pytest.mark.parametrize("name", WITHOUT_TVM)
def test_integers_need_no_tvm(name):
    path = PACKAGE / (name.replace(".", "/") + ".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert not [n for n in names if n.split(".")[0] in ("tvm", "tvm_ffi")]
    assert all(n in WITHOUT_TVM for n in imports_of(path))


def test_only_one_module_imports_what_tvm_moves_about():
    moved = ("tvm.s_tir.schedule", "tvm.s_tir.stmt", "tvm.s_tir.dlight", "tvm.sym", "tvm.tirx")
    for path in PACKAGE.rglob("*.py"):
        if path.name == "_tvm.py" or path.parent.name in ("benchmark", "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            assert module is None or not module.startswith(moved), f"{path.name} imports {module}"
