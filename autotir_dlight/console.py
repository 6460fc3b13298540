# SPDX-License-Identifier: Apache-2.0
"""Keeping a terminal clean: other people's prints out of the way, progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from tqdm import tqdm


@contextmanager
def native_output_hidden(hidden: bool = True) -> Iterator[None]:
    """Send what C++ and Python code prints to stdout and stderr nowhere while the block runs.

    Importers print remarks on every model (and on every failure, which is told better by the exception).
    """
    if not hidden:
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(fd) for fd in (1, 2)]
    streams = sys.stdout, sys.stderr
    with Path(os.devnull).open("w") as nowhere:
        for fd in (1, 2):
            os.dup2(nowhere.fileno(), fd)
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams
            for fd, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, fd)
                os.close(copy)


class Progress:
    """Steps of a longer piece of work as a bar on stderr; silent where stderr is no terminal.

    ``total`` is the number of steps; the bar names the step under way.
    """

    def __init__(self, total: int, what: str) -> None:
        self._bar = tqdm(total=total, desc=what, file=sys.stderr, disable=None, leave=False, unit="step")
        self._started = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None
    ) -> None:
        self._bar.close()

    def note(self, text: str) -> None:
        """Print a line above the bar, on stderr, terminal or not."""
        self._bar.write(text, file=sys.stderr)

    def step(self, name: str) -> None:
        """Begin the step ``name``; the one before it is done."""
        if self._started:
            self._bar.update()
        self._started = True
        self._bar.set_postfix_str(name)
