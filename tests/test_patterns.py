# SPDX-License-Identifier: Apache-2.0
"""What a function is recognised as: roles of iterators, windows, what is inlined, what is an epilogue."""

from __future__ import annotations

from typing import Any

import corpus
import pytest
import tvm
from corpus import BY_NAME, WORKLOADS
from tvm import te, topi
from tvm.script import tirx as T

import autotir_dlight as dl
from autotir_dlight.blocks import FuncView
from autotir_dlight.patterns import MAX_INLINED_SIZE, Stage, Staging, is_copy, stage_function
from autotir_dlight.rule import Reject

ZERO = tvm.tirx.const(0, "float32")


def stages(func: Any) -> Staging:
    view = FuncView.of(func)
    assert not view.unreadable, view.unreadable
    return stage_function(view)


def product(func: Any) -> Stage:
    """The only contraction of ``func``."""
    (found,) = (s for s in stages(func).stages if s.kind == "contraction")
    return found


def te_func(*tensors: Any) -> Any:
    return te.create_prim_func(list(tensors))


def matrices(*shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    return [te.placeholder(shape, dtype, f"X{k}") for k, shape in enumerate(shapes)]


# --- which rule -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", corpus.cases(), ids=lambda case: case.id)
def test_the_first_rule_that_takes_it(case, target):
    func = case.build()
    takers = [r.name for r in dl.rules(target) if not isinstance(r.decide(func, target), Reject)]
    assert takers[-1] == "cpu.Fallback"
    if 0 not in case.workload.extents[case.kind]:
        assert takers[0] == case.workload.rule


def test_without_elements_nothing_is_staged():
    for name, kind in (("add relu", "zero"), ("matmul bias relu", "no rows"), ("softmax", "zero")):
        staging = stages(corpus.func(name, kind))
        assert staging.inline == ()
        assert {s.kind for s in staging.stages} == {"serial"}


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_refusal_has_a_reason_that_names_a_block(workload, target):
    func = workload.func(next(iter(workload.extents)), workload.dtypes[0])
    for rule in dl.rules(target):
        decision = rule.decide(func, target)
        if isinstance(decision, Reject):
            assert len(decision.reason) > 10
            assert decision.where or FuncView.of(func).unreadable


# --- roles of a product -----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_matmul_roles_do_not_depend_on_the_layout(layout):
    roles = product(corpus.func(f"matmul {layout}")).contraction
    assert (roles.batch, roles.rows, roles.columns, roles.reduce) == ((), (0,), (1,), (2,))
    assert (roles.row_read, roles.vector_read) == (0, 1)
    assert not roles.window


def test_a_transposed_result_swaps_rows_and_columns():
    """C[j, i]: the innermost axis of the result belongs to A, which is then read in vectors."""
    roles = product(corpus.func("matmul to n×m")).contraction
    assert (roles.rows, roles.columns, roles.row_read, roles.vector_read) == ((0,), (1,), 1, 0)


def test_batch_is_what_all_three_share():
    roles = product(corpus.func("batched matmul")).contraction
    assert (roles.batch, roles.rows, roles.columns, roles.reduce) == ((0,), (1,), (2,), (3,))
    roles = product(corpus.func("rows of two axes")).contraction
    assert (roles.batch, roles.rows, roles.columns) == ((), (0, 1), (2,))


def test_casts_do_not_hide_a_product():
    for name in ("matmul int8", "matmul f16 to f32"):
        stage = product(corpus.func(name))
        assert [r.dtype for r in stage.reads] == [BY_NAME[name].dtypes[0]] * 2


def test_symbolic_extents_have_roles_too():
    roles = product(corpus.func("matmul nn", "dynamic")).contraction
    assert (roles.rows, roles.columns, roles.reduce) == ((0,), (1,), (2,))


@pytest.mark.parametrize(
    ("name", "rows", "columns", "batch", "reduced"),
    [
        # n f h w c r s: the image owns the width, so the weights' channel is the row.
        ("conv 3x3", (1,), (0, 2, 3), (), 3),
        ("conv strided", (1,), (0, 2, 3), (), 3),
        ("conv dilated", (1,), (0, 2, 3), (), 3),
        # n h w f: the weights own the channel.
        ("conv nhwc", (0, 1, 2), (3,), (), 3),
        ("conv 1-d", (1,), (0, 2), (), 2),
        ("conv 3-d", (1,), (0, 2, 3, 4), (), 4),
        # The channel is in the weights and, through its group, in the image.
        ("conv grouped", (), (0, 2, 3), (1,), 3),
        ("conv depthwise", (), (0, 2, 3), (1,), 3),
    ],
)
def test_convolution_roles(name, rows, columns, batch, reduced):
    func = BY_NAME[name].func(next(iter(BY_NAME[name].extents)))
    stage = product(func)
    roles = stage.contraction
    assert roles.window
    live = {i for i in range(len(stage.anchor.iters)) if stage.anchor.extent(i) != 1}
    found = [tuple(i for i in group if i in live) for group in (roles.rows, roles.columns, roles.batch)]
    want = [tuple(i for i in group if i in live) for group in (rows, columns, batch)]
    assert found == want
    assert len(roles.reduce) == reduced


def test_transposed_convolution_is_a_window():
    assert product(corpus.func("conv transposed", "odd")).contraction.window


def test_a_one_by_one_kernel_is_no_window():
    roles = product(corpus.func("conv 1x1")).contraction
    assert not roles.window


def test_pooling_is_a_reduction_and_no_product():
    for name in ("max pool", "average pool", "global pool"):
        kinds = [s.kind for s in stages(corpus.func(name)).stages]
        assert "contraction" not in kinds
        assert "reduction" in kinds


# --- near misses ------------------------------------------------------------------------------------------


def reduced(combine: Any, *shapes: tuple[int, ...]) -> Any:
    """C[i, j] = sum over k of combine(i, j, k, *inputs)."""
    inputs = matrices(*shapes)
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(combine(i, j, k, *inputs), axis=k), "C")
    return te_func(*inputs, C)


