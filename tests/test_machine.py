# SPDX-License-Identifier: Apache-2.0
"""The machine model: from targets to numbers, checked without TVM, and its tables against LLVM's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotir_dlight import machine as module
from autotir_dlight.machine import (
    ARM_FEATURES,
    CPU_MODELS,
    VECTOR_ISAS,
    X86_FEATURES,
    CpuMachine,
    MicroKernel,
    dtype_bits,
    normal_arch,
    with_needs,
    without,
)

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"
KIB, MIB = 1024, 1024 * 1024


def machine(triple=X86, kind="llvm", **attrs):
    attrs = {"mtriple": triple, **{name.replace("_", "-"): value for name, value in attrs.items()}}
    return CpuMachine.from_target(SimpleNamespace(kind=SimpleNamespace(name=kind), attrs=attrs))


IMPORT_ALONE = """
import importlib, sys, types
for name, folder in (("autotir_dlight", {root!r}), ("autotir_dlight.cpu", {root!r} + "/cpu")):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [folder]
loaded = importlib.import_module("autotir_dlight.{module}")
heavy = ("tvm", "tvm_ffi", "numpy")
print(loaded.__name__, [name for name in sys.modules if name.partition(".")[0] in heavy])
"""


@pytest.mark.parametrize("name", ["machine", "settings", "knobs", "report", "errors", "cpu.blocking"])
def test_what_only_calculates_imports_no_tvm(name):
    """Without the packages' ``__init__``, which import everything."""
    code = IMPORT_ALONE.format(root=str(Path(module.__file__).parent), module=name)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"autotir_dlight.{name} []"


@pytest.mark.parametrize(
    ("mcpu", "bits", "registers", "features", "missing"),
    [
        ("", 128, 16, "sse2", "sse3 avx"),
        ("x86-64", 128, 16, "sse2", "sse3 avx"),
        ("x86-64-v2", 128, 16, "sse4.2 popcnt", "avx"),
        ("x86-64-v3", 256, 16, "avx2 fma f16c bmi2", "avx512f avxvnni"),
        ("x86-64-v4", 512, 32, "avx512bw avx512vl", "avx512vnni"),
        ("sandybridge", 256, 16, "avx", "avx2 fma"),
        ("haswell", 256, 16, "avx2 fma", "avx512f"),
        ("skylake", 256, 16, "avx2 fma", "avx512f"),
        ("skylake-avx512", 512, 32, "avx512bw avx512vl", "avx512vnni"),
        ("cascadelake", 512, 32, "avx512vnni", "avx512bf16"),
        ("icelake-server", 512, 32, "avx512vnni avx512vbmi", "avx512bf16 avx512fp16"),
        ("sapphirerapids", 512, 32, "avx512bf16 avx512fp16 amx-int8 amx-bf16 avxvnni", "amx-fp16"),
        ("alderlake", 256, 16, "avx2 avxvnni", "avx512f avx512vnni"),
        ("znver2", 256, 16, "avx2 fma", "avx512f vaes"),
        ("znver4", 512, 32, "avx512bf16 avx512vnni", "avxvnni avx512fp16"),
        ("znver5", 512, 32, "avx512bf16 avxvnni", "avx512fp16"),
    ],
)
def test_x86_targets(mcpu, bits, registers, features, missing):
    found = machine(mcpu=mcpu) if mcpu else machine()
    assert (found.arch, found.vector_bits, found.vector_registers) == ("x86_64", bits, registers)
    assert not found.scalable
    assert found.has(*features.split())
    assert not found.features & set(missing.split())


@pytest.mark.parametrize(
    ("mcpu", "features", "missing", "scalable"),
    [
        ("", "neon", "dotprod sve", False),
        ("cortex-a53", "neon", "dotprod fullfp16", False),
        ("cortex-a76", "dotprod fullfp16", "i8mm bf16 sve", False),
        ("neoverse-n1", "dotprod fullfp16", "i8mm sve", False),
        ("neoverse-v1", "sve i8mm bf16", "sve2 sme", True),
        ("neoverse-v2", "sve2 i8mm bf16", "sme", True),
        ("apple-m1", "dotprod fullfp16", "i8mm sve", False),
        ("apple-m2", "i8mm bf16", "sme sve", False),
        ("apple-m4", "i8mm bf16 sme sme2", "sve", False),
    ],
)
def test_arm_targets(mcpu, features, missing, scalable):
    found = machine(ARM, mcpu=mcpu) if mcpu else machine(ARM)
    assert (found.arch, found.vector_bits, found.vector_registers) == ("aarch64", 128, 32)
    assert found.scalable == scalable
    assert found.has(*features.split())
    assert not found.features & set(missing.split())


