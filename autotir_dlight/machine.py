# SPDX-License-Identifier: Apache-2.0
"""The machine that a target describes, in the numbers that schedules are computed from.

:meth:`CpuMachine.from_target` is the only place in the package where a target is looked at. It reads the
target's own attributes and the tables below and nothing else: no device is opened, no file is read, so the
same target gives the same machine on every computer. Cache sizes in particular come from the table of
``mcpu``, also for the target of the computer at hand, because a target has no attribute that carries them.

This module imports no TVM: a target is anything with ``.kind.name`` and a mapping ``.attrs``.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

KIB = 1024
MIB = 1024 * KIB

# What a target without "num-cores" is taken to have; a fixed number, so that a schedule does not depend
# on the computer that compiled it.
DEFAULT_CORES = 4


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Every feature in these two sets changes which instructions LLVM picks for numeric code. Others (paging,
# tracing, tuning hints) are not in the tables below and decide nothing.
X86_FEATURES = _words(
    """sse sse2 sse3 ssse3 sse4.1 sse4.2 avx avx2 fma f16c popcnt lzcnt bmi bmi2 movbe cx16
    avx512f avx512bw avx512cd avx512dq avx512vl avx512vnni avx512bf16 avx512fp16 avx512ifma avx512vbmi
    avx512vbmi2 avx512bitalg avx512vpopcntdq avxvnni avxvnniint8 avxvnniint16 avxneconvert avxifma
    amx-tile amx-int8 amx-bf16 amx-fp16 gfni vaes vpclmulqdq"""
)
ARM_FEATURES = _words("neon dotprod fullfp16 fp16fml bf16 i8mm rdm lse sve sve2 sme sme2")

# Feature -> the features that it directly needs, as in the instruction sets' manuals.
_NEEDS: dict[str, str] = {
    "sse2": "sse",
    "sse3": "sse2",
    "ssse3": "sse3",
    "sse4.1": "ssse3",
    "sse4.2": "sse4.1",
    "avx": "sse4.2",
    "avx2": "avx",
    "fma": "avx",
    "f16c": "avx",
    "avx512f": "avx2 fma f16c",
    "avx512bw": "avx512f",
    "avx512cd": "avx512f",
    "avx512dq": "avx512f",
    "avx512vl": "avx512f",
    "avx512vnni": "avx512f",
    "avx512ifma": "avx512f",
    "avx512vpopcntdq": "avx512f",
    "avx512vbmi": "avx512bw",
    "avx512vbmi2": "avx512bw",
    "avx512bitalg": "avx512bw",
    "avx512bf16": "avx512bw",
    "avx512fp16": "avx512bw",
    "avxvnni": "avx2",
    "avxvnniint8": "avx2",
    "avxvnniint16": "avx2",
    "avxneconvert": "avx2",
    "avxifma": "avx2",
    "amx-tile": "sse2",
    "amx-int8": "amx-tile",
    "amx-bf16": "amx-tile",
    "amx-fp16": "amx-tile",
    "gfni": "sse2",
    "vaes": "avx2",
    "vpclmulqdq": "avx",
    "avx10.1": "avx512vl avx512cd avx512dq avx512vnni avx512bf16 avx512fp16 avx512ifma avx512vbmi "
    "avx512vbmi2 avx512bitalg avx512vpopcntdq",
    "avx10.2": "avx10.1",
    "dotprod": "neon",
    "rdm": "neon",
    "i8mm": "neon",
    "bf16": "neon",
    "fullfp16": "neon",
    "fp16fml": "fullfp16",
    "sve": "fullfp16",
    "sve2": "sve",
    "sme": "bf16 fullfp16",
    "sme2": "sme",
    "v8.1a": "lse rdm",
    "v8.2a": "v8.1a",
    "v8.3a": "v8.2a",
    "v8.4a": "v8.3a dotprod",
    "v8.5a": "v8.4a",
    "v8.6a": "v8.5a bf16 i8mm",
    "v8.7a": "v8.6a",
    "v8.8a": "v8.7a",
    "v8.9a": "v8.8a",
    "v9a": "v8.5a",
    "v9.1a": "v9a v8.6a",
    "v9.2a": "v9.1a",
    "v9.3a": "v9.2a",
    "v9.4a": "v9.3a",
}


def with_needs(features: Iterable[str]) -> frozenset[str]:
    """The features together with every feature that they need, transitively."""
    found: set[str] = set()
    waiting = list(features)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_NEEDS.get(name, "").split())
    return frozenset(found)


def without(features: Iterable[str], name: str) -> frozenset[str]:
    """The features less ``name`` and every feature that needs it."""
    return frozenset(f for f in features if name not in with_needs([f]))


@dataclass(frozen=True)
class CpuModel:
    """One row of the table of CPUs: a name LLVM knows as ``mcpu`` and what is behind it.

    Attributes
    ----------
    features : the features that change code generation, without tuning hints
    l1, l2, l3 : bytes; what one core may count on for L1 data and L2 (a shared L2 is divided), all of L3
    ports, latency : fused multiply-adds started a cycle at the full vector width, and cycles to the result
    line : bytes of a cache line
    """

    name: str
    arch: str
    features: frozenset[str]
    l1: int
    l2: int
    l3: int
    ports: int
    latency: int
    line: int = 64


_GROUPS = {
    "@avx512": "avx512bw,avx512cd,avx512dq,avx512vl",
    "@vbmi2": "avx512vnni,avx512ifma,avx512vbmi,avx512vbmi2,avx512bitalg,avx512vpopcntdq",
    "@crypto": "gfni,vaes,vpclmulqdq",
}

# Columns: name, the row whose features it extends, features added (@: a group of _GROUPS), L1 KiB, L2 KiB,
# L3 MiB, FMA ports, FMA latency. Caches are from the vendors' data sheets (the smallest part of a family,
# since a block that fits there fits everywhere), ports and latencies from the vendors' optimisation guides
# and Agner Fog's tables (https://www.agner.org/optimize/instruction_tables.pdf). A CPU that splits its
# widest vectors in two (znver1, znver4, Gracemont) has half the ports at that width.
_X86_ROWS = """
x86-64            -               sse,sse2                                      32   256   8  2 4
x86-64-v2         x86-64          sse4.2,popcnt,cx16                            32   256   8  2 4
x86-64-v3         x86-64-v2       avx2,fma,f16c,bmi,bmi2,lzcnt,movbe            32   256   8  2 5
x86-64-v4         x86-64-v3       @avx512                                       32  1024  16  2 4
nehalem           x86-64-v2       -                                             32   256   8  1 3
westmere          nehalem         -                                             32   256   8  1 3
sandybridge       x86-64-v2       avx                                           32   256   8  1 3
ivybridge         sandybridge     f16c                                          32   256   8  1 3
haswell           x86-64-v3       -                                             32   256   8  2 5
broadwell         haswell         -                                             32   256   8  2 5
skylake           haswell         -                                             32   256   8  2 4
skylake-avx512    x86-64-v4       -                                             32  1024  16  2 4
skx               skylake-avx512  -                                             32  1024  16  2 4
cascadelake       skylake-avx512  avx512vnni                                    32  1024  16  2 4
cooperlake        cascadelake     avx512bf16                                    32  1024  16  2 4
icelake-client    cascadelake     @vbmi2,@crypto                                48   512   8  1 4
rocketlake        icelake-client  -                                             48   512  12  1 4
tigerlake         icelake-client  -                                             48  1280  12  1 4
icelake-server    icelake-client  -                                             48  1280  24  2 4
sapphirerapids    icelake-server  avx512bf16,avx512fp16,avxvnni,amx-int8,amx-bf16  48  2048  32  2 4
emeraldrapids     sapphirerapids  -                                             48  2048  32  2 4
graniterapids     sapphirerapids  amx-fp16                                      48  2048  32  2 4
graniterapids-d   graniterapids   -                                             48  2048  32  2 4
alderlake         x86-64-v3       avxvnni,@crypto                               48  1280  12  2 4
raptorlake        alderlake       -                                             48  2048  24  2 4
meteorlake        alderlake       -                                             48  2048  12  2 4
gracemont         alderlake       -                                             32   512   6  1 6
arrowlake         alderlake       avxvnniint8,avxneconvert,avxifma              48  3072  24  2 4
arrowlake-s       arrowlake       avxvnniint16                                  48  3072  24  2 4
lunarlake         arrowlake-s     -                                             48  2560  12  2 4
sierraforest      arrowlake       -                                             32  1024  32  1 6
silvermont        x86-64-v2       movbe                                         24   512   0  1 5
goldmont          silvermont      -                                             24   512   0  1 4
tremont           silvermont      gfni                                          32   384   4  1 4
znver1            x86-64-v3       -                                             32   512   8  1 5
znver2            znver1          -                                             32   512  16  2 5
znver3            znver2          vaes,vpclmulqdq                               32   512  32  2 4
znver4            znver3          @vbmi2,@avx512,avx512bf16,gfni                32  1024  32  1 4
znver5            znver4          avxvnni                                       48  1024  32  2 4
"""

_ARM_ROWS = """
generic           -               neon                                          32   512   2  2 4
cortex-a35        generic         -                                             32   128   0  1 8
cortex-a53        generic         -                                             32   128   0  1 8
cortex-a57        generic         -                                             32   512   0  2 9
cortex-a72        generic         -                                             32   512   0  2 7
cortex-a73        generic         -                                             64   512   0  2 7
cortex-a55        generic         v8.2a,dotprod,fullfp16                        32   128   1  1 4
cortex-a75        cortex-a55      -                                             64   256   2  2 5
cortex-a76        cortex-a55      -                                             64   256   2  2 4
cortex-a77        cortex-a76      -                                             64   256   4  2 4
cortex-a78        cortex-a76      -                                             32   256   4  2 4
cortex-x1         cortex-a76      -                                             64   512   4  4 4
cortex-a510       generic         v8.6a,fp16fml,sve2                            32   128   4  1 4
cortex-a520       cortex-a510     -                                             32   128   4  1 4
cortex-a710       cortex-a510     -                                             32   256   4  2 4
cortex-a715       cortex-a510     -                                             32   256   4  2 4
cortex-a720       cortex-a510     -                                             32   256   4  2 4
cortex-a725       cortex-a510     -                                             64   512   4  2 4
cortex-x2         cortex-a510     -                                             64   512   8  4 4
cortex-x3         cortex-a510     -                                             64   512   8  4 4
cortex-x4         cortex-a510     -                                             64  1024   8  4 4
cortex-x925       cortex-a510     -                                             64  2048  12  6 4
neoverse-e1       cortex-a55      -                                             32   256   4  1 4
neoverse-n1       cortex-a76      -                                             64   512  16  2 4
neoverse-n2       cortex-a510     -                                             64   512  16  2 4
neoverse-n3       cortex-a510     -                                             32  1024  16  2 4
neoverse-v1       generic         v8.4a,bf16,i8mm,fp16fml,sve                   64  1024  32  4 4
neoverse-512tvb   neoverse-v1     -                                             64  1024  32  4 4
neoverse-v2       cortex-a510     -                                             64  1024  32  4 4
neoverse-v3       cortex-a510     -                                             64  2048  32  4 4
grace             neoverse-v2     -                                             64  1024  64  4 4
a64fx             generic         v8.2a,sve                                     64   512   0  2 9
ampere1           generic         v8.6a,fullfp16                                64  2048  64  2 4
ampere1a          ampere1         -                                             64  2048  64  2 4
thunderx2t99      generic         v8.1a                                         32   256  32  2 6
oryon-1           generic         v8.6a,fp16fml                                 96  3072   0  4 4
apple-a14         generic         v8.4a,fp16fml                                128  3072   8  4 4
apple-m1          apple-a14       -                                            128  3072   8  4 4
apple-a15         generic         v8.6a,fp16fml                                128  4096   8  4 4
apple-m2          apple-a15       -                                            128  4096   8  4 4
apple-a16         apple-a15       -                                            128  4096   8  4 4
apple-a17         apple-a15       -                                            128  4096   8  4 4
apple-m3          apple-a15       -                                            128  4096   8  4 4
apple-m4          apple-a15       sme2                                         128  4096   8  4 4
apple-m5          apple-m4        -                                            128  4096   8  4 4
"""

_LINE_BYTES = {"apple": 128, "a64fx": 256}


def _read_rows(text: str, arch: str) -> dict[str, CpuModel]:
    """Expand the rows of one table; a row only refers to rows above it."""
    models: dict[str, CpuModel] = {}
    for row in text.strip().splitlines():
        name, parent, added, *numbers = row.split()
        l1, l2, l3, ports, latency = map(int, numbers)
        for group, members in _GROUPS.items():
            added = added.replace(group, members)
        own = [] if added == "-" else added.split(",")
        inherited = frozenset() if parent == "-" else models[parent].features
        line = next((size for start, size in _LINE_BYTES.items() if name.startswith(start)), 64)
        models[name] = CpuModel(
            name, arch, inherited | with_needs(own), l1 * KIB, l2 * KIB, l3 * MIB, ports, latency, line
        )
    return models


CPU_MODELS: Mapping[str, Mapping[str, CpuModel]] = MappingProxyType(
    {
        "x86_64": MappingProxyType(_read_rows(_X86_ROWS, "x86_64")),
        "aarch64": MappingProxyType(_read_rows(_ARM_ROWS, "aarch64")),
    }
)
"""arch -> mcpu -> :class:`CpuModel`."""

_PLAIN: dict[str, CpuModel] = {
    "x86_64": CPU_MODELS["x86_64"]["x86-64"],
    "aarch64": CPU_MODELS["aarch64"]["generic"],
    "riscv64": CpuModel("generic-rv64", "riscv64", frozenset(), 32 * KIB, 512 * KIB, 2 * MIB, 1, 4),
    "generic": CpuModel("generic", "generic", frozenset(), 32 * KIB, 256 * KIB, 2 * MIB, 1, 4),
}

_DTYPE_BITS = re.compile(r"^[a-z]+(\d+)")


def dtype_bits(dtype: str) -> int:
    """Bits that one element of ``dtype`` takes in memory; a ``bool`` takes a byte.

    Raises ``ValueError`` where ``dtype`` is not the name of a scalar type such as ``"float32"``.
    """
    name = str(dtype)
    if name == "bool":
        return 8
    found = _DTYPE_BITS.match(name)
    if not found:
        raise ValueError(f"{name!r} is not the name of a scalar type; give one such as 'float32' or 'int8'")
    return int(found.group(1))


def normal_arch(name: str) -> str:
    """``"x86_64"``, ``"aarch64"``, ``"riscv64"`` or ``"generic"`` for a triple or an OS's machine name."""
    arch = name.lower().split("-")[0]
    if arch in ("x86_64", "amd64", "x64", "x86_64h"):
        return "x86_64"
    if arch in ("aarch64", "arm64", "arm64e", "aarch64_be"):
        return "aarch64"
    return "riscv64" if arch == "riscv64" else "generic"


