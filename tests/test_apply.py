# SPDX-License-Identifier: Apache-2.0
"""The module pass: what it touches, whose rules it takes, and what it says when something is wrong."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx, topi
from tvm.s_tir import Schedule, dlight

import autotir_dlight as dl
from autotir_dlight import settings
from autotir_dlight.errors import RuleBug


def softmax_func(rows=64, columns=1000):
    x = te.placeholder((rows, columns), name="x")
    return te.create_prim_func([x, topi.nn.softmax(x)])


def matmul_func(m=64, n=48, k=32):
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def conv_func():
    x, w = te.placeholder((1, 8, 20, 20), name="x"), te.placeholder((16, 8, 3, 3), name="w")
    bias = te.placeholder((1, 16, 1, 1), name="bias")
    return te.create_prim_func([x, w, bias, topi.nn.relu(topi.add(topi.nn.conv2d_nchw(x, w, 1, 1, 1), bias))])


def module(**funcs):
    return tvm.IRModule(funcs)


def apply(mod, *rules, target=None, report=None):
    target = target or dl.host_target()
    with target:
        return dl.ApplyDefaultSchedule(*(rules or dl.rules(target)), report=report)(mod)


def scheduled(mod, name):
    return bool(mod[name].attrs.get("tirx.is_scheduled"))


def test_the_input_module_is_not_changed():
    mod = module(softmax=softmax_func(), matmul=matmul_func())
    before = tvm.ir.save_json(mod)
    after = apply(mod)
    assert tvm.ir.save_json(mod) == before
    assert scheduled(after, "softmax") and scheduled(after, "matmul")


def test_functions_that_are_scheduled_stay_as_they_are():
    done = matmul_func().with_attr("tirx.is_scheduled", True)
    report = dl.Report()
    after = apply(module(done=done), report=report)
    assert after["done"].same_as(done)
    assert (report["done"].status, report["done"].note) == ("left alone", "already scheduled")


def test_external_and_relax_functions_stay():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    mod = builder.get()
    mod["extern"] = relax.ExternFunc("somewhere.else")
    after = apply(mod)
    assert after["main"].same_as(mod["main"]) and after["extern"].same_as(mod["extern"])


def test_a_functions_own_target_comes_first():
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")
    report = dl.Report()
    mod = module(device=matmul_func().with_attr("target", cuda), host=matmul_func())
    after = apply(mod, report=report)
    assert after["device"].same_as(mod["device"]) and scheduled(after, "host")
    assert report["device"].status == "left alone" and "cuda" in report["device"].note


def test_a_functions_own_target_is_enough():
    mod = module(main=matmul_func().with_attr("target", dl.host_target()))
    assert scheduled(dl.ApplyDefaultSchedule(dl.cpu.Matmul())(mod), "main")


def test_without_any_target_it_says_what_to_do():
    with pytest.raises(ValueError, match="with target:"):
        dl.ApplyDefaultSchedule(dl.cpu.Matmul())(module(main=matmul_func()))


def test_without_rules_it_says_what_to_do():
    with pytest.raises(ValueError, match="at least one rule"):
        dl.ApplyDefaultSchedule()


def test_our_rules_run_in_upstreams_pass():
    with dl.host_target():
        after = dlight.ApplyDefaultSchedule(dl.cpu.Matmul(), dl.cpu.Fallback())(
            module(matmul=matmul_func(), softmax=softmax_func())
        )
    assert scheduled(after, "matmul") and scheduled(after, "softmax")


def test_upstreams_rules_run_in_our_pass():
    report = dl.Report()
    after = apply(module(main=softmax_func()), dlight.cpu.Reduction(), dl.cpu.Fallback(), report=report)
    assert scheduled(after, "main") and report["main"].rule in ("Reduction", "cpu.Fallback")


def test_a_users_rule_runs_in_our_pass():
    @dlight.ScheduleRule.from_callable("Mine")
    def mine(func, target, tunable):
        return Schedule(func)

    report = dl.Report()
    assert scheduled(apply(module(main=matmul_func()), mine, report=report), "main")
    assert report["main"].rule == "Mine"


def test_inside_a_sequence_of_passes():
    target = dl.host_target()
    with target:
        after = tvm.transform.Sequential(
            [tirx.transform.StmtSimplify(), dl.ApplyDefaultSchedule(*dl.rules(target))]
        )(module(main=matmul_func()))
    assert scheduled(after, "main")


class Broken(dl.Rule):
    """Takes everything and can schedule nothing."""

    name = "test.Broken"

    def match(self, view, machine):
        return view

    def plans(self, match, machine):
        return [settings.Settings()]

    def schedule(self, sch, match, plan, draw):
        sch.get_sblock("no such block")


def test_a_failing_rule_is_reported_and_the_next_is_tried():
    report = dl.Report()
    with settings.override(strict=False):
        after = apply(module(main=matmul_func()), Broken(), dl.cpu.Matmul(), report=report)
    assert scheduled(after, "main") and report["main"].rule == "cpu.Matmul"
    assert len(report["main"].bugs) == 1 and "test.Broken" in report["main"].bugs[0]
    assert "RULE BUG" in str(report)


def test_a_failing_rule_is_raised_in_strict_mode():
    with settings.override(strict=True), pytest.raises(RuntimeError, match="cannot schedule"):
        apply(module(main=matmul_func()), Broken(), dl.cpu.Matmul())


def test_a_bug_holds_what_repeats_it():
    func, rule = matmul_func(), Broken()
    decision = rule.decide(func, dl.host_target())
    with pytest.raises(RuleBug) as caught:
        rule.build(func, decision, decision.plan)
    details = caught.value.details()
    assert "test.Broken" in details and "T.prim_func" in details and "Settings" in details


def test_refusals_have_reasons():
    report = dl.Report()
    apply(module(main=softmax_func()), report=report)
    refused = {verdict.rule: verdict for verdict in report["main"].rejected}
    assert set(refused) == {"cpu.Conv", "cpu.Matmul", "cpu.GEMV"}
    assert all(verdict.reason and verdict.where for verdict in refused.values())
    assert json.loads(report.to_json())["functions"][0]["rule"] == "cpu.Reduction"


def test_an_override_wins_and_the_report_says_so():
    x = te.placeholder((1024, 1024), name="x")
    func = te.create_prim_func([x, topi.nn.relu(x)])
    report = dl.Report()
    with settings.override(plan={"cpu.Elementwise": {"inner": 32}}):
        after = apply(module(main=func), report=report)
    (knob,) = report["main"].knobs
    assert (knob.name, knob.value, knob.source) == ("inner", 32, "override")
    values = np.random.default_rng(0).standard_normal((1024, 1024)).astype("float32")
    out = tvm.runtime.tensor(np.zeros_like(values))
    tvm.compile(after, target=dl.host_target())["main"](tvm.runtime.tensor(values), out)
    np.testing.assert_array_equal(out.numpy(), np.maximum(values, 0))


@pytest.mark.parametrize("plan", [{"cpu.Mistake": {"inner": 1}}, {"cpu.Matmul": {"mistake": 1}}])
def test_misspelt_overrides_are_refused(plan):
    with settings.override(plan=plan), pytest.raises(ValueError, match="AUTOTIR_PLAN"):
        apply(module(main=matmul_func()))


def test_dumps_are_written(tmp_path):
    with settings.override(dump=str(tmp_path)):
        apply(module(main=matmul_func()))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"main.before.py", "main.after.py", "main.report.json"}
    assert "tirx.is_scheduled" in (tmp_path / "main.after.py").read_text()
    assert "tirx.is_scheduled" not in (tmp_path / "main.before.py").read_text()
    assert dl.Report.from_json((tmp_path / "main.report.json").read_text())["main"].rule == "cpu.Matmul"


# --- names and order -------------------------------------------------------------------------------------


def renamed(func):
    """``func`` with other names for all its blocks, buffers and loops."""
    text = func.with_attr("global_symbol", "main").script()
    names = {str(p.name) for p in func.params}
    root = func.body.block
    names |= {str(b.name) for b in root.alloc_buffers}
    schedule = Schedule(func)
    names |= {schedule.get(b).name_hint for b in schedule.get_child_blocks(schedule.get_sblock("root"))}
    for position, name in enumerate(sorted(names, key=len, reverse=True)):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w])", f"renamed{position}", text)
    assert "renamed0" in text and not any(f"{name}[" in text for name in names)
    return tvm.script.from_source(text)


@pytest.mark.parametrize("make", [softmax_func, matmul_func, conv_func])
def test_names_decide_nothing(make):
    decisions = []
    for func in (make(), renamed(make())):
        report = dl.Report()
        apply(module(main=func), report=report)
        entry = report["main"]
        decisions.append((entry.rule, entry.plan, entry.structure, entry.knobs, entry.recognised))
    assert decisions[0] == decisions[1]


def test_the_order_of_functions_decides_nothing():
    funcs = {"a": softmax_func(), "b": matmul_func(), "c": conv_func()}
    forward = apply(tvm.IRModule(dict(funcs)))
    backward = apply(tvm.IRModule(dict(reversed(funcs.items()))))
    for name in funcs:
        assert tvm.ir.save_json(forward[name]) == tvm.ir.save_json(backward[name])


DIGEST = """
import hashlib, tvm, autotir_dlight as dl
import test_apply as t
mod = t.apply(t.module(a=t.softmax_func(), b=t.matmul_func(), c=t.conv_func()))
text = "".join(tvm.ir.save_json(mod[name]) for name in "abc")
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_same_input_same_bytes_in_every_process():
    digests = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=env,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def test_selects_between_loads_on_positions_stay_in_bounds():
    # The simplifier turns Y[i % 14] into Y[i] under i // 14 == 0; a Select would load it for every i.
    x = te.placeholder((30, 64), "float32", "X")
    rows = te.compute(
        (4, 14, 64),
        lambda p, y, c: tirx.Select(p == 0, x[y * 2, c] - x[y * 2 + 2, c], x[y * 2 + 1, c]),
        "rows",
    )
    script = apply(module(main=te.create_prim_func([x, rows])))["main"].script()
    assert "if_then_else" in script and "Select" not in script


def test_quotients_that_are_always_zero_hide_no_product():
    # A convolution written for any number of groups, with one: c // 32 is zero for all 32 channels.
    x, w = te.placeholder((28, 64), "float32", "X"), te.placeholder((64, 32), "float32", "W")
    k = te.reduce_axis((0, 64), "k")
    y = te.compute((28, 32), lambda i, c: te.sum(x[i, c // 32 * 64 + k] * w[k, c], k), "Y")
    report = dl.Report()
    apply(module(main=te.create_prim_func([x, w, y])), report=report)
    assert report["main"].rule == "cpu.Matmul"
