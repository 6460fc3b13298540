# SPDX-License-Identifier: Apache-2.0
"""Over the whole corpus: names decide nothing, and the same input gives the same bytes in every process."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import corpus
import pytest
import tvm
from corpus import WORKLOADS
from tvm.s_tir import Schedule

import autotir_dlight as dl
from autotir_dlight.rule import Reject

# A fixed target: the digest below must not depend on the computer that runs the test.
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512", "mtriple": "x86_64-linux-gnu"})


def renamed(func):
    """``func`` with other names for all its parameters, buffers and blocks."""
    schedule = Schedule(func)
    root = schedule.get_sblock("root")
    names = {schedule.get(block).name_hint for block in schedule.get_child_blocks(root)}
    names |= {str(buffer.name) for buffer in (*func.params, *schedule.get(root).alloc_buffers)}
    text = func.with_attr("global_symbol", "main").script()
    for position, name in enumerate(sorted({re.sub(r"\W", "_", name) for name in names})):
        text, count = re.subn(rf"(?<![\w.]){name}(?!\w)", f"renamed{position}", text)
        assert count, f"{name} is not in the script"
    return tvm.script.from_source(text)


def decisions(func):
    """What every rule says of ``func``; a refusal without the name of the block that it is about."""
    found = []
    for rule in dl.rules(TARGET):
        decision = rule.decide(func, TARGET)
        if isinstance(decision, Reject):
            found.append((rule.name, decision.reason))
        else:
            found.append((rule.name, decision.plans, rule.describe(decision.match)))
    return found


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if w.name != "cumsum"], ids=lambda w: w.name)
def test_names_decide_nothing(workload):
    func = workload.func(next(iter(workload.extents)), workload.dtypes[0])
    other = renamed(func)
    assert other.script() != func.script()
    assert decisions(other) == decisions(func)


def test_other_blocks_of_the_module_decide_nothing():
    """A function gets the same schedule alone and among all others, in either order."""
    functions = {f"f{k}": w.func(next(iter(w.extents)), w.dtypes[0]) for k, w in enumerate(WORKLOADS[::4])}
    rules = dl.rules(TARGET)
    with TARGET:
        forward = dl.ApplyDefaultSchedule(*rules)(tvm.IRModule(functions))
        backward = dl.ApplyDefaultSchedule(*rules)(tvm.IRModule(dict(reversed(functions.items()))))
        for name, func in functions.items():
            alone = dl.ApplyDefaultSchedule(*dl.rules(TARGET))(tvm.IRModule({name: func}))
            saved = {tvm.ir.save_json(mod[name]) for mod in (forward, backward, alone)}
            assert len(saved) == 1, name


def digest() -> str:
    """A hash of the scheduled corpus, saved as JSON."""
    functions = {case.id: case.build() for case in corpus.cases()}
    with TARGET:
        mod = dl.ApplyDefaultSchedule(*dl.rules(TARGET))(tvm.IRModule(functions))
    text = "".join(tvm.ir.save_json(mod[name]) for name in functions)
    return hashlib.sha256(text.encode()).hexdigest()


def test_same_input_same_bytes_in_another_process():
    env = {**os.environ, "PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = "import test_names_and_order as t; print(t.digest())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=env,
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digest()