def test_mattr_adds_what_a_feature_needs_and_takes_what_needs_it():
    assert machine(mattr=["+avx2", "+fma"]).vector_bits == 256
    assert machine(mattr=["+avx512vnni"]).has("avx512f", "avx2", "fma", "sse4.2")
    assert machine(mcpu="znver4", mattr=["-avx512f"]).vector_bits == 256
    assert not machine(mcpu="znver4", mattr=["-avx512f"]).features & {"avx512vnni", "avx512bf16"}
    assert machine(mcpu="znver4", mattr=["-avx"]).vector_bits == 128
    assert machine(mcpu="skylake", mattr=["-avx", "+avx512f"]).has("avx512f", "avx2")
    assert not machine(mcpu="skylake", mattr=["+avx512f", "-avx"]).has("avx")
    assert machine(ARM, mattr=["+v8.6a"]).has("dotprod", "i8mm", "bf16")
    assert machine(ARM, mattr=["+sve2"]).scalable
    assert not machine(ARM, mcpu="neoverse-v2", mattr=["-sve"]).scalable


def test_vector_width_follows_the_target():
    assert machine(mcpu="x86-64-v4", mattr=["+prefer-256-bit"]).vector_bits == 256
    assert machine(mcpu="x86-64-v4", mattr=["+prefer-128-bit"]).vector_bits == 128
    assert machine(mcpu="x86-64-v4", vector_width=256).vector_bits == 256
    assert machine(mcpu="x86-64-v3", vector_width=512).vector_bits == 256
    assert machine(mcpu="x86-64-v4", mattr=["+prefer-256-bit"]).vector_registers == 32
    assert machine("riscv64-linux-gnu", mattr=["+v", "+zvl256b"]).vector_bits == 256
    assert machine("riscv64-linux-gnu", mattr=["+v"]).scalable


def test_cores_come_from_the_target_or_are_a_fixed_number():
    assert machine(num_cores=12).cores == 12
    assert machine().cores == module.DEFAULT_CORES
    with pytest.raises(ValueError, match="cores must be at least 1"):
        machine(num_cores=0)


@pytest.mark.parametrize(
    ("triple", "mcpu", "l1", "l2", "line"),
    [
        (X86, "skylake-avx512", 32 * KIB, 1 * MIB, 64),
        (X86, "sapphirerapids", 48 * KIB, 2 * MIB, 64),
        (X86, "znver3", 32 * KIB, 512 * KIB, 64),
        (ARM, "neoverse-v1", 64 * KIB, 1 * MIB, 64),
        (ARM, "apple-m1", 128 * KIB, 3 * MIB, 128),
    ],
)
def test_caches_come_from_the_table(triple, mcpu, l1, l2, line):
    found = machine(triple, mcpu=mcpu)
    assert (found.l1_bytes, found.l2_bytes, found.line_bytes) == (l1, l2, line)
    assert found.sources["l2_bytes"] == f"mcpu {mcpu}"


def test_an_unknown_cpu_is_the_plain_baseline_as_it_is_for_llvm():
    found = machine(mcpu="nonesuch")
    assert replace(found, sources=machine().sources) == machine()
    assert found.sources["features"] == "default for x86-64 (mcpu nonesuch is not in the table)"
    assert not machine(mcpu="neoverse-v2").has("neon")


def test_an_unknown_architecture_has_modest_numbers():
    found = machine("wasm32-unknown-unknown")
    assert (found.arch, found.vector_bits, found.vector_registers) == ("generic", 128, 16)


def test_the_c_code_generator_has_no_vectors():
    found = machine(kind="c", mcpu="skylake-avx512")
    assert found.vector_bits == 0
    assert found.lanes("float32") == 1


def test_a_target_that_is_no_cpu_is_refused():
    with pytest.raises(ValueError, match="target kind 'cuda' is not a CPU; give a target of kind 'llvm'"):
        machine(kind="cuda")


def test_without_a_triple_the_architecture_is_this_computers(monkeypatch):
    monkeypatch.setattr(module.platform, "machine", lambda: "arm64")
    target = SimpleNamespace(kind=SimpleNamespace(name="llvm"), attrs={})
    found = CpuMachine.from_target(target)
    assert (found.arch, found.sources["arch"]) == ("aarch64", "this computer")


def test_every_number_has_a_source():
    for found in (machine(), machine(ARM, mcpu="apple-m4"), machine(kind="c"), machine("wasm32")):
        named = {item.name for item in fields(CpuMachine)} - {"sources"}
        assert set(found.sources) == named
        assert all(found.sources.values())
    with pytest.raises(ValueError, match=r"CpuMachine\.l2_bytes has no source"):
        replace(machine(), sources={k: v for k, v in machine().sources.items() if k != "l2_bytes"})


def test_a_machine_is_a_value():
    assert machine(mcpu="znver3") == machine(mcpu="znver3")
    assert hash(machine(mcpu="znver3")) == hash(machine(mcpu="znver3"))
    with pytest.raises(FrozenInstanceError):
        machine().cores = 3
    with pytest.raises(TypeError):
        machine().sources["cores"] = "a guess"


def test_lanes_and_chains():
    found = machine(mcpu="skylake-avx512")
    lanes = {d: found.lanes(d) for d in ("float64", "float32", "float16", "bfloat16", "int8", "bool")}
    assert lanes == {"float64": 8, "float32": 16, "float16": 32, "bfloat16": 32, "int8": 64, "bool": 64}
    assert found.chains == 8
    assert machine(mcpu="haswell").chains == 10


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("float32", 32), ("bfloat16", 16), ("uint8", 8), ("bool", 8), ("float8_e4m3fn", 8), ("int64", 64)],
)
def test_dtype_bits(dtype, bits):
    assert dtype_bits(dtype) == bits


