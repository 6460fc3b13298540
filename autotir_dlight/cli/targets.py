# SPDX-License-Identifier: Apache-2.0
"""What ``--target`` may say, checked before LLVM sees it.

For a name that it does not know LLVM prints a remark and compiles for something else, and for a triple that
it does not know some of its queries crash.
"""

from __future__ import annotations

import difflib
import json
from typing import Any

import tvm
from tvm.target import codegen

import autotir_dlight as dl

from ..errors import TargetError, first_line
from ..machine import CpuMachine, normal_arch

# Where a CPU's name is looked up beside the host's own kind.
_TRIPLES = ("x86_64-linux-gnu", "aarch64-linux-gnu")


def parse_target(text: str) -> tvm.target.Target:
    """The target for ``"host"``, a CPU name of LLVM, or a TVM target in JSON.

    Raises ``TargetError`` for one that TVM or LLVM does not know.
    """
    if text == "host":
        return dl.host_target()
    if not text.lstrip().startswith("{"):
        return _named_cpu(text)
    try:
        config = json.loads(text)
        target = tvm.target.Target(config)
    except Exception as err:  # TVM raises errors of many types for the many ways to get this wrong
        raise TargetError(f"the target {text} is not one that TVM knows: {first_line(err)}") from err
    if target.kind.name == "llvm":
        _check_llvm(config)
    return target


def _named_cpu(name: str) -> tvm.target.Target:
    """A CPU of the host's kind, with the host's cores, else of another kind that LLVM knows it for."""
    cores = dl.host_target().attrs.get("num-cores")
    configs: list[dict[str, Any]] = [{"kind": "llvm"} | ({"num-cores": int(cores)} if cores else {})]
    configs += [{"kind": "llvm", "mtriple": triple} for triple in _TRIPLES]
    known: list[str] = []
    for config in configs:
        known += (cpus := _cpus(config))
        if name in cpus:
            return tvm.target.Target(config | {"mcpu": name})
    raise TargetError(_unknown("target", name, known))


def _check_llvm(config: dict[str, Any]) -> None:
    triple, cpu = config.get("mtriple", ""), config.get("mcpu", "")
    architectures = [str(name) for name in codegen.llvm_get_targets()]
    if triple and normal_arch(triple) == "generic" and triple.split("-")[0] not in architectures:
        raise TargetError(_unknown("target's mtriple", triple, architectures))
    if cpu and cpu not in (known := _cpus(config)):
        raise TargetError(_unknown("target's mcpu", cpu, known))


def _cpus(config: dict[str, Any]) -> list[str]:
    bare = tvm.target.Target({key: config[key] for key in ("kind", "mtriple") if config.get(key)})
    return [str(name) for name in codegen.llvm_get_cpu_archlist(bare)]


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, sorted(set(known)), n=3)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else 'give "host", a CPU name of LLVM, or a TVM target in JSON'
    )
    return f"the {what} {name!r} is unknown: {hint}"


def check_runs_here(target: tvm.target.Target) -> None:
    """Raise ``TargetError`` for code of another kind of machine; another model of the host's kind may run."""
    if target.kind.name != "llvm":
        raise TargetError(
            f"models for {target.kind.name} cannot be run by this command: give a CPU as --target"
        )
    here, there = (CpuMachine.from_target(t).arch for t in (dl.host_target(), target))
    if here != there:
        raise TargetError(f"code for {there} does not run on this machine, which is {here}")