def _system(triple: str) -> str:
    """The operating system of a target triple; without one, of this computer."""
    return "linux" if "linux" in triple else triple.split("-")[-1] or platform.system().lower()


@dataclass(frozen=True)
class CpuMachine:
    """A CPU as the rules see it. Build it with :meth:`from_target`.

    Attributes
    ----------
    arch : ``"x86_64"``, ``"aarch64"``, ``"riscv64"`` or ``"generic"``
    features : LLVM's names of the features that change code generation (``"avx2"``, ``"dotprod"``)
    vector_bits : usable SIMD width in bits; the guaranteed minimum where ``scalable``; 0 for targets
        whose code generator has no vectors at all (kind ``"c"``)
    vector_registers : SIMD registers that code can name
    fma_ports : fused multiply-adds of the full width that can start in one cycle
    fma_latency : cycles from such an instruction to its result
    l1_bytes, l2_bytes : what one core may count on (a shared L2 is divided)
    l3_bytes : the whole of it; 0 where there is none
    line_bytes : bytes of a cache line
    cores : cores that a parallel loop may count on
    scalable : whether the vector length is only known when the code runs (SVE, RISC-V V)
    system : the operating system, ``"linux"`` or another
    sources : field name -> where its value comes from
    """

    arch: str
    features: frozenset[str]
    vector_bits: int
    vector_registers: int
    fma_ports: int
    fma_latency: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    cores: int
    scalable: bool
    system: str
    sources: Mapping[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        for name in NUMBERS:
            if name not in self.sources:
                raise ValueError(f"CpuMachine.{name} has no source; add it to 'sources'")
        for name in ("vector_registers", "fma_ports", "fma_latency", "l1_bytes", "l2_bytes", "cores"):
            if getattr(self, name) < 1:
                raise ValueError(f"CpuMachine.{name} must be at least 1, not {getattr(self, name)}")

    @classmethod
    def from_target(cls, target: Any) -> CpuMachine:
        """The machine that ``target`` describes.

        ``target`` is a ``tvm.target.Target`` or anything with ``.kind.name`` and a mapping ``.attrs``.
        Read are ``mtriple`` (else this computer's architecture), ``mcpu`` (else the architecture's plain
        baseline), ``mattr``, ``vector-width`` and ``num-cores``.

        Raises ``ValueError`` where the target's kind is not a CPU's (``"llvm"`` or ``"c"``).
        """
        kind = str(target.kind.name)
        if kind not in ("llvm", "c"):
            raise ValueError(f"target kind {kind!r} is not a CPU; give a target of kind 'llvm' or 'c'")
        attrs = {str(key): value for key, value in dict(target.attrs).items()}
        triple = str(attrs.get("mtriple", "") or "")
        arch = normal_arch(triple or platform.machine())
        model, model_source = _find_model(arch, str(attrs.get("mcpu", "") or ""))
        features, feature_source = _apply_mattr(model.features, model_source, attrs.get("mattr", ()))
        return cls._assemble(kind, arch, model, model_source, features, feature_source, attrs)

    @classmethod
    def _assemble(
        cls,
        kind: str,
        arch: str,
        model: CpuModel,
        model_source: str,
        features: frozenset[str],
        feature_source: str,
        attrs: Mapping[str, Any],
    ) -> CpuMachine:
        bits, bits_source = _vector_bits(kind, arch, features, feature_source, attrs)
        registers, registers_source = _vector_registers(arch, features, feature_source)
        asked = attrs.get("num-cores")
        cores = DEFAULT_CORES if asked is None else int(asked)
        triple = str(attrs.get("mtriple", "") or "")
        triple_source = "target attribute mtriple" if triple else "this computer"
        table = dict.fromkeys(
            ("fma_ports", "fma_latency", "l1_bytes", "l2_bytes", "l3_bytes", "line_bytes"), model_source
        )
        return cls(
            arch=arch,
            features=features,
            vector_bits=bits,
            vector_registers=registers,
            fma_ports=model.ports,
            fma_latency=model.latency,
            l1_bytes=model.l1,
            l2_bytes=model.l2,
            l3_bytes=model.l3,
            line_bytes=model.line,
            cores=cores,
            system=_system(triple),
            scalable="sve" in features or (arch == "riscv64" and "v" in features),
            sources={
                **table,
                **dict.fromkeys(("arch", "system"), triple_source),
                "features": feature_source,
                "vector_bits": bits_source,
                "vector_registers": registers_source,
                "cores": f"default of {DEFAULT_CORES}" if asked is None else "target attribute num-cores",
                "scalable": feature_source,
            },
        )

    def has(self, *names: str) -> bool:
        """Whether the machine has every feature named."""
        return self.features.issuperset(names)

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register (a scalable one's minimum), at least 1."""
        return max(1, self.vector_bits // dtype_bits(dtype))

    @property
    def chains(self) -> int:
        """Independent accumulators that keep the FMA units busy: ports × latency."""
        return self.fma_ports * self.fma_latency


# The fields that are numbers.
NUMBERS = (
    "vector_bits",
    "vector_registers",
    "fma_ports",
    "fma_latency",
    "l1_bytes",
    "l2_bytes",
    "l3_bytes",
    "line_bytes",
    "cores",
)


def _find_model(arch: str, mcpu: str) -> tuple[CpuModel, str]:
    """The row for ``mcpu`` and its source; a name LLVM would ignore gets the plain baseline."""
    plain = _PLAIN[arch]
    if not mcpu:
        return plain, f"default for {plain.name}"
    models = CPU_MODELS.get(arch, {})
    found = models.get(mcpu) or models.get(mcpu.replace("_", "-"))
    if found is None:
        return plain, f"default for {plain.name} (mcpu {mcpu} is not in the table)"
    start = "default for" if mcpu.startswith("x86-64") or mcpu == "generic" else "mcpu"
    return found, f"{start} {mcpu}"


def _apply_mattr(features: frozenset[str], source: str, mattr: Iterable[Any]) -> tuple[frozenset[str], str]:
    """Add and remove the features of ``mattr`` in their order, as LLVM does."""
    changes = [str(item) for item in (mattr or ())]
    for item in changes:
        name = item.lstrip("+-")
        features = without(features, name) if item.startswith("-") else features | with_needs([name])
    return features, source + (f" with mattr {','.join(changes)}" if changes else "")


def _vector_bits(
    kind: str, arch: str, features: frozenset[str], source: str, attrs: Mapping[str, Any]
) -> tuple[int, str]:
    """The usable SIMD width in bits and its source.

    LLVM gives every AVX-512 CPU of Intel the tuning hint ``prefer-256-bit``. It steers LLVM's own
    vectoriser and does not split vectors that the program asks for, so only an explicit one counts.
    """
    if kind == "c":
        return 0, "the C code generator has no vectors"
    bits = 128
    if arch == "x86_64":
        bits = 512 if "avx512f" in features else 256 if "avx" in features else 128
        for limit in (256, 128):
            if f"prefer-{limit}-bit" in features and bits > limit:
                bits, source = limit, f"target attribute mattr +prefer-{limit}-bit"
    if arch == "riscv64":
        known = [int(f[3:-1]) for f in features if re.fullmatch(r"zvl\d+b", f)]
        bits = max([128, *known])
    asked = attrs.get("vector-width")
    if asked is not None and 0 < int(asked) < bits:
        return int(asked), "target attribute vector-width"
    return bits, source


def _vector_registers(arch: str, features: frozenset[str], source: str) -> tuple[int, str]:
    if arch == "x86_64":
        return (32 if "avx512f" in features else 16), source
    if arch in ("aarch64", "riscv64"):
        return 32, f"{arch} has 32 vector registers"
    return 16, "default for an unknown architecture"


@dataclass(frozen=True)
class VectorIsa:
    """What a micro-kernel may count on in one instruction set: register width in bits and their number."""

    vector_bits: int
    registers: int


VECTOR_ISAS: Mapping[str, VectorIsa] = MappingProxyType(
    {
        "generic": VectorIsa(128, 16),
        "sse": VectorIsa(128, 16),
        "avx": VectorIsa(256, 16),
        "avx2": VectorIsa(256, 16),
        "avx512": VectorIsa(512, 32),
        # 8 tiles of 16 rows.
        "amx": VectorIsa(512, 128),
        "neon": VectorIsa(128, 32),
    }
)


@dataclass(frozen=True)
class MicroKernel:
    """A register tile: ``mr`` rows × ``nr`` columns of C, ``kr`` steps of k a multiply-add instruction.

    In each step a column group of B (``nr`` wide) is loaded, then for each row one value of A is
    broadcast and multiplied into that row's accumulators.

    Attributes
    ----------
    isa : a key of :data:`VECTOR_ISAS`
    in_dtype, acc_dtype : types of the operands and of the accumulators
    requires : LLVM features without which the kernel cannot run
    accumulators : vector registers that hold the tile of C; checked against the tile
    why : why this tile and not another, in a sentence

    Raises
    ------
    ValueError : the tile is not made of whole vectors, ``accumulators`` does not match it, or accumulators,
        one group of B and one broadcast of A do not fit into the registers.
    """

    isa: str
    mr: int
    nr: int
    kr: int
    in_dtype: str
    acc_dtype: str
    requires: frozenset[str]
    accumulators: int
    why: str

    def __post_init__(self) -> None:
        if self.isa not in VECTOR_ISAS:
            raise ValueError(f"{self}: no such instruction set; known are {', '.join(VECTOR_ISAS)}")
        if min(self.mr, self.nr, self.kr) < 1:
            raise ValueError(f"{self}: mr, nr and kr must be at least 1")
        if not self.why.strip():
            raise ValueError(f"{self}: say in 'why' what speaks for this tile")
        row_bits, width = self.nr * dtype_bits(self.acc_dtype), self._isa.vector_bits
        if row_bits % width:
            raise ValueError(f"{self}: nr must fill whole vectors of {width} bits, a row has {row_bits} bits")
        if self.accumulators != self.mr * row_bits // width:
            raise ValueError(
                f"{self}: the tile takes {self.mr * row_bits // width} accumulators, not {self.accumulators}"
            )
        if self.registers > self._isa.registers:
            raise ValueError(
                f"{self}: needs {self.registers} vector registers and {self.isa} has {self._isa.registers}; "
                "take a smaller mr or nr"
            )

    @property
    def _isa(self) -> VectorIsa:
        return VECTOR_ISAS[self.isa]

    @property
    def lanes(self) -> int:
        """Accumulator elements in one vector register."""
        return self._isa.vector_bits // dtype_bits(self.acc_dtype)

    @property
    def registers(self) -> int:
        """Vector registers the inner loop holds at once: accumulators, one group of B, one broadcast."""
        element = max(self.kr * dtype_bits(self.in_dtype), dtype_bits(self.acc_dtype))
        return self.accumulators - (-self.nr * element // self._isa.vector_bits) + 1

    def runs_on(self, machine: CpuMachine) -> bool:
        """Whether ``machine`` has every feature that the kernel requires."""
        return machine.has(*self.requires)

    def __str__(self) -> str:
        return f"{self.isa} {self.mr}x{self.nr}x{self.kr} {self.in_dtype}->{self.acc_dtype}"
