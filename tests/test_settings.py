# SPDX-License-Identifier: Apache-2.0
"""Settings: read from the environment when used, overridden for a block of code."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError

import pytest

from autotir_dlight import settings
from autotir_dlight.settings import Settings, current, override, parse_plan


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("DEBUG", "STRICT", "PLAN", "DUMP"):
        monkeypatch.delenv(f"AUTOTIR_{name}", raising=False)


def test_defaults():
    assert current() == Settings(debug=0, strict=False, plan={}, dump="")


def test_the_environment_is_read_at_each_call(monkeypatch):
    assert not current().strict
    monkeypatch.setenv("AUTOTIR_STRICT", "1")
    monkeypatch.setenv("AUTOTIR_DEBUG", "3")
    monkeypatch.setenv("AUTOTIR_DUMP", "/tmp/dump")
    monkeypatch.setenv("AUTOTIR_PLAN", "cpu.Matmul:kc=256")
    assert current() == Settings(3, True, {"cpu.Matmul": {"kc": 256}}, "/tmp/dump")
    monkeypatch.setenv("AUTOTIR_STRICT", "0")
    assert not current().strict


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("", {}),
        (" ; ", {}),
        (
            "cpu.Matmul:kc=256,mr=4;cpu.Conv:nr=16",
            {"cpu.Matmul": {"kc": 256, "mr": 4}, "cpu.Conv": {"nr": 16}},
        ),
        (" cpu.Matmul : kc = 256 , mr=-1 ;", {"cpu.Matmul": {"kc": 256, "mr": -1}}),
        ("cpu.Matmul:kc=256;cpu.Matmul:mr=4", {"cpu.Matmul": {"kc": 256, "mr": 4}}),
    ],
)
def test_parse_plan(text, plan):
    assert parse_plan(text) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kc=256", "'kc=256' is not of the form 'rule:knob=value,knob=value'"),
        ("cpu.Matmul", "'cpu.Matmul' is not of the form 'rule:knob=value,knob=value'"),
        (":kc=1", "':kc=1' is not of the form 'rule:knob=value,knob=value'"),
        ("cpu.Matmul:", "'' in 'cpu.Matmul:' is not of the form 'knob=integer'"),
        ("cpu.Matmul:kc=big", "'kc=big' in 'cpu.Matmul:kc=big' is not of the form 'knob=integer'"),
        ("cpu.Matmul:kc=1.5", "'kc=1.5' in 'cpu.Matmul:kc=1.5' is not of the form 'knob=integer'"),
        ("cpu.Matmul:kc=1,,mr=2", "'' in 'cpu.Matmul:kc=1,,mr=2' is not of the form 'knob=integer'"),
        ("cpu.Matmul:kc=1,kc=2", "cpu.Matmul is given kc twice"),
    ],
)
def test_a_malformed_plan_is_named(text, complaint, monkeypatch):
    monkeypatch.setenv("AUTOTIR_PLAN", text)
    with pytest.raises(ValueError) as found:
        current()
    assert str(found.value) == f"AUTOTIR_PLAN: {complaint}"


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("DEBUG", "high", "AUTOTIR_DEBUG must be a number from 0 to 5, not 'high'"),
        ("DEBUG", "6", "AUTOTIR_DEBUG must be 0 to 5, not 6"),
        ("DEBUG", "-1", "AUTOTIR_DEBUG must be a number from 0 to 5, not '-1'"),
        ("STRICT", "maybe", "AUTOTIR_STRICT must be 0 or 1, not 'maybe'"),
    ],
)
def test_a_malformed_value_is_named(name, value, complaint, monkeypatch):
    monkeypatch.setenv(f"AUTOTIR_{name}", value)
    with pytest.raises(ValueError) as found:
        current()
    assert str(found.value) == complaint


def test_override_wins_over_the_environment_and_ends(monkeypatch):
    monkeypatch.setenv("AUTOTIR_STRICT", "0")
    monkeypatch.setenv("AUTOTIR_DEBUG", "2")
    with override(strict=True) as inner:
        assert inner == current() == Settings(debug=2, strict=True)
    assert not current().strict


def test_overrides_nest_and_end_after_an_exception():
    with pytest.raises(RuntimeError), override(strict=True):
        with override(debug=4, plan={"cpu.Conv": {"nr": 8}}):
            assert current() == Settings(4, True, {"cpu.Conv": {"nr": 8}})
        assert current() == Settings(0, True)
        raise RuntimeError
    assert current() == Settings()


def test_an_overridden_variable_is_not_read(monkeypatch):
    monkeypatch.setenv("AUTOTIR_PLAN", "nonsense")
    with override(plan={}):
        assert current().plan == {}


def test_an_override_is_not_seen_by_other_threads():
    seen = []
    with override(strict=True):
        thread = threading.Thread(target=lambda: seen.append(current().strict))
        thread.start()
        thread.join()
    assert seen == [False]


def test_override_refuses_what_is_no_setting():
    complaint = "no setting is named strickt; there are debug, dump, plan, strict"
    with pytest.raises(TypeError, match=complaint), override(strickt=True):
        pass
    with pytest.raises(ValueError, match="must be 0 to 5, not 9"), override(debug=9):
        pass
    assert current() == Settings()


def test_settings_cannot_be_changed_in_place():
    plan = {"cpu.Matmul": {"kc": 1}}
    taken = Settings(plan=plan)
    plan["cpu.Matmul"]["kc"] = 2
    assert taken.plan["cpu.Matmul"]["kc"] == 1
    with pytest.raises(FrozenInstanceError):
        taken.strict = True
    with pytest.raises(TypeError):
        taken.plan["cpu.Conv"] = {}


def test_every_setting_is_documented():
    for name in ("AUTOTIR_DEBUG", "AUTOTIR_STRICT", "AUTOTIR_PLAN", "AUTOTIR_DUMP"):
        assert name in settings.__doc__
