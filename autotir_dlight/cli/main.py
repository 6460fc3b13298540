# SPDX-License-Identifier: Apache-2.0
"""Parse the command line, run one command, print its answer or, for an error, one sentence."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, NoReturn

from .. import settings
from ..errors import CheckFailed, UserError, first_line
from . import bench, commands, options, tune
from .answer import BAD_INPUT, FAILED, plain

# ``tune`` takes a model and ``tune report`` a database, which argparse can only tell apart by name.
REPORT = "tune-report"


class _Usage(Exception):
    """The command line does not parse; the message is one sentence, prefixed with the command."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{self.prog}: {message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's): 0 done, 1 a check failed, 2 bad input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:2] == ["tune", "report"]:
        arguments[:2] = [REPORT]
    try:
        args = parser().parse_args(arguments)
    except SystemExit as end:  # --help and --version have printed what was asked for
        return int(end.code or 0)
    except _Usage as err:
        return _fail(str(err), BAD_INPUT, "--json" in arguments)
    try:
        settings.current()
    except ValueError as err:
        return _fail(f"autotir-dlight: {err}", BAD_INPUT, args.json)
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        with redirect_stdout(sys.stderr):  # libraries that print must not mix with the answer
            answer = args.do(args)
    except (KeyboardInterrupt, Exception) as err:
        if args.debug:
            traceback.print_exc()
        code = BAD_INPUT if isinstance(err, UserError) and not isinstance(err, CheckFailed) else FAILED
        return _fail(f"autotir-dlight {args.command}: {_sentence(err)}", code, args.json)
    _print(json.dumps(plain(answer.data), allow_nan=False) if args.json else answer.text)
    return answer.code


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(err: BaseException) -> str:
    if isinstance(err, UserError):
        return str(err)
    if isinstance(err, KeyboardInterrupt):
        return "interrupted"
    return f"{type(err).__name__}: {first_line(err)} (--debug shows where)"


def _fail(sentence: str, code: int, as_json: bool) -> int:
    print(sentence, file=sys.stderr)
    if as_json:
        _print(json.dumps({"error": sentence}))
    return code


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``do`` of what it parses is the command's function."""
    top = _Parser(
        prog="autotir-dlight",
        description="Compile ONNX models with TVM and schedules that need no tuning.",
    )
    top.add_argument("--version", action="version", version=options.version())
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for add, do in (
        (_add_compile, commands.compile_),
        (_add_run, commands.run),
        (_add_explain, commands.explain),
        (_add_tune, tune.tune),
        (_add_report, tune.report),
    ):
        sub = add(subparsers)
        sub.set_defaults(do=do)
        _add_common(sub)
    _add_bench(subparsers)
    return top


def _add_common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="print the answer as one JSON document")
    sub.add_argument("--debug", action="store_true", help="show tracebacks and what other libraries print")


def _add_compile(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        "compile", help="compile an ONNX model to a shared library"
    )
    options.add_model(sub)
    sub.add_argument("-o", "--output", required=True, metavar="MODEL.so", help="the library to write")
    sub.add_argument(
        "--cc", default="", metavar="COMPILER", help="C++ compiler to link with (default: the system's)"
    )
    sub.add_argument(
        "--verify",
        action="store_true",
        help="compare with ONNX Runtime (or plain TVM) before the library is written",
    )
    sub.add_argument("--database", default=None, metavar="DIR", help="schedules that tune found")
    sub.add_argument(
        "--any-machine", action="store_true", help="also apply what was tuned on another kind of machine"
    )
    options.add_inputs(sub)
    options.add_threads(sub)
    return sub


def _add_tune(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        "tune", help="search for faster schedules than the default ones, into a database"
    )
    tune.add_tune(sub)
    return sub


def _add_report(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        REPORT, help="show what a tuning database holds (also: tune report DIR)"
    )
    tune.add_report(sub)
    return sub


def _add_run(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser("run", help="run a compiled model on arrays")
    sub.add_argument("library", metavar="MODEL.so", help="what compile wrote; running it runs its code")
    options.add_inputs(sub)
    sub.add_argument("--output", default="", metavar="DIR", help="write each output there as a .npy file")
    options.add_threads(sub)
    return sub


def _add_explain(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        "explain", help="say which rule took which function, and why"
    )
    options.add_model(sub)
    sub.add_argument("--html", default="", metavar="OUT.html", help="write the report as a page of its own")
    return sub


def _add_bench(subparsers: Any) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        "bench", help="time operators or models beside the other libraries that are installed"
    )
    kinds = sub.add_subparsers(dest="kind", required=True, metavar="ops|models", parser_class=_Parser)
    ops = kinds.add_parser("ops", help="operators, each beside what bounds it on this machine")
    options.add_operators(ops)
    models = kinds.add_parser("models", help="models by name, or from ONNX files")
    options.add_models(models)
    for kind, do in ((ops, bench.operators), (models, bench.models)):
        kind.set_defaults(do=do)
        options.add_threads(kind)
        options.add_document(kind)
        _add_common(kind)
    return sub