NEAR_MISSES = {
    "an operand times itself": reduced(lambda i, j, k, x: x[i, k] * x[j, k], (32, 24)),
    "three operands": reduced(
        lambda i, j, k, a, b, c: a[i, k] * b[k, j] * c[k, j], (16, 24), (24, 32), (24, 32)
    ),
    "a sum of sums": reduced(lambda i, j, k, a, b: a[i, k] + b[k, j], (16, 24), (24, 32)),
    "a product with a number": reduced(lambda i, j, k, a: a[i, j + k] * 2.0, (16, 64)),
    "a difference": reduced(lambda i, j, k, a, b: a[i, k] - b[k, j], (16, 24), (24, 32)),
}


def max_plus() -> Any:
    a, b = matrices((16, 24), (24, 32))
    k = te.reduce_axis((0, 24), "k")
    return te_func(a, b, te.compute((16, 32), lambda i, j: te.max(a[i, k] + b[k, j], axis=k), "C"))


@T.prim_func(s_tir=True)
def from_one(
    A: T.Buffer((16, 24), "float32"), B: T.Buffer((24, 32), "float32"), C: T.Buffer((16, 32), "float32")
):
    for i, j, k in T.grid(16, 32, 24):
        with T.sblock("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(1)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


NEAR_MISSES |= {"max-plus": max_plus(), "a start that is not zero": from_one}


@pytest.mark.parametrize("what", NEAR_MISSES)
def test_near_misses_are_reductions_and_right(what, target):
    func = NEAR_MISSES[what]
    (stage,) = stages(func).stages
    assert stage.kind == "reduction"
    for rule in (dl.cpu.Matmul(), dl.cpu.Conv(), dl.cpu.GEMV()):
        assert isinstance(rule.decide(func, target), Reject)
    assert dl.verify(func, dl.cpu.Reduction().apply(func, target, False).mod["main"], target)


def test_an_element_of_neither_operand_is_no_product():
    """A result that an axis repeats: the axis is in no operand."""
    a, b = matrices((16, 24), (24, 32))
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((4, 16, 32), lambda r, i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    (stage,) = stages(te_func(a, b, C)).stages
    assert stage.kind == "reduction"


@T.prim_func(s_tir=True)
def calls_out(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.call_extern("float32", "some_function", A[vi])


@T.prim_func(s_tir=True)
def guarded(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.sblock("B"):
            vi = T.axis.spatial(8, i)
            T.where(i < 5)
            B[vi] = A[vi]


@pytest.mark.parametrize(
    ("func", "reason"), [(calls_out, "calls"), (guarded, "predicate"), (corpus.scatter, "neither")]
)
def test_opaque_blocks_stay_serial_and_say_why(func, reason):
    (stage,) = stages(func).stages
    assert stage.kind == "serial"
    assert reason in stage.note


# --- staging ----------------------------------------------------------------------------------------------


def chain(*steps: Any, shape: tuple[int, ...] = (16, 32)) -> Any:
    """A function of one input in which each step reads the last one's result."""
    (first,) = matrices(shape)
    value = first
    for step in steps:
        value = step(value)
    return te_func(first, value)


def test_elementwise_chains_become_one_stage():
    add = lambda x: te.compute(x.shape, lambda *i: x[i] + 1.0)  # noqa: E731
    staging = stages(chain(add, add, corpus._relu, add))
    assert len(staging.stages) == 1
    assert staging.inline == (0, 1, 2)


def test_costly_producers_of_two_consumers_keep_a_buffer():
    (x,) = matrices((16, 32))
    e = te.compute(x.shape, lambda *i: te.exp(x[i]), "e")
    once = stages(te_func(x, te.compute(x.shape, lambda *i: e[i] + 1.0)))
    assert once.inline == (0,)
    y = te.compute(x.shape, lambda *i: e[i] + 1.0, "y")
    z = te.compute(x.shape, lambda *i: e[i] * 2.0, "z")
    twice = stages(te_func(x, y, z))
    assert twice.inline == ()
    assert [s.kind for s in twice.stages] == ["map"] * 3


def test_a_result_that_the_caller_sees_is_not_inlined():
    assert stages(corpus.func("two outputs")).inline == ()


def test_a_copy_is_looked_through_in_front_of_a_product():
    """A transposed weight costs nothing: the product reads the original with other strides."""
    a, w = matrices((16, 24), (32, 24))
    wt = topi.transpose(w)
    k = te.reduce_axis((0, 24), "k")
    func = te_func(a, w, te.compute((16, 32), lambda i, j: te.sum(a[i, k] * wt[k, j], axis=k), "C"))
    stage = product(func)
    assert stages(func).inline == (0,)
    assert is_copy(FuncView.of(func).blocks[0])
    read = stage.reads[stage.contraction.vector_read]
    assert read.buffer.same_as(func.params[1])
    assert (read.stride(1), read.stride(2)) == (24, 1)


def test_a_padded_image_is_kept_in_front_of_a_product():
    """Conditions do not belong into the inner loop."""
    staging = stages(corpus.func("conv 3x3"))
    assert [s.kind for s in staging.stages] == ["map", "contraction"]
    assert staging.inline == ()


def test_a_long_chain_stops_growing():
    """Every value that is read twice doubles the expression: at some size it is kept in a buffer."""
    square = lambda x: te.compute(x.shape, lambda *i: x[i] * x[i] + 1.0)  # noqa: E731
    length = MAX_INLINED_SIZE.bit_length() + 3
    staging = stages(chain(*[square] * length))
    assert 1 < len(staging.stages) < length


def epilogue(func: Any) -> Stage | None:
    return product(func).epilogue


def test_bias_and_activation_are_the_epilogue():
    found = epilogue(corpus.func("matmul bias relu"))
    assert found is not None
    assert len(found.inlined) == 1
    found = epilogue(corpus.func("conv bias relu"))
    assert found is not None
    assert len(found.inlined) == 1


def test_an_epilogue_may_read_its_producer_twice():
    """Hard swish: the biased sum is read by the gate and by the product with it."""
    found = epilogue(corpus.func("conv bias hard swish"))
    assert found is not None
    assert len(found.inlined) == 2


def residual(after: bool) -> Any:
    """C = A·B + f(X), with f computed before or after the product in program order."""
    a, b, x = matrices((16, 24), (24, 32), (16, 32))
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    # A reduction, so that it is not inlined.
    n = te.reduce_axis((0, 32), "n")
    total = te.compute((16,), lambda i: te.sum(x[i, n], axis=n), "total")
    terms = (lambda i, j: C[i, j] + total[i]) if after else (lambda i, j: total[i] + C[i, j])
    return te_func(a, b, x, te.compute((16, 32), terms, "D"))


@pytest.mark.parametrize("after", [False, True])
def test_a_consumer_of_another_stage_is_no_epilogue(after):
    """Moving it into the product's tile would need the other stage there as well."""
    assert epilogue(residual(after)) is None


@pytest.mark.parametrize("after", [False, True])
def test_residual_sums_are_right_in_either_order(after, target):
    func = residual(after)
    assert dl.verify(func, dl.cpu.Matmul().apply(func, target, False).mod["main"], target)


@pytest.mark.parametrize("shape", [(16, 1), (1, 32), (1, 1), (16, 32)])
def test_a_broadcast_operand_is_an_epilogue(shape):
    a, b, x = matrices((16, 24), (24, 32), shape)
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    found = epilogue(te_func(a, b, x, topi.add(C, x)))
    assert found is not None


def test_a_reshaping_consumer_is_no_epilogue():
    a, b = matrices((16, 24), (24, 32))
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    assert epilogue(te_func(a, b, topi.transpose(C))) is None
    assert epilogue(te_func(a, b, te.compute((8, 32), lambda i, j: C[i * 2, j] + 1.0))) is None


def test_a_result_that_the_caller_sees_has_no_epilogue():
    a, b = matrices((16, 24), (24, 32))
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    assert epilogue(te_func(a, b, C, corpus._relu(C))) is None


def test_two_readers_of_a_product_are_no_epilogue():
    a, b = matrices((16, 24), (24, 32))
    k = te.reduce_axis((0, 24), "k")
    C = te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")
    assert epilogue(te_func(a, b, corpus._relu(C), te.compute(C.shape, lambda *i: C[i] + 1.0))) is None


def test_softmax_has_its_four_steps():
    staging = stages(corpus.func("softmax"))
    assert [s.kind for s in staging.stages] == ["reduction", "map", "reduction", "map"]


def test_conditions_are_followed_through_what_is_inlined():
    """A pad that is inlined makes the reader's innermost iterator conditional."""
    (x,) = matrices((16, 30))
    padded = topi.nn.pad(x, [0, 1], [0, 1])
    (stage,) = stages(te_func(x, corpus._relu(padded))).stages
    assert stage.branch_iters == {1}
    (plain,) = stages(corpus.func("add relu")).stages
    assert plain.branch_iters == frozenset()
