# SPDX-License-Identifier: Apache-2.0
"""The computer at hand: a target with only what its CPU really has, its usable cores, TVM's thread pool.

LLVM guesses the CPU's name from its family and model. On a virtual machine that hides AVX-512 the guess is
still ``znver4``, and code compiled for it dies with SIGILL. Here the features that the operating system
reports decide: a named CPU is taken only when all of its instructions for computing are there, else one of
the levels x86-64 to x86-64-v4 (``generic`` on Arm) with the rest as ``mattr``.

The parsers are functions of text, so that every machine's report can be a test. TVM is imported where it is
used.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from .machine import ARM_FEATURES, CPU_MODELS, X86_FEATURES, normal_arch

if TYPE_CHECKING:
    from tvm.target import Target

MAX_THREADS = 1024

# Linux's name of a feature -> LLVM's, where they differ.
_X86_RENAMED = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "rdrand": "rdrnd",
    "3dnowprefetch": "prfchw",
    "pclmulqdq": "pclmul",
    "sha_ni": "sha",
    "user_shstk": "shstk",
    "avx_vnni": "avxvnni",
    "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16",
    "avx_ne_convert": "avxneconvert",
    "avx_ifma": "avxifma",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_vp2intersect": "avx512vp2intersect",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "amx_fp16": "amx-fp16",
}
_X86_SAME = frozenset(
    """sse sse2 ssse3 sse4a avx avx2 fma fma4 xop f16c popcnt bmi2 tbm movbe cx16 avx512f avx512bw avx512cd
    avx512dq avx512vl avx512ifma avx512vbmi gfni vaes vpclmulqdq adx aes cldemote clflushopt clwb clzero
    enqcmd fsgsbase fsrm invpcid movdir64b movdiri mwaitx pconfig pku rdpid rdpru rdseed serialize tsxldtrk
    waitpkg wbnoinvd xsave xsavec xsaveopt xsaves""".split()
)
# Parts of a named CPU that Linux has no flag for; no compiler emits them for computing.
_X86_UNREPORTED = frozenset({"hreset", "kl", "ptwrite", "uintr", "widekl"})
AMX = frozenset({"amx-tile", "amx-int8", "amx-bf16", "amx-fp16"})
# The system call arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), see Linux's
# Documentation/arch/x86/xstate.rst.
ASK_FOR_TILES = (158, 0x1023, 18)

# LLVM gives Intel's CPUs with AVX-512 a hint to vectorise loops with 256 bits, for the sake of the first
# ones (Skylake-X, Cascade Lake), which lower the clock of the whole core once 512-bit vectors are in use.
# From Ice Lake and Zen 4 on the clock hardly changes and the hint only halves the width of the loops that
# a schedule leaves to LLVM. Those CPUs are the ones with AVX512-VBMI2.
_NARROW_HINT = "prefer-256-bit"
_STEADY_CLOCK = "avx512vbmi2"

_ARM_LINUX = {
    "asimd": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "asimdfhm": "fp16fml",
    "asimdrdm": "rdm",
    "atomics": "lse",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
    "sme2": "sme2",
    "aes": "aes",
    "sha2": "sha2",
    "sha3": "sha3",
    "crc32": "crc",
    "lrcpc": "rcpc",
    "jscvt": "jsconv",
    "fcma": "complxnum",
    "rng": "rand",
    "svebitperm": "sve-bitperm",
}
# Bits of getauxval(AT_HWCAP) and getauxval(AT_HWCAP2), from the kernel's arch/arm64 uapi/asm/hwcap.h.
_ARM_HWCAP = {
    1: "neon",
    3: "aes",
    6: "sha2",
    7: "crc",
    8: "lse",
    10: "fullfp16",
    12: "rdm",
    13: "jsconv",
    14: "complxnum",
    15: "rcpc",
    17: "sha3",
    20: "dotprod",
    22: "sve",
    23: "fp16fml",
}
_ARM_HWCAP2 = {1: "sve2", 4: "sve-bitperm", 13: "i8mm", 14: "bf16", 16: "rand", 23: "sme", 37: "sme2"}

# "CPU implementer" and "CPU part" of /proc/cpuinfo -> LLVM's name.
_ARM_PARTS = {
    "41": """d03 cortex-a53 d04 cortex-a35 d05 cortex-a55 d07 cortex-a57 d08 cortex-a72 d09 cortex-a73
    d0a cortex-a75 d0b cortex-a76 d0c neoverse-n1 d0d cortex-a77 d40 neoverse-v1 d41 cortex-a78
    d44 cortex-x1 d46 cortex-a510 d47 cortex-a710 d48 cortex-x2 d49 neoverse-n2 d4a neoverse-e1
    d4d cortex-a715 d4e cortex-x3 d4f neoverse-v2 d80 cortex-a520 d81 cortex-a720 d82 cortex-x4
    d84 neoverse-v3 d85 cortex-x925 d87 cortex-a725 d8e neoverse-n3""",
    "43": "0af thunderx2t99",
    "46": "001 a64fx",
    "51": "001 oryon-1",
    "61": """022 apple-m1 023 apple-m1 024 apple-m1 025 apple-m1 028 apple-m1 029 apple-m1
    032 apple-m2 033 apple-m2 034 apple-m2 035 apple-m2 038 apple-m2 039 apple-m2""",
    "c0": "ac3 ampere1 ac4 ampere1a",
}

_MACOS_FLAGS = {
    "hw.optional.AdvSIMD": "neon",
    "hw.optional.neon": "neon",
    "hw.optional.arm.FEAT_DotProd": "dotprod",
    "hw.optional.arm.FEAT_FP16": "fullfp16",
    "hw.optional.neon_fp16": "fullfp16",
    "hw.optional.arm.FEAT_FHM": "fp16fml",
    "hw.optional.armv8_2_fhm": "fp16fml",
    "hw.optional.arm.FEAT_RDM": "rdm",
    "hw.optional.arm.FEAT_LSE": "lse",
    "hw.optional.armv8_1_atomics": "lse",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.arm.FEAT_SME2": "sme2",
    "hw.optional.arm.FEAT_AES": "aes",
    "hw.optional.arm.FEAT_SHA256": "sha2",
    "hw.optional.arm.FEAT_SHA3": "sha3",
    "hw.optional.arm.FEAT_LRCPC": "rcpc",
    "hw.optional.armv8_crc32": "crc",
    "hw.optional.arm.FEAT_JSCVT": "jsconv",
    "hw.optional.arm.FEAT_FCMA": "complxnum",
}

X86_KNOWN = frozenset(_X86_RENAMED.values()) | _X86_SAME | _X86_UNREPORTED
_ARM_KNOWN = frozenset(_ARM_LINUX.values())


@dataclass(frozen=True)
class HostCpu:
    """What an operating system says about its CPU.

    Attributes
    ----------
    arch : as in :class:`~autotir_dlight.machine.CpuMachine`
    features : LLVM's names of what every core has; empty where the report says nothing
    vendor : ``vendor_id`` of an x86 CPU, ``""`` elsewhere
    names : LLVM names that the CPU may go by; a hint only
    """

    arch: str
    features: frozenset[str] = frozenset()
    vendor: str = ""
    names: tuple[str, ...] = ()


def _fields(text: str, key: str) -> list[str]:
    """The values of all lines ``key : value``, in order."""
    return re.findall(rf"^{re.escape(key)}[ \t]*:[ \t]*(.*?)[ \t]*$", text, flags=re.MULTILINE)


def _common(lists: Iterable[str]) -> frozenset[str]:
    """The words that every one of the lists has."""
    sets = [frozenset(words.split()) for words in lists]
    return frozenset.intersection(*sets) if sets else frozenset()


def parse_x86_cpuinfo(text: str) -> HostCpu:
    """Read Linux's ``/proc/cpuinfo`` of an x86 CPU; text without flags gives no features."""
    flags = _common(_fields(text, "flags"))
    features = {_X86_RENAMED.get(flag, flag) for flag in flags if flag in _X86_RENAMED or flag in _X86_SAME}
    return HostCpu("x86_64", frozenset(features), vendor=next(iter(_fields(text, "vendor_id")), ""))


