# SPDX-License-Identifier: Apache-2.0
"""Knobs: their choices, how they are drawn, named in nested plans, and overridden."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotir_dlight.knobs import (
    Knob,
    constant,
    knob,
    knob_values,
    knobs_of,
    map_knobs,
    override_knobs,
    sampler,
)
from autotir_dlight.report import KnobValue
from autotir_dlight.rule import plan_structure


@dataclass(frozen=True)
class Tile:
    kind: str
    rows: int
    width: Knob
    axes: tuple[int, ...] = (0, 2)


@dataclass(frozen=True)
class Plan:
    stages: tuple[object, ...]
    depth: Knob | None = None
    inner: Tile | None = None


def tile(value: int = 4, rows: int = 6) -> Tile:
    return Tile("tile", rows, knob(value, [2, 8], "because"))


ONE = Plan((tile(),))
TWO = Plan((tile(4), None, tile(8, 7)), knob(3, [1], "deep"))


def test_choices_are_sorted_unique_and_hold_the_value():
    made = knob(4, [8, 2, 8], "why")
    assert made == Knob(4, (2, 4, 8), "why", "formula")


def test_a_value_beside_the_choices_is_refused():
    with pytest.raises(ValueError, match=r"value 3 is not among its choices \(1, 2\)"):
        Knob(3, (1, 2), "why")


@given(st.integers(), st.lists(st.integers()))
def test_any_value_and_choices_make_a_knob(value, choices):
    made = knob(value, choices, "why")
    assert list(made.choices) == sorted({value, *choices})


@given(st.integers(), st.lists(st.integers()), st.integers())
def test_an_override_is_the_value_and_a_choice(value, choices, wanted):
    changed = knob(value, choices, "why").override(wanted)
    assert (changed.value, changed.source, changed.why) == (wanted, "override", "why")
    assert set(changed.choices) == {value, wanted, *choices}


def test_drawing_the_constant():
    assert constant(knob(4, [2, 8], "why")) == 4


def test_sampling_draws_the_choices_with_the_default_as_decision():
    class Recorder:
        def sample_categorical(self, choices, probabilities, decision):
            self.seen = (choices, probabilities, decision)
            return "a variable"

    recorder = Recorder()
    assert sampler(recorder)(knob(8, [2, 4, 16], "why")) == "a variable"
    choices, probabilities, decision = recorder.seen
    assert choices == [2, 4, 8, 16]
    assert probabilities == [0.25] * 4
    assert decision == 2


def test_a_single_stage_gives_its_knobs_their_plain_names():
    assert list(knobs_of(ONE)) == ["width"]


def test_knobs_of_several_stages_are_told_apart():
    assert {name: k.value for name, k in knobs_of(TWO).items()} == {"0.width": 4, "1.width": 8, "depth": 3}


def test_a_nested_plan_is_looked_into():
    assert list(knobs_of(Plan((), inner=tile()))) == ["width"]


def test_knobs_as_the_report_holds_them():
    assert knob_values(ONE) == [KnobValue("width", 4, "formula", "because")]


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        ({}, {"0.width": 4, "1.width": 8, "depth": 3}),
        ({"width": 2}, {"0.width": 2, "1.width": 2, "depth": 3}),
        ({"1.width": 2}, {"0.width": 4, "1.width": 2, "depth": 3}),
        ({"width": 2, "1.width": 16}, {"0.width": 2, "1.width": 16, "depth": 3}),
        ({"depth": 5}, {"0.width": 4, "1.width": 8, "depth": 5}),
    ],
)
def test_overrides_by_full_name_and_by_last_part(wanted, values):
    changed = override_knobs(TWO, wanted)
    assert {name: k.value for name, k in knobs_of(changed).items()} == values
    moved = {name for name, k in knobs_of(changed).items() if k.source == "override"}
    assert moved == {name for name in values if wanted.keys() & {name, name.rpartition(".")[2]}}


def test_an_override_keeps_everything_else():
    changed = override_knobs(TWO, {"width": 2})
    assert plan_structure(changed) == plan_structure(TWO)
    assert changed.stages[1] is None
    assert override_knobs(TWO, {}) is TWO


def test_mapping_reaches_every_knob_with_its_name():
    seen = []

    def double(name, item):
        seen.append(name)
        return replace(item, value=item.value * 2, choices=(item.value * 2,))

    plan = replace(TWO, inner=tile(16))
    doubled = map_knobs(plan, double)
    assert sorted(seen) == sorted(["0.width", "1.width", "depth", "width"])
    assert [k.value for k in knobs_of(doubled).values()] == [2 * k.value for k in knobs_of(plan).values()]


def test_structure_is_the_plain_fields():
    assert plan_structure(ONE) == {"kind": "tile", "rows": 6, "axes": [0, 2]}
    assert plan_structure(TWO) == {
        "0.kind": "tile",
        "0.rows": 6,
        "0.axes": [0, 2],
        "1.kind": "tile",
        "1.rows": 7,
        "1.axes": [0, 2],
    }
