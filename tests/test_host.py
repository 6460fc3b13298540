# SPDX-License-Identifier: Apache-2.0
"""The host's target, cores and threads: parsers on the reports of other machines, and this one for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from autotir_dlight import host
from autotir_dlight.host import (
    HostCpu,
    cgroup_cores,
    choose_mcpu,
    detect_cpu,
    host_target,
    parse_arm_cpuinfo,
    parse_arm_hwcap,
    parse_macos_sysctl,
    parse_x86_cpuinfo,
    physical_cores,
    set_num_threads,
    usable_cores,
)
from autotir_dlight.machine import ARM_FEATURES, X86_FEATURES, CpuMachine

V3_FLAGS = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ht syscall
nx pdpe1gb rdtscp lm constant_tsc rep_good nopl cpuid pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 x2apic movbe
popcnt aes xsave avx f16c rdrand hypervisor lahf_lm abm 3dnowprefetch fsgsbase bmi1 avx2 smep bmi2 erms
invpcid
"""
ZEN4_WITHOUT_AVX512 = f"""{V3_FLAGS}
cmp_legacy cr8_legacy sse4a misalignsse osvw topoext rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec
xgetbv1 xsaves clzero xsaveerptr wbnoinvd arat umip pku ospke vaes vpclmulqdq gfni rdpid fsrm
"""
ZEN4_AVX512 = """
avx512f avx512dq avx512ifma avx512cd avx512bw avx512vl avx512_bf16 avx512vbmi avx512_vbmi2 avx512_vnni
avx512_bitalg avx512_vpopcntdq
"""
SKYLAKE_X = f"""{V3_FLAGS}
mpx avx512f avx512dq rdseed adx smap clflushopt clwb avx512cd avx512bw avx512vl xsaveopt xsavec
"""
N100 = f"""{V3_FLAGS}
rdseed adx smap clflushopt clwb sha_ni xsaveopt xsavec xsaves avx_vnni gfni vaes vpclmulqdq rdpid
"""
SAPPHIRE_RAPIDS = f"""{SKYLAKE_X} {ZEN4_AVX512}
sha_ni xsaves avx_vnni wbnoinvd gfni vaes vpclmulqdq rdpid cldemote movdiri movdir64b fsrm serialize tsxldtrk
amx_bf16 avx512_fp16 amx_tile amx_int8
"""


def x86_cpuinfo(vendor, *flags):
    """/proc/cpuinfo with one processor for each set of flags."""
    return "\n".join(
        f"processor\t: {k}\nvendor_id\t: {vendor}\ncpu family\t: 25\nmodel name\t: something\n"
        f"flags\t\t: {' '.join(words.split())}\nvmx flags\t: vnmi ept\nbugs\t\t: sysret_ss_attrs avx512f\n"
        for k, words in enumerate(flags)
    )


def arm_cpuinfo(features, *parts):
    return "\n".join(
        f"processor\t: {k}\nBogoMIPS\t: 2100.00\nFeatures\t: {features}\nCPU implementer\t: {implementer}\n"
        f"CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {part}\nCPU revision\t: 1\n"
        for k, (implementer, part) in enumerate(parts)
    )


GRAVITON2 = arm_cpuinfo(
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs",
    ("0x41", "0xd0c"),
    ("0x41", "0xd0c"),
)
GRAVITON3_FEATURES = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop "
    "sha3 sm3 sm4 asimddp sha512 sve asimdfhm dit uscat ilrcpc flagm ssbs paca pacg dcpodp svei8mm "
    "svebf16 i8mm bf16 rng"
)
GRAVITON3 = arm_cpuinfo(GRAVITON3_FEATURES, ("0x41", "0xd40"))


def implied_by(triple):
    def implied(mcpu):
        target = Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu})
        return frozenset(map(str, llvm_get_cpu_features(target)))

    return implied


X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"


def chosen(cpu, names=()):
    """mcpu, mattr, and the computing features that LLVM then uses."""
    triple = X86 if cpu.arch == "x86_64" else ARM
    cpu = HostCpu(cpu.arch, cpu.features, cpu.vendor, names or cpu.names)
    mcpu, mattr = choose_mcpu(cpu, implied_by(triple))
    config = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    target = Target({**config, "mattr": list(mattr)} if mattr else config)
    return mcpu, mattr, frozenset(map(str, llvm_get_cpu_features(target)))