def parse_arm_cpuinfo(text: str) -> HostCpu:
    """Read Linux's ``/proc/cpuinfo`` of an Arm CPU; on big.LITTLE the features are those of all cores."""
    features = {_ARM_LINUX[flag] for flag in _common(_fields(text, "Features")) if flag in _ARM_LINUX}
    names: list[str] = []
    implementers, parts = _fields(text, "CPU implementer"), _fields(text, "CPU part")
    for implementer, part in zip(implementers, parts, strict=False):
        words = _ARM_PARTS.get(implementer.removeprefix("0x"), "").split()
        name = dict(zip(words[::2], words[1::2], strict=True)).get(part.removeprefix("0x"))
        if name and name not in names:
            names.append(name)
    return HostCpu("aarch64", frozenset(features), names=tuple(names))


def parse_arm_hwcap(hwcap: int, hwcap2: int) -> frozenset[str]:
    """The features in the words that ``getauxval`` gives for ``AT_HWCAP`` and ``AT_HWCAP2``."""
    first = {name for bit, name in _ARM_HWCAP.items() if hwcap >> bit & 1}
    return frozenset(first | {name for bit, name in _ARM_HWCAP2.items() if hwcap2 >> bit & 1})


def parse_macos_sysctl(text: str) -> HostCpu:
    """Read the output of ``sysctl hw.optional machdep.cpu.brand_string`` of an Apple CPU."""
    features = {name for key, name in _MACOS_FLAGS.items() if "1" in _fields(text, key)}
    brand = next(iter(_fields(text, "machdep.cpu.brand_string")), "")
    found = re.match(r"Apple (M\d+)", brand)
    return HostCpu("aarch64", frozenset(features), names=(f"apple-{found[1].lower()}",) if found else ())


