# SPDX-License-Identifier: Apache-2.0
"""The commands that tune a model and that show what a tuning database holds."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..artifact import replacing
from ..errors import UserError
from ..tune.api import TRIALS, tune_relax
from ..tune.measure import local_runner, rpc_runner
from ..tune.records import FILE, Database
from ..tune.summary import Summary, aligned
from ..tune.tuner import Result, State
from . import options
from .answer import Answer
from .commands import load
from .targets import check_runs_here, parse_target

NAME_WIDTH = 40


def add_tune(sub: argparse.ArgumentParser) -> None:
    """The options of ``tune``."""
    options.add_model(sub)
    sub.add_argument("--work-dir", required=True, metavar="DIR", help="the folder of the database")
    sub.add_argument(
        "--trials",
        type=options.positive,
        default=TRIALS,
        help=f"points to build and time (default: {TRIALS})",
    )
    sub.add_argument(
        "--resume", action="store_true", help="go on with the database that is in the folder, or share it"
    )
    sub.add_argument(
        "--tracker", default="", metavar="HOST:PORT", help="measure on boards of this RPC tracker"
    )
    sub.add_argument("--key", default="", metavar="K", help="the key of the boards at the tracker")
    sub.add_argument(
        "--prior", action="append", default=[], metavar="DIR", help="another database to learn from"
    )
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="another search (default: 0)")
    sub.add_argument(
        "--no-model", action="store_true", help="search without the cost model, which needs XGBoost"
    )
    sub.add_argument("--cold-cache", action="store_true", help="empty the caches before each run")
    sub.add_argument(
        "--cc", default="", metavar="COMPILER", help="C++ compiler to link with (default: the system's)"
    )
    options.add_threads(sub)


def add_report(sub: argparse.ArgumentParser) -> None:
    """The options of ``tune report``."""
    sub.add_argument("database", metavar="DIR", help="the folder of the database")
    sub.add_argument("--html", default="", metavar="OUT.html", help="write the report as a page of its own")
    sub.add_argument("--export", default="", metavar="OUT.json", help="write the records, one a line")


def tune(args: argparse.Namespace) -> Answer:
    """Tune a model's functions into a database."""
    target = parse_target(args.target)
    if bool(args.tracker) != bool(args.key):
        raise UserError("--tracker and --key are given together or not at all")
    if not args.tracker:
        check_runs_here(target)
    folder = Path(args.work_dir)
    if (folder / FILE).exists() and not args.resume:
        raise UserError(f"{args.work_dir!r} holds a database already: add --resume to go on with it")
    runner = (
        rpc_runner(args.tracker, args.key, args.cold_cache) if args.tracker else local_runner(args.cold_cache)
    )
    model = load(args)
    with Table() as table:
        result = tune_relax(
            model.module,
            None,
            target,
            folder,
            trials=args.trials,
            runner=runner,
            compiler=args.cc,
            prior=args.prior,
            seed=args.seed,
            model=not args.no_model,
            threads=args.threads,
            on_progress=table.show,
        )
    return _answer(args, result)


def _answer(args: argparse.Namespace, result: Result) -> Answer:
    data = {
        "work_dir": args.work_dir,
        "trials": result.trials,
        "seconds": result.seconds,
        "gain": result.gain,
        "correlation": result.correlation,
        "tasks": [
            {
                "name": s.task.name,
                "calls": s.task.calls,
                "default_ms": 1e3 * s.default_total,
                "gain": s.gain,
                "trials": s.trials,
                "stopped": s.stopped,
            }
            for s in result.states
        ],
        "skipped": [asdict(entry) for entry in result.skipped],
    }
    lines = [table_text(result.states)]
    lines += [f"not tuned: {entry.name}: {entry.reason}" for entry in result.skipped]
    lines.append(
        f"{result.trials} trials in {result.seconds:.0f} s; the tuned functions together take "
        f"1/{result.gain:.2f} of their time; use it with compile --database {args.work_dir}"
    )
    return Answer(data, "\n".join(lines))


def report(args: argparse.Namespace) -> Answer:
    """Show what a database holds."""
    database = Database(args.database, read_only=True)
    summary = Summary.of(database)
    text = summary.text()
    if args.html:
        with replacing(args.html) as draft:
            draft.write_text(summary.html(Path(args.database).name), encoding="utf-8")
        text = f"{args.html}: {len(summary.tasks)} functions"
    if args.export:
        count = database.export(args.export)
        text += f"\n{args.export}: {count} records"
    return Answer(summary.data(), text)


def table_text(states: Sequence[State]) -> str:
    """The live table: what the most time is spent in comes first."""
    rows = [("task", "calls", "default ms", "best ms", "roof ms", "trials", "")]
    for state in sorted(states, key=lambda s: -s.weight):
        relative = 1 / state.gain if state.winner is not None else state.relative
        rows.append(
            (
                state.task.name[:NAME_WIDTH],
                str(state.task.calls),
                f"{1e3 * state.default_total:.4g}",
                f"{1e3 * state.default_total * relative:.4g}",
                f"{1e3 * state.roof:.4g}" if state.roof else "-",
                str(state.trials),
                state.stopped,
            )
        )
    return aligned(rows)


class Table:
    """Shows the table on stderr and writes over it where that is a terminal; elsewhere a line a batch."""

    def __init__(self) -> None:
        self._lines = 0
        self._start = time.monotonic()

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def show(self, states: Sequence[State], used: int, budget: int) -> None:
        """Called after each batch."""
        elapsed = time.monotonic() - self._start
        left = elapsed / max(used, 1) * max(0, budget - used)
        last = f"{used} of {budget} trials, at most {left:.0f} s left"
        if not sys.stderr.isatty():
            print(last, file=sys.stderr, flush=True)
            return
        self._clear()
        text = f"{table_text(states)}\n{last}"
        print(text, file=sys.stderr, flush=True)
        self._lines = text.count("\n") + 1

    def _clear(self) -> None:
        if self._lines:
            print(f"\x1b[{self._lines}A\x1b[J", end="", file=sys.stderr, flush=True)
            self._lines = 0