X86_REPORTS = {
    "zen 4 without avx-512": ("AuthenticAMD", ZEN4_WITHOUT_AVX512, "znver3", 256),
    "zen 4": ("AuthenticAMD", f"{ZEN4_WITHOUT_AVX512} {ZEN4_AVX512}", "znver4", 512),
    "skylake-x": ("GenuineIntel", SKYLAKE_X, "skylake-avx512", 512),
    "n100": ("GenuineIntel", N100, "alderlake", 256),
    "sapphire rapids": ("GenuineIntel", SAPPHIRE_RAPIDS, "sapphirerapids", 512),
    "half an avx-512": ("GenuineIntel", f"{V3_FLAGS} avx512f avx512cd", "haswell", 512),
    "x86-64-v3, unknown vendor": ("Unheard Of", V3_FLAGS, "x86-64-v3", 256),
    "no fma": ("Unheard Of", V3_FLAGS.replace(" fma ", " "), "x86-64-v2", 256),
    "the oldest": ("GenuineIntel", "fpu cx8 cmov mmx fxsr sse sse2 lm", "x86-64", 128),
}


@pytest.mark.parametrize("report", X86_REPORTS)
def test_x86_hosts_get_what_they_have_and_nothing_else(report):
    vendor, flags, expected, bits = X86_REPORTS[report]
    cpu = parse_x86_cpuinfo(x86_cpuinfo(vendor, flags, flags))
    mcpu, mattr, features = chosen(cpu)
    assert mcpu == expected
    assert features & X86_FEATURES == cpu.features & X86_FEATURES
    assert features & host.X86_KNOWN <= cpu.features
    attrs = {"mtriple": X86, "mcpu": mcpu, "mattr": list(mattr)}
    machine = CpuMachine.from_target(Target({"kind": "llvm", **attrs}))
    assert machine.vector_bits == bits


def test_a_zen_4_that_hides_avx_512_is_not_called_one_though_llvm_does():
    cpu = parse_x86_cpuinfo(x86_cpuinfo("AuthenticAMD", ZEN4_WITHOUT_AVX512))
    mcpu, mattr, features = chosen(cpu, names=("znver4",))
    assert mcpu == "znver3"
    assert "+gfni" in mattr
    assert not [feature for feature in features if feature.startswith("avx512")]


def test_a_name_decides_between_equals_only():
    cpu = parse_x86_cpuinfo(x86_cpuinfo("GenuineIntel", N100))
    assert chosen(cpu, names=("gracemont",))[0] == "gracemont"
    assert chosen(cpu, names=("skylake",))[0] == "alderlake"
    assert chosen(cpu, names=("sapphirerapids",))[0] == "alderlake"


def test_tile_registers_are_used_where_the_kernel_grants_them(monkeypatch):
    reported = x86_cpuinfo("GenuineIntel", SAPPHIRE_RAPIDS)
    monkeypatch.setattr(host, "_llvm_reports", lambda has: frozenset())
    for granted in (True, False):
        monkeypatch.setattr(host, "may_use_tiles", lambda granted=granted: granted)
        cpu = host._detect_x86(reported)
        mcpu, mattr, features = chosen(cpu)
        assert mcpu == "sapphirerapids"
        assert bool(features & host.AMX) == granted
        assert ({"-amx-tile", "-amx-int8", "-amx-bf16"} <= set(mattr)) != granted


@pytest.mark.parametrize(
    ("report", "narrow"),
    [
        ("skylake-x", True),
        ("half an avx-512", False),
        ("sapphire rapids", False),
        ("zen 4", False),
        ("zen 4 without avx-512", False),
    ],
)
def test_only_cpus_whose_clock_drops_keep_the_hint_against_wide_vectors(report, narrow):
    vendor, flags, _, _ = X86_REPORTS[report]
    _, mattr, features = chosen(parse_x86_cpuinfo(x86_cpuinfo(vendor, flags)))
    assert ("prefer-256-bit" in features) == narrow
    assert ("-prefer-256-bit" in mattr) == (report == "sapphire rapids")


def test_the_hint_is_taken_off_a_plain_level_too():
    cpu = parse_x86_cpuinfo(x86_cpuinfo("Unheard Of", SAPPHIRE_RAPIDS))
    mcpu, mattr, features = chosen(cpu)
    assert (mcpu, "-prefer-256-bit" in mattr) == ("x86-64-v4", True)
    assert "prefer-256-bit" not in features