def choose_mcpu(cpu: HostCpu, implied: Callable[[str], frozenset[str]]) -> tuple[str, tuple[str, ...]]:
    """``mcpu`` and ``mattr`` that together name no feature the CPU lacks.

    ``implied`` tells the features that LLVM gives a name. A named CPU is taken when it has no computing
    feature too many; of several the one that has most of them, then the one that fits best in the others,
    then one of ``cpu.names``, then the first of the table. AMX and features for other purposes that it has
    too many (a hypervisor hides some) are taken off by ``mattr``, and LLVM's hint against 512-bit vectors
    where these do not slow the CPU's clock.
    Returns ``("", ())`` for an architecture without a table.
    """
    if cpu.arch not in CPU_MODELS:
        return "", ()
    x86 = cpu.arch == "x86_64"
    known, computing = (X86_KNOWN, X86_FEATURES - AMX) if x86 else (_ARM_KNOWN, ARM_FEATURES)
    present = cpu.features
    base = _base_name(cpu.arch, present)

    def fits(name: str) -> bool:
        return implied(base) & computing <= implied(name) & computing <= present

    def score(name: str) -> tuple[int, int, bool]:
        has = implied(name) & known
        return len(has & computing), len(has & present) - len(has - present), name in cpu.names

    mcpu = max(filter(fits, _named(cpu)), key=score, default=base)
    has = implied(mcpu) & known
    unwanted = has - present
    if _STEADY_CLOCK in present:
        unwanted |= implied(mcpu) & {_NARROW_HINT}
    removed = [f"-{name}" for name in sorted(unwanted)]
    return mcpu, tuple([f"+{name}" for name in sorted(present & (computing | AMX) - has)] + removed)


def _base_name(arch: str, present: frozenset[str]) -> str:
    if arch != "x86_64":
        return "generic"
    levels = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
    return next((level for level in levels if CPU_MODELS[arch][level].features <= present), "x86-64")


def _named(cpu: HostCpu) -> list[str]:
    """Names worth trying: on x86 the vendor's, elsewhere those that the CPU goes by, best cores first."""
    models = CPU_MODELS[cpu.arch]
    if cpu.arch != "x86_64":
        return sorted((n for n in cpu.names if n in models), key=lambda name: -models[name].l2)
    amd = cpu.vendor in ("AuthenticAMD", "HygonGenuine")
    if not amd and cpu.vendor != "GenuineIntel":
        return []
    return [n for n in models if not n.startswith("x86-64") and n.startswith("znver") == amd]