@pytest.mark.parametrize("dtype", ["handle", "", "32"])
def test_dtype_bits_refuses_what_is_no_scalar(dtype):
    with pytest.raises(ValueError, match="not the name of a scalar type"):
        dtype_bits(dtype)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("x86_64-pc-linux-gnu", "x86_64"),
        ("AMD64", "x86_64"),
        ("arm64-apple-darwin", "aarch64"),
        ("aarch64-linux-gnu", "aarch64"),
        ("riscv64", "riscv64"),
        ("armv7l", "generic"),
        ("i686-linux", "generic"),
    ],
)
def test_normal_arch(name, arch):
    assert normal_arch(name) == arch


def llvm_features(triple, **attrs):
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features

    target = Target({"kind": "llvm", "mtriple": triple, **attrs})
    return frozenset(map(str, llvm_get_cpu_features(target))) & (X86_FEATURES | ARM_FEATURES)


@pytest.mark.parametrize("triple", [X86, ARM])
def test_the_table_of_cpus_is_llvms(triple):
    for name, model in CPU_MODELS[normal_arch(triple)].items():
        ours = model.features & (X86_FEATURES | ARM_FEATURES)
        assert ours == llvm_features(triple, mcpu=name), name


@pytest.mark.parametrize("triple", [X86, ARM])
def test_what_a_feature_needs_is_what_llvm_adds_to_it(triple):
    known = X86_FEATURES if triple == X86 else ARM_FEATURES
    base = llvm_features(triple)
    for feature in sorted(known - base):
        ours = (with_needs([feature]) | base) & known
        assert ours == llvm_features(triple, mattr=[f"+{feature}"]), feature


@pytest.mark.parametrize("feature", ["avx", "avx2", "avx512f", "avx512bw", "sse4.2"])
def test_what_a_missing_feature_takes_along_is_what_llvm_takes(feature):
    rest = without(CPU_MODELS["x86_64"]["znver4"].features, feature) & X86_FEATURES
    assert rest == llvm_features(X86, mcpu="znver4", mattr=[f"-{feature}"])


def test_a_real_target_is_read():
    from tvm.target import Target

    config = {"kind": "llvm", "mtriple": X86, "mcpu": "cascadelake", "mattr": ["-avx512vnni"], "num-cores": 3}
    found = CpuMachine.from_target(Target(config))
    assert (found.cores, found.vector_bits) == (3, 512)
    assert not found.has("avx512vnni")


def kernel(**changes):
    row = {
        "isa": "avx2",
        "mr": 6,
        "nr": 16,
        "kr": 1,
        "in_dtype": "float32",
        "acc_dtype": "float32",
        "requires": frozenset({"avx2", "fma"}),
        "accumulators": 12,
        "why": "12 chains hide 2 ports of latency 5",
    }
    return MicroKernel(**{**row, **changes})


def test_a_micro_kernel_that_fits():
    row = kernel()
    assert (row.registers, row.lanes, str(row)) == (15, 8, "avx2 6x16x1 float32->float32")
    assert row.runs_on(machine(mcpu="haswell"))
    assert not row.runs_on(machine(mcpu="sandybridge"))


def test_registers_count_what_an_instruction_reads():
    dot = {"isa": "avx512", "nr": 32, "kr": 4, "in_dtype": "int8", "acc_dtype": "int32"}
    assert kernel(**dot, mr=14, accumulators=28).registers == 31
    widened = kernel(mr=4, in_dtype="int8", acc_dtype="int32", accumulators=8)
    assert widened.registers == 11


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"isa": "mmx"}, "no such instruction set; known are generic, sse"),
        ({"mr": 0, "accumulators": 0}, "must be at least 1"),
        ({"why": " "}, "say in 'why'"),
        ({"nr": 12, "accumulators": 9}, "nr must fill whole vectors of 256 bits, a row has 384 bits"),
        ({"accumulators": 10}, "the tile takes 12 accumulators, not 10"),
        ({"mr": 7, "accumulators": 14}, "needs 17 vector registers and avx2 has 16; take a smaller mr or nr"),
        ({"in_dtype": "handle"}, "not the name of a scalar type"),
    ],
)
def test_a_micro_kernel_that_does_not_fit_is_refused(changes, complaint):
    with pytest.raises(ValueError) as found:
        kernel(**changes)
    assert complaint in str(found.value)


def test_instruction_sets_agree_with_the_machine():
    for isa, triple, mcpu in [
        ("sse", X86, "x86-64"),
        ("avx2", X86, "x86-64-v3"),
        ("avx512", X86, "x86-64-v4"),
        ("neon", ARM, "cortex-a53"),
    ]:
        found = machine(triple, mcpu=mcpu)
        assert (found.vector_bits, found.vector_registers) == (
            VECTOR_ISAS[isa].vector_bits,
            VECTOR_ISAS[isa].registers,
        )