@pytest.mark.parametrize(("report", "register"), [("skylake-x", "ymm"), ("sapphire rapids", "zmm")])
def test_llvm_vectorises_what_is_left_to_it_as_wide_as_the_clock_allows(report, register):
    vendor, flags, _, _ = X86_REPORTS[report]
    mcpu, mattr, _ = chosen(parse_x86_cpuinfo(x86_cpuinfo(vendor, flags)))
    target = Target({"kind": "llvm", "mtriple": X86, "mcpu": mcpu, "mattr": list(mattr)})
    assembly = tvm.compile(vector_add, target=target).mod.inspect_source("asm")
    assert len(re.findall(rf"vaddps\s.*%{register}", assembly)) >= 1
    assert ("zmm" in assembly) == (register == "zmm")


def test_kernel_names_become_llvms():
    cpu = parse_x86_cpuinfo(x86_cpuinfo("GenuineIntel", SAPPHIRE_RAPIDS))
    assert cpu.vendor == "GenuineIntel"
    assert {"sse3", "sse4.1", "lzcnt", "avxvnni", "avx512fp16", "avx512vpopcntdq"} <= cpu.features
    assert not cpu.features & {"pni", "sse4_1", "abm", "avx_vnni", "hypervisor", "nx"}


def test_only_what_all_processors_have_counts():
    cpu = parse_x86_cpuinfo(x86_cpuinfo("GenuineIntel", f"{V3_FLAGS} avx512f", V3_FLAGS))
    assert "avx2" in cpu.features
    assert "avx512f" not in cpu.features


@pytest.mark.parametrize(
    "text", ["", "\0\0", "flags", "flags\t:\n", "processor: 0\nflags = avx2", "vmx flags : avx2"]
)
def test_malformed_cpuinfo_gives_no_features(text):
    assert parse_x86_cpuinfo(text) == HostCpu("x86_64")
    assert parse_arm_cpuinfo(text).features == frozenset()


def test_without_features_the_choice_is_the_baseline():
    assert choose_mcpu(HostCpu("x86_64"), implied_by(X86))[0] == "x86-64"
    assert choose_mcpu(HostCpu("aarch64"), implied_by(ARM))[0] == "generic"
    assert choose_mcpu(HostCpu("riscv64"), implied_by(X86)) == ("", ())


@pytest.mark.parametrize(
    ("text", "mcpu"),
    [
        (GRAVITON2, "neoverse-n1"),
        (GRAVITON3, "neoverse-v1"),
        (arm_cpuinfo(GRAVITON3_FEATURES.replace("sve ", ""), ("0x41", "0xd40")), "generic"),
        (arm_cpuinfo("fp asimd crc32", ("0x41", "0xd03"), ("0x41", "0xd08")), "cortex-a72"),
        (arm_cpuinfo("fp asimd", ("0x99", "0xd03")), "generic"),
        (arm_cpuinfo("fp asimd asimddp atomics asimdrdm", ("0x41", "0xfff")), "generic"),
    ],
    ids=["graviton 2", "graviton 3", "graviton 3 without sve", "big.LITTLE", "unknown maker", "unknown part"],
)
def test_arm_hosts_get_what_they_have_and_nothing_else(text, mcpu):
    cpu = parse_arm_cpuinfo(text)
    found, _, features = chosen(cpu)
    assert found == mcpu
    assert features & ARM_FEATURES == cpu.features & ARM_FEATURES


def test_hwcap_words_say_the_same_as_cpuinfo():
    bits = (1, 3, 6, 7, 8, 9, 10, 12, 15, 16, 20)
    found = parse_arm_hwcap(sum(1 << bit for bit in bits), 0)
    assert found == parse_arm_cpuinfo(GRAVITON2).features
    assert parse_arm_hwcap(1 << 22, 1 << 13 | 1 << 14 | 1 << 37) == {"sve", "i8mm", "bf16", "sme2"}
    assert parse_arm_hwcap(0, 0) == frozenset()


M2_SYSCTL = """hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_FP16: 1
hw.optional.arm.FEAT_FHM: 1
hw.optional.arm.FEAT_RDM: 1
hw.optional.arm.FEAT_LSE: 1
hw.optional.arm.FEAT_BF16: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_SME: 0
hw.optional.AdvSIMD: 1
hw.optional.floatingpoint: 1
machdep.cpu.brand_string: Apple M2 Pro
"""


