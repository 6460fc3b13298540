# SPDX-License-Identifier: Apache-2.0
"""The machine code of inner loops, by instruction set: full of multiply-adds, no spill, no gather."""

import re

import pytest
import tvm
from tvm import te, topi

import autotir_dlight as dl

TARGETS = {
    "avx2": ({"mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}, r"\bvfn?madd\w+ps\b", r"%ymm"),
    "avx512": ({"mcpu": "skylake-avx512", "mtriple": "x86_64-linux-gnu"}, r"\bvfn?madd\w+ps\b", r"%zmm"),
    "neon": ({"mcpu": "neoverse-n1", "mtriple": "aarch64-linux-gnu"}, r"\bfmla\b", r"\bv\d+\.4s"),
}
FEWEST_MULTIPLY_ADDS = 8


def matmul(n):
    a, b = te.placeholder((n, n), name="a"), te.placeholder((n, n), name="b")
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def conv(channels, size):
    x = te.placeholder((1, channels, size, size), name="x")
    w = te.placeholder((channels, channels, 3, 3), name="w")
    return te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nchw(x, w, 1, 1, 1))])


def conv_nhwc(channels, size):
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((3, 3, channels, 64), name="w")
    y = topi.nn.relu(topi.nn.conv(x, w, 1, 1, 1, 1, "NHWC", "HWIO"))
    return te.create_prim_func([x, w, y]).with_attr("layout_free_buffers", [1])


def gemv(n):
    x, w = te.placeholder((1, n), name="x"), te.placeholder((n, n), name="w")
    return te.create_prim_func([x, w, topi.matmul(x, w)])


WORKLOADS = {
    "matmul 256": lambda: matmul(256),
    "matmul 250, packed": lambda: matmul(250),
    "conv 3x3, in place": lambda: conv(32, 32),
    "conv 3x3, packed": lambda: conv(32, 14),
    "conv 3x3, channels last": lambda: conv_nhwc(32, 28),
    "gemv, streamed": lambda: gemv(4096),
}


def assembly(func, attrs):
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2, **attrs})
    with target:
        mod = dl.ApplyDefaultSchedule(*dl.rules(target))(tvm.IRModule({"main": func}))
    return tvm.compile(mod, target=target).mod.inspect_source("asm")


def loops(text):
    """The bodies of the innermost loops: from a label to the jump back to it, with no label between."""
    lines = text.splitlines()
    labels = {}
    for number, line in enumerate(lines):
        if found := re.match(r"(\.L\w+):", line):
            labels[found[1]] = number
    for number, line in enumerate(lines):
        jump = re.match(r"\s+(?:j\w+|b\.?\w*|cbnz|tbnz|cbz)\s.*?(\.L\w+)", line)
        start = labels.get(jump[1]) if jump else None
        if start is not None and start < number:
            body = lines[start + 1 : number]
            if not any(re.match(r"\.L\w+:", inner) for inner in body):
                yield body


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("isa", TARGETS)
def test_inner_loop(isa, workload):
    attrs, multiply_add, registers = TARGETS[isa]
    text = assembly(WORKLOADS[workload](), attrs)
    body = max(loops(text), key=lambda lines: sum(bool(re.search(multiply_add, line)) for line in lines))
    fused = [line for line in body if re.search(multiply_add, line)]
    assert len(fused) >= FEWEST_MULTIPLY_ADDS
    assert all(re.search(registers, line) for line in fused), "narrower than the machine"
    spills = [line for line in body if re.search(r"\(%rsp|\[sp", line) and re.search(registers, line)]
    assert not spills
    assert not any("gather" in line for line in body)
