# SPDX-License-Identifier: Apache-2.0
"""The README's code runs, block after block, as a reader would type it."""

import re
from pathlib import Path

import tvm
from tvm import relax

import autotir_dlight as dl
from autotir_dlight.extras import installed

README = Path(__file__).parents[1] / "README.md"


def test_code_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, w = (relax.Var(name, relax.TensorType((32, 32), "float32")) for name in "xw")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            result = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(result)
    names = {"mod": builder.get()}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        if "dl.tune" in block and not installed("xgboost"):
            continue
        exec(compile(block, str(README), "exec"), names)
    assert isinstance(names["executable"], relax.VMExecutable)
    made = ("scheduled", "ours", "upstreams", "mine", *(["tuned"] if installed("xgboost") else []))
    for name in made:
        functions = dict(names[name].functions_items()).values()
        kernels = [f for f in functions if isinstance(f, tvm.tirx.PrimFunc)]
        assert kernels and all("tirx.is_scheduled" in f.attrs for f in kernels), name
    with names["target"]:
        report = dl.Report()
        legalised = relax.transform.LegalizeOps()(names["mod"])
        dl.ApplyDefaultSchedule(names["Rows"](), *dl.rules(names["target"]), report=report)(legalised)
    assert {entry.rule for entry in report} == {"mine.Rows", "cpu.Matmul"}


def test_every_setting_is_named():
    text = README.read_text(encoding="utf-8")
    assert set(re.findall(r"AUTOTIR_[A-Z]+", text)) == {
        "AUTOTIR_DEBUG",
        "AUTOTIR_STRICT",
        "AUTOTIR_PLAN",
        "AUTOTIR_DUMP",
        "AUTOTIR_CACHE",
    }