def test_macos():
    cpu = parse_macos_sysctl(M2_SYSCTL)
    assert cpu.names == ("apple-m2",)
    assert cpu.features >= {"neon", "dotprod", "i8mm", "bf16"}
    assert "sme" not in cpu.features
    assert chosen(cpu)[0] == "apple-m2"
    no_bf16 = parse_macos_sysctl(M2_SYSCTL.replace("FEAT_BF16: 1", "FEAT_BF16: 0"))
    assert chosen(no_bf16)[0] == "generic"
    assert "bf16" not in chosen(no_bf16)[2]
    assert parse_macos_sysctl("sysctl: unknown oid") == HostCpu("aarch64")


def quota(files):
    return cgroup_cores(lambda path: files.get(path, ""))


V1 = "/sys/fs/cgroup/cpu"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "/sys/fs/cgroup/a/cpu.max": "150000 100000",
                "/sys/fs/cgroup/cpu.max": "max 100000",
            },
            1.5,
        ),
        ({"/proc/self/cgroup": "0::/../../host/path", "/sys/fs/cgroup/cpu.max": "300000 100000"}, 3),
        (
            {
                "/proc/self/cgroup": "11:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/",
                f"{V1},cpuacct/docker/abc/cpu.cfs_quota_us": "200000\n",
                f"{V1},cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "/proc/self/cgroup": "1:cpu:/docker/abc",
                f"{V1}/cpu.cfs_quota_us": "50000",
                f"{V1}/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "/proc/self/cgroup": "1:cpu:/",
                f"{V1}/cpu.cfs_quota_us": "-1",
                f"{V1}/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "lots"}, None),
        ({"/proc/self/cgroup": "0::/", "/sys/fs/cgroup/cpu.max": "100 0"}, None),
        ({"/proc/self/cgroup": "gibberish\n\n:::", "/sys/fs/cgroup/cpu.max": "100000 100000"}, None),
    ],
)
def test_cgroup_quotas(files, cores):
    assert quota(files) == cores


def test_hardware_threads_of_one_core_count_once():
    pairs = {0: "0,4\n", 4: "0,4\n", 1: "1,5\n", 5: "1,5\n"}
    assert physical_cores([0, 1, 4, 5], lambda cpu: pairs.get(cpu, "")) == 2
    assert physical_cores([0, 4], lambda cpu: pairs.get(cpu, "")) == 1
    assert physical_cores([7, 8], lambda cpu: pairs.get(cpu, "")) == 2


@pytest.mark.parametrize(("quota_cores", "cores"), [(None, 4), (2.9, 2), (0.25, 1), (64.0, 4)])
def test_usable_cores_are_limited_by_affinity_and_quota(monkeypatch, quota_cores, cores):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: {2, 3, 6, 7}, raising=False)
    monkeypatch.setattr(host, "_read", lambda path: "")
    monkeypatch.setattr(host, "cgroup_cores", lambda read: quota_cores)
    assert usable_cores() == cores


