# SPDX-License-Identifier: Apache-2.0
from html.parser import HTMLParser

import pytest

from autotir_dlight.html import render
from autotir_dlight.report import FunctionReport, KnobValue, Report, Verdict

VOID = {"meta", "input", "br"}
EVIL = "<script>alert(\"1\")</script> & 'quoted'"


class Page(HTMLParser):
    """Collects the text of the page and its cells; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> in the wrong place"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data + "\n"

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def entry(**changes) -> FunctionReport:
    values = {
        "function": "fused_matmul_relu",
        "status": "scheduled",
        "recognised": {"op": "matmul", "extents": "64 x 64 x 64"},
        "rejected": [Verdict("cpu.Conv", "no window", "block k")],
        "rule": "cpu.Matmul",
        "plan": "packed",
        "structure": {"rows": 6},
        "knobs": [KnobValue("kc", 256, "formula", "half of L1")],
        "seconds": 0.0123,
    }
    return FunctionReport(**{**values, **changes})


@pytest.mark.parametrize(
    "words",
    [
        "fused_matmul_relu",
        "cpu.Matmul",
        "packed",
        "rows",
        "kc",
        "256",
        "formula",
        "half of L1",
        "64 x 64 x 64",
        "cpu.Conv",
        "no window",
        "block k",
        "12.3",
        "llvm of some kind",
        "det.onnx",
    ],
)
def test_everything_in_the_report_is_on_the_page(words):
    assert words in Page(render(Report("llvm of some kind", [entry()]), "det.onnx")).text


def test_functions_that_no_rule_took():
    functions = [
        entry(function="f", rule="", status="left alone", note="it is extern"),
        entry(function="g", rule="", status="unscheduled", bugs=["cpu.Matmul raised IndexError"]),
    ]
    text = Page(render(Report("t", functions), "m")).text
    assert "left alone" in text and "it is extern" in text
    assert "unscheduled" in text and "cpu.Matmul raised IndexError" in text


def test_everything_is_escaped():
    evil = entry(
        function=EVIL,
        rule=EVIL,
        plan=EVIL,
        note=EVIL,
        bugs=[EVIL],
        recognised={EVIL: EVIL},
        structure={EVIL: EVIL},
        rejected=[Verdict(EVIL, EVIL, EVIL)],
        knobs=[KnobValue(EVIL, 1, EVIL, EVIL)],
    )
    text = render(Report(EVIL, [evil, entry(rule="", status=EVIL)]), EVIL)
    assert EVIL not in text
    page = Page(text)
    assert page.count("script") == 1
    assert page.text.count(EVIL) >= 16
    groups = [attrs["data-group"] for tag, attrs in page.tags if "data-group" in attrs]
    assert groups == [EVIL, EVIL]


def test_the_page_needs_nothing_else():
    page = Page(render(Report("t", [entry()]), "m"))
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert not attributes & {"src", "href", "action", "srcset"}
    assert page.count("link") == 0
    text = render(Report("t", [entry()]), "m")
    assert "http" not in text and "@import" not in text and "url(" not in text


def test_one_row_a_function_and_one_choice_a_rule():
    functions = [entry(function=f"f{i}", rule=rule) for i, rule in enumerate(("cpu.B", "cpu.A", "cpu.B"))]
    page = Page(render(Report("t", functions), "m"))
    assert sum(tag == "tr" and "data-group" in attrs for tag, attrs in page.tags) == 3
    assert [attrs["value"] for tag, attrs in page.tags if tag == "option"] == ["", "cpu.A", "cpu.B"]
    assert "cpu.B: 2, cpu.A: 1" in page.text


def test_report_without_functions():
    assert "no function" in Page(render(Report("t", []), "m")).text
