# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of tuning have in common."""

from __future__ import annotations

import tvm
from tvm import te, topi


def softmax(rows=64, columns=200):
    x = te.placeholder((rows, columns), name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def large_softmax(rows=256, columns=1024):
    """One with more points in its space."""
    return softmax(rows, columns)


def product(m=64, n=48, k=32):
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    return te.create_prim_func([a, b, topi.matmul(a, b)])


def dynamic_product():
    """Any number of rows; all extents are int64, as Relax has them."""
    n, k = (tvm.tirx.IntImm("int64", extent) for extent in (48, 32))
    return product(tvm.tirx.Var("m", "int64"), n, k)