def test_without_affinity_the_system_is_asked(monkeypatch):
    psutil = pytest.importorskip("psutil")
    monkeypatch.delattr(host.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(host, "cgroup_cores", lambda read: None)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    assert usable_cores() == 8


def host_features():
    return frozenset(map(str, llvm_get_cpu_features(host_target())))


def test_the_host_target_claims_only_what_this_cpu_reports():
    cpu = detect_cpu()
    known = X86_FEATURES if cpu.arch == "x86_64" else ARM_FEATURES
    claimed = host_features() & known
    assert claimed == cpu.features & known
    assert CpuMachine.from_target(host_target()).features & known == claimed


def test_the_kernel_and_cpuid_agree_about_this_cpu():
    cpuinfo = Path("/proc/cpuinfo")
    if detect_cpu().arch != "x86_64" or not cpuinfo.exists():
        pytest.skip("compares /proc/cpuinfo with x86's cpuid")
    found = parse_x86_cpuinfo(cpuinfo.read_text()).features
    assert found & X86_FEATURES == detect_cpu().features & X86_FEATURES


def test_where_the_kernel_says_nothing_cpuid_is_asked(monkeypatch):
    if detect_cpu().arch != "x86_64":
        pytest.skip("cpuid is an x86 instruction")
    everything = host_features()
    monkeypatch.setattr(host, "_read", lambda path: "")
    assert host_features() & X86_FEATURES == everything & X86_FEATURES


def test_the_host_target_is_deterministic_and_survives_json():
    target = host_target()
    assert str(target) == str(host_target())
    assert target.kind.name == "llvm"
    assert int(target.attrs["num-cores"]) == usable_cores() >= 1
    again = Target(json.loads(str(target)))
    assert str(again) == str(target)


@T.prim_func(s_tir=True)
def vector_add(
    A: T.Buffer((999,), "float32"), B: T.Buffer((999,), "float32"), C: T.Buffer((999,), "float32")
):
    for i in T.serial(999):
        with T.sblock("add"):
            vi = T.axis.spatial(999, i)
            C[vi] = A[vi] + B[vi]


def test_code_for_the_host_target_runs():
    sch = tvm.s_tir.Schedule(vector_add)
    (loop,) = sch.get_loops(sch.get_sblock("add"))
    lanes = CpuMachine.from_target(host_target()).lanes("float32")
    _, inner = sch.split(loop, [None, lanes])
    sch.vectorize(inner)
    a, b = (np.random.default_rng(seed).random(999, "float32") for seed in (0, 1))
    c = tvm.runtime.tensor(np.zeros(999, "float32"))
    tvm.compile(sch.mod, target=host_target())["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
    np.testing.assert_array_equal(c.numpy(), a + b)


COUNT_THREADS = """
import os, sys, warnings
import numpy as np, tvm
from tvm.script import tirx as T
from autotir_dlight.host import set_num_threads, usable_cores

@T.prim_func(s_tir=True)
def record(ids: T.Buffer((64,), "int64")):
    for i in T.parallel(64):
        with T.sblock("record"):
            vi = T.axis.spatial(64, i)
            ids[vi] = T.call_extern("int64", "pthread_self")

def threads():
    ids = tvm.runtime.tensor(np.zeros(64, "int64"))
    built["main"](ids)
    return len(set(ids.numpy().tolist()))

built = tvm.compile(record, target=tvm.target.Target({"kind": "llvm"}))
before = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
{steps}
after = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
assert before == after, (before, after)
"""


@pytest.fixture
def run_steps(tmp_path):
    """Run statements in a process of their own, where no pool has started; gives the lines they print."""

    def run(steps, **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TVM_", "OMP_"))}
        script = tmp_path / "script.py"
        script.write_text(COUNT_THREADS.replace("{steps}", steps))
        environment = {**clean, "PYTHONPATH": str(Path(host.__file__).parents[1]), **environment}
        command = [sys.executable, script]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


@pytest.mark.skipif(sys.platform == "win32", reason="counts POSIX threads")
def test_one_thread_is_one(run_steps):
    assert run_steps("print(set_num_threads(1), threads())") == ["1 1"]


@pytest.mark.skipif(sys.platform == "win32", reason="counts POSIX threads")
def test_the_default_is_the_usable_cores_or_what_the_user_set(run_steps):
    steps = "n = set_num_threads()\nprint(n == usable_cores(), threads() == n)"
    assert run_steps(steps) == ["True True"]
    assert run_steps("print(set_num_threads(), threads())", TVM_NUM_THREADS="3") == ["3 3"]
    assert run_steps("print(set_num_threads(), threads())", OMP_NUM_THREADS="2") == ["2 2"]


@pytest.mark.skipif(sys.platform == "win32", reason="counts POSIX threads")
def test_threads_can_be_lowered_and_raised_again_but_not_beyond_the_pool(run_steps):
    steps = """
import threading
print(set_num_threads(3), threads())
print(set_num_threads(2), threads())
seen = []
other = threading.Thread(target=lambda: seen.append(threads()))
other.start(); other.join()
print("another thread's:", seen)
print(set_num_threads(3), threads())
print(set_num_threads() == usable_cores())
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    print(set_num_threads(4), threads())
print([w.category.__name__ for w in found], "cannot grow to 4" in str(found[0].message))
"""
    expected = ["3 3", "2 2", "another thread's: [2]", "3 3", "True", "3 3", "['RuntimeWarning'] True"]
    if usable_cores() > 3:
        expected[4] = "False"
    assert run_steps(steps) == expected


@pytest.mark.parametrize("count", [0, -1, 1025, 1.5, True, "2"])
def test_a_senseless_number_of_threads_is_refused(count):
    with pytest.raises(ValueError, match="must be a whole number from 1 to 1024"):
        set_num_threads(count)


@pytest.mark.parametrize("text", ["many", "0", "-2"])
def test_a_malformed_variable_is_named(monkeypatch, text):
    monkeypatch.setenv("TVM_NUM_THREADS", text)
    with pytest.raises(ValueError, match=f"TVM_NUM_THREADS must be a whole number of threads, not '{text}'"):
        set_num_threads()
