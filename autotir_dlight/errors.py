# SPDX-License-Identifier: Apache-2.0
"""Errors whose message is one sentence for the person who asked: what is wrong and what to do."""

from __future__ import annotations


class UserError(Exception):
    """What was asked cannot be done as asked; the command line prints the message without a traceback."""


class ModelError(UserError, ValueError):
    """A model that is missing, malformed, or beyond what TVM can import, or shapes that do not fit it."""


class MissingExtraError(UserError, ImportError):
    """A package that only an extra of autotir-dlight brings is not installed."""


class ArtifactError(UserError, ValueError):
    """A compiled model that cannot be written, loaded, or fed with the given arrays."""


class TargetError(UserError, ValueError):
    """A target that TVM does not know or that this machine cannot serve."""


class WorkerError(UserError, RuntimeError):
    """A contender of a benchmark failed or died in its own process."""


class CheckFailed(UserError, AssertionError):
    """A comparison of results found them too far apart."""


def first_line(err: BaseException) -> str:
    """The first line of an error's message that says something, or the name of its type."""
    for line in str(err).splitlines():
        if line.strip():
            return line.strip()
    return type(err).__name__


class RuleBug(RuntimeError):
    """A rule took a function and then failed to schedule it: a defect of the rule, with what repeats it."""

    def __init__(self, rule: str, plan: object, func: object, cause: BaseException) -> None:
        self.rule, self.plan, self.func, self.cause = rule, plan, func, cause
        super().__init__(f"{rule} took a function that its plan cannot schedule: {last_line(cause)}")

    def details(self) -> str:
        """Rule, plan, cause and the function's loop nest, for a bug report."""
        return f"rule: {self.rule}\nplan: {self.plan}\ncause: {self.cause}\nfunction:\n{self.func}"


def last_line(err: BaseException) -> str:
    """The last line of an error's message that says something, or the name of its type."""
    for line in reversed(str(err).splitlines()):
        if line.strip():
            return line.strip()
    return type(err).__name__
