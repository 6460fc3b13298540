# SPDX-License-Identifier: Apache-2.0
"""CPUs that this computer is not: the scheduled corpus compiles for each of them."""

import re

import corpus
import pytest
import tvm

import autotir_dlight as dl

TARGETS = {
    "sve": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"},
    "arm, 32 bits": {"kind": "llvm", "mtriple": "armv7-linux-gnueabihf", "mattr": ["+neon"]},
    "risc-v": {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "sifive-p670"},
    "c": {"kind": "c"},
}
KINDS = ("odd", "prime", "dynamic", "batch")
# TVM's C code generator has no mathematics library.
NOT_IN_C = ("exp", "cosh", "softmax", "softmax of columns")


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_compiles(name):
    attrs = TARGETS[name] | ({"opt-level": 0} if TARGETS[name]["kind"] == "llvm" else {})
    target = tvm.target.Target(attrs)
    cases = [case for case in corpus.cases() if case.kind in KINDS]
    if name == "c":
        cases = [case for case in cases if case.workload.name not in NOT_IN_C]
    functions = {re.sub(r"\W", "_", case.id): case.build() for case in cases}
    with target:
        mod = dl.ApplyDefaultSchedule(*dl.rules(target))(tvm.IRModule(functions))
    named = {
        gvar.name_hint: f.with_attr("global_symbol", gvar.name_hint) for gvar, f in mod.functions.items()
    }
    built = tvm.compile(tvm.IRModule(named), target=target)
    source = built.mod.inspect_source() if name == "c" else built.mod.inspect_source("ll")
    assert all(function in source for function in named)