def host_target() -> Target:
    """A target for this computer, kind ``"llvm"``, with only what its CPU really has.

    Its ``num-cores`` is :func:`usable_cores`. Where the operating system tells nothing about the CPU (or
    the architecture is neither x86-64 nor AArch64) the target is the architecture's plain baseline. AMX is
    part of it where the kernel grants the tile registers to this process. LLVM's hint ``prefer-256-bit`` is
    taken off where 512-bit vectors do not slow the clock (Ice Lake, Zen 4 and later). Call
    :func:`set_num_threads` or this before the first function runs: when TVM's pool starts by itself it
    narrows the cores that the process may use.
    """
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_system_triple

    mcpu, mattr = choose_mcpu(detect_cpu(), _implied)
    config = {"kind": "llvm", "mtriple": str(llvm_get_system_triple()), "num-cores": usable_cores()}
    if mcpu:
        config["mcpu"] = mcpu
    if mattr:
        config["mattr"] = list(mattr)
    return Target(config)


def detect_cpu() -> HostCpu:
    """What this computer's operating system, else cpuid as LLVM reads it, tells about the CPU."""
    system, arch = platform.system(), normal_arch(platform.machine())
    if arch == "x86_64":
        return _detect_x86(_read("/proc/cpuinfo") if system == "Linux" else "")
    if arch == "aarch64" and system == "Darwin":
        return parse_macos_sysctl(_sysctl("hw.optional", "machdep.cpu.brand_string"))
    if arch == "aarch64" and system == "Linux":
        cpu = parse_arm_cpuinfo(_read("/proc/cpuinfo"))
        return cpu if cpu.features else HostCpu(arch, _arm_auxval())
    return HostCpu(arch, _llvm_reports(True) if arch == "aarch64" else frozenset())


def _detect_x86(cpuinfo: str) -> HostCpu:
    """Both the kernel, where it tells, and cpuid must say that a feature is there."""
    from tvm.target.codegen import llvm_get_system_cpu, llvm_get_system_x86_vendor

    cpu = parse_x86_cpuinfo(cpuinfo)
    features = cpu.features - _llvm_reports(False) if cpu.features else _llvm_reports(True)
    if features & AMX and not may_use_tiles():
        features -= AMX
    vendors = {"intel": "GenuineIntel", "amd": "AuthenticAMD"}
    vendor = cpu.vendor or vendors.get(str(llvm_get_system_x86_vendor()).lower(), "")
    return HostCpu("x86_64", features, vendor, (str(llvm_get_system_cpu()),))


def may_use_tiles() -> bool:
    """Whether the operating system lets this process use AMX; asks for it, which changes nothing else.

    A kernel before 5.16 lists the features of the CPU and refuses.
    """
    if platform.system() != "Linux" or normal_arch(platform.machine()) != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(*ASK_FOR_TILES) == 0


def _llvm_reports(has: bool) -> frozenset[str]:
    """The features that LLVM, asking the CPU itself, finds there (``has``) or not there."""
    import tvm_ffi

    report = tvm_ffi.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    return (
        frozenset(str(name) for name, value in report().items() if bool(value) == has)
        if report
        else frozenset()
    )


@cache
def _implied(mcpu: str) -> frozenset[str]:
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_triple

    triple = str(llvm_get_system_triple())
    return frozenset(
        map(str, llvm_get_cpu_features(Target({"kind": "llvm", "mtriple": triple, "mcpu": mcpu})))
    )


def _arm_auxval() -> frozenset[str]:
    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return frozenset()
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    at_hwcap, at_hwcap2 = 16, 26
    return parse_arm_hwcap(getauxval(at_hwcap), getauxval(at_hwcap2))


