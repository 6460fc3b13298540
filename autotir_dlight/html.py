# SPDX-License-Identifier: Apache-2.0
"""A report as one page of HTML that needs nothing else: no network, no files beside it."""

from __future__ import annotations

from html import escape

from .report import FunctionReport, KnobValue, Report, Verdict

_BASE_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bug: #c33; --mark: #47c; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
.number { text-align: right; white-space: nowrap; }
"""

_STYLE = """
code, .number { font-family: ui-monospace, monospace; font-size: .92em; }
.target { color: gray; overflow-wrap: anywhere; }
.controls { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1rem 0; }
.controls input { flex: 1; min-width: 14rem; padding: .3rem .5rem; font: inherit; }
.controls select { padding: .3rem; font: inherit; }
td:first-child, td td { overflow-wrap: anywhere; }
thead th { padding: 0; }
thead button { font: inherit; font-weight: 600; border: 0; background: none; color: inherit; cursor: pointer;
  width: 100%; text-align: inherit; padding: .3rem .6rem; }
th[aria-sort="ascending"] button::after { content: " \\25B2"; }
th[aria-sort="descending"] button::after { content: " \\25BC"; }
details { margin: .1rem 0; }
details > div { background: var(--soft); padding: .5rem .8rem; margin: .3rem 0; }
h3 { font-size: .95rem; margin: .6rem 0 .2rem; }
h3:first-child { margin-top: 0; }
.bug, .unscheduled { color: var(--bug); font-weight: 600; }
[hidden] { display: none; }
"""

_SCRIPT = """
const body = document.querySelector("#functions tbody");
const rows = Array.from(body.rows);
const words = document.getElementById("words"), rule = document.getElementById("rule");
const shown = document.getElementById("shown");
function filter() {
  const wanted = words.value.toLowerCase().split(/\\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = (!rule.value || row.dataset.group === rule.value) && wanted.every(w => text.includes(w));
    row.hidden = !fits;
    count += fits;
  }
  shown.textContent = count + " of " + rows.length + " functions";
}
words.addEventListener("input", filter);
rule.addEventListener("change", filter);
document.querySelectorAll("#functions thead button").forEach((button, column) => {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const up = header.getAttribute("aria-sort") !== "ascending";
    document.querySelectorAll("#functions thead th").forEach(th => th.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
    rows.sort((a, b) => (up ? order(a, b) : order(b, a)));
    body.append(...rows);
  });
});
filter();
"""


def page(title: str, heading: str, style: str, content: str) -> str:
    """A whole page; ``title`` and ``heading`` are escaped, ``style`` and ``content`` taken as they are."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_BASE_STYLE}{style}</style>
</head>
<body>
<h1>{escape(heading)}</h1>
{content}
</body>
</html>
"""


def render(report: Report, title: str) -> str:
    """The page for ``report``: a table of its functions that can be sorted and filtered, details folded in.

    Everything that comes from the report or ``title`` is escaped.
    """
    groups = sorted({_group(entry) for entry in report})
    choices = "".join(f'<option value="{escape(group)}">{escape(group)}</option>' for group in groups)
    content = f"""<p class="target">{escape(report.target)}</p>
<p>{_summary(report)}</p>
<div class="controls">
<input id="words" type="search" placeholder="words to look for" aria-label="words to look for">
<select id="rule" aria-label="rule"><option value="">every rule</option>{choices}</select>
<output id="shown"></output>
</div>
<table id="functions">
<thead><tr>{_headers()}</tr></thead>
<tbody>
{"".join(_row(entry) for entry in report)}</tbody>
</table>
<script>{_SCRIPT}</script>"""
    return page(f"{title}: schedules", f"{title}: who took which function, and why", _STYLE, content)


def _headers() -> str:
    columns = {"Function": "", "Rule": "", "Plan": "", "Details": "", "ms": ' class="number"'}
    return "".join(
        f'<th scope="col"{attributes}><button type="button">{name}</button></th>'
        for name, attributes in columns.items()
    )


def _group(entry: FunctionReport) -> str:
    return entry.rule or entry.status


def _summary(report: Report) -> str:
    counts: dict[str, int] = {}
    for entry in report:
        counts[_group(entry)] = counts.get(_group(entry), 0) + 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{escape(group)}: {count}" for group, count in ranked) or "The module has no function."


def _row(entry: FunctionReport) -> str:
    took = (
        escape(entry.rule)
        if entry.rule
        else f'<span class="{_css(entry.status)}">{escape(entry.status)}</span>'
    )
    return (
        f'<tr data-group="{escape(_group(entry))}"><td><code>{escape(entry.function)}</code></td>'
        f"<td>{took}</td><td>{escape(entry.plan)}</td><td>{_details(entry)}</td>"
        f'<td class="number" data-value="{entry.seconds * 1e3:.3f}">{entry.seconds * 1e3:.1f}</td></tr>\n'
    )


def _css(status: str) -> str:
    return "unscheduled" if status == "unscheduled" else "status"


def _details(entry: FunctionReport) -> str:
    parts = [
        _facts("Recognised", entry.recognised),
        _facts("Plan", entry.structure),
        _table("Knobs", ("knob", "value", "from", "why"), [_knob(knob) for knob in entry.knobs]),
        _table("Rules that left it", ("rule", "reason", "where"), [_verdict(v) for v in entry.rejected]),
        f"<p>{escape(entry.note)}</p>" if entry.note else "",
        "".join(f'<p class="bug">Bug of a rule: {escape(bug)}</p>' for bug in entry.bugs),
    ]
    inner = "".join(parts)
    if not inner:
        return ""
    title = ", ".join(f"{name} {value}" for name, value in entry.recognised.items()) or "why"
    opened = " open" if entry.bugs else ""
    return f"<details{opened}><summary>{escape(title)}</summary><div>{inner}</div></details>"


def _facts(heading: str, facts: dict[str, object]) -> str:
    return _table(heading, (), [(str(name), str(value)) for name, value in facts.items()])


def _knob(knob: KnobValue) -> tuple[str, ...]:
    return knob.name, str(knob.value), knob.source, knob.why


def _verdict(verdict: Verdict) -> tuple[str, ...]:
    return verdict.rule, verdict.reason, verdict.where


def _table(heading: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "<tr>" + "".join(f'<th scope="col">{escape(c)}</th>' for c in columns) + "</tr>" if columns else ""
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<h3>{escape(heading)}</h3><table>{head}{lines}</table>"