def _sysctl(*names: str) -> str:
    try:
        return subprocess.run(["sysctl", *names], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _read(path: str) -> str:
    """The file's text, empty where it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def cgroup_cores(read: Callable[[str], str]) -> float | None:
    """The CPU quota of this process in cores, the least of its control groups; ``None`` without a quota.

    ``read`` gives a file's text, empty where there is no such file. Both versions of Linux's control groups
    are read. Inside a container the path in ``/proc/self/cgroup`` may be the host's, hence every parent
    directory up to the mount point is looked at.
    """
    quotas: list[float] = []
    for controllers, path in re.findall(
        r"^\d+:([^:]*):(/.*)$", read("/proc/self/cgroup"), flags=re.MULTILINE
    ):
        if not controllers:
            for folder in _parents("/sys/fs/cgroup", path):
                quota, _, period = read(f"{folder}/cpu.max").partition(" ")
                quotas += _quota(quota, period)
        elif "cpu" in controllers.split(","):
            for mount in (f"/sys/fs/cgroup/{controllers}", "/sys/fs/cgroup/cpu"):
                for folder in _parents(mount, path):
                    quota, period = (read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
                    quotas += _quota(quota, period)
    return min(quotas, default=None)


def _parents(mount: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join([mount, *parts[:depth]]) for depth in range(len(parts) + 1)]


def _quota(quota: str, period: str) -> list[float]:
    """One quota in cores, or none: ``max`` and -1 mean that there is no limit."""
    if not re.fullmatch(r"\s*\d+\s*", quota) or not re.fullmatch(r"\s*\d+\s*", period) or int(period) == 0:
        return []
    return [int(quota) / int(period)]


def physical_cores(cpus: Iterable[int], siblings: Callable[[int], str]) -> int:
    """How many cores the logical ``cpus`` belong to.

    ``siblings`` gives the kernel's list of the logical CPUs on the same core (``"0,4"``); a CPU for which it
    gives nothing counts as a core.
    """
    return len({siblings(cpu).strip() or str(cpu) for cpu in cpus})


def usable_cores() -> int:
    """The cores that this process may use, at least 1.

    Counted are physical cores (the second hardware thread of a core shares its multiply-add units) in the
    process's affinity, and no more than a control group's CPU quota, rounded down.
    """
    if hasattr(os, "sched_getaffinity"):
        topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
        cores = physical_cores(os.sched_getaffinity(0), lambda cpu: _read(topology.format(cpu)))
    else:
        import psutil

        cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    quota = cgroup_cores(_read)
    return max(1, cores if quota is None else min(cores, int(quota)))


# The value of TVM_NUM_THREADS that this module wrote; another value is the user's.
_written: str | None = None


def _wanted_threads(environ: Mapping[str, str]) -> int:
    """The thread count that the user asks for by TVM's variables, else the usable cores."""
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        text = environ.get(name, "").strip()
        if text and not (name == "TVM_NUM_THREADS" and text == _written):
            if not re.fullmatch(r"[1-9]\d*", text):
                raise ValueError(f"{name} must be a whole number of threads, not {text!r}")
            return int(text)
    return usable_cores()


def set_num_threads(n: int | None = None) -> int:
    """Let TVM's parallel loops use ``n`` threads; returns how many they now use.

    ``n`` is by default what ``TVM_NUM_THREADS`` or ``OMP_NUM_THREADS`` says, else :func:`usable_cores`. Left
    alone, TVM takes half of the logical cores on x86, which on two cores is one.

    Call it before the first compiled function runs. A pool belongs to the thread that calls compiled
    functions and cannot grow once it has started: then a ``RuntimeWarning`` says so and the smaller number is
    returned. Threads started later take the same setting. TVM's own pinning of threads to cores is turned
    off unless ``TVM_BIND_THREADS`` is set, since it ignores which cores the process may use.

    Raises ``ValueError`` for an ``n`` that is not between 1 and 1024.
    """
    global _written
    import tvm_ffi

    count = _wanted_threads(os.environ) if n is None else n
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise ValueError(
            f"the number of threads must be a whole number from 1 to {MAX_THREADS}, not {count!r}"
        )
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ["TVM_NUM_THREADS"] = _written = str(count)
    big_cores = 1
    tvm_ffi.get_global_func("runtime.config_threadpool")(big_cores, count)
    used = int(tvm_ffi.get_global_func("runtime.NumThreads")())
    if used != count:
        warnings.warn(
            f"TVM's thread pool has already started with {used} threads and cannot grow to {count}: "
            "call set_num_threads() before the first compiled function runs",
            RuntimeWarning,
            stacklevel=2,
        )
    return used
