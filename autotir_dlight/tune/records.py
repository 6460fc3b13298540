# SPDX-License-Identifier: Apache-2.0
"""The tuning database: what was measured and what won, in one SQLite file of a folder.

Each record is committed in a transaction of its own (write-ahead log), so that a process killed at any moment
loses at most the measurement that it was making, and several tuners may share one folder. A record names the
rule, its version, the plan and the knobs' values, never a schedule's trace: it is applied by asking the rule
again, which works for other extents too and after an upgrade of TVM.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ..errors import UserError
from .keys import Key

logger = logging.getLogger("autotir_dlight")

FILE = "records.sqlite"
# Goes up when the columns change.
FORMAT = 1
# Seconds to wait for another process that is writing.
BUSY_SECONDS = 30.0

Kind = Literal["trial", "best"]


class DatabaseError(UserError, ValueError):
    """A tuning database that is missing, damaged, full, or of another version."""


@dataclass(frozen=True)
class Record:
    """One measurement, or (``kind`` ``"best"``) what won a function's tuning.

    Attributes
    ----------
    kind : ``"trial"`` or ``"best"``
    rule, rule_version : the rule and its ``version``
    plan : the plan's title, the structure of its stages, and its position among the plans
    knobs : the knobs' values by name
    pattern, dtype, extents : the function, see :class:`~autotir_dlight.tune.keys.Key`
    machine, machine_name : the digest of the machine, and its name for people
    cases : the values of symbolic extents that it was measured at, one empty entry where there are none
    seconds : one time a case, a median over rounds for a winner; empty where the trial failed
    default_seconds : the same for the default schedule, measured in turns with this one
    error : why the trial failed, else ``""``
    meta : facts for people and for the cost model: function's name, calls, versions, features, predicted
    created : seconds since 1970
    """

    kind: Kind
    rule: str
    rule_version: int
    plan: dict[str, Any]
    knobs: dict[str, int]
    pattern: str
    dtype: str
    extents: tuple[int | None, ...]
    machine: str
    machine_name: str
    cases: tuple[dict[str, int], ...]
    seconds: tuple[float, ...]
    default_seconds: tuple[float, ...] = ()
    error: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0

    @property
    def key(self) -> Key:
        """What the function computes."""
        return Key(self.pattern, self.dtype, self.extents)

    @property
    def gain(self) -> float:
        """The default's time over this one's, the geometric mean over the cases; 1 where unknown."""
        return 1.0 / self.relative if math.isfinite(self.relative) else 1.0

    @property
    def relative(self) -> float:
        """This one's time over the default's, as :func:`relative_time` says."""
        return relative_time(self.seconds, self.default_seconds)


def relative_time(seconds: Sequence[float], default: Sequence[float]) -> float:
    """The geometric mean of the cases' times over the default's; infinite where there are none."""
    if not seconds or len(seconds) != len(default):
        return math.inf
    return math.exp(sum(math.log(s / d) for s, d in zip(seconds, default)) / len(seconds))


_JSON = ("plan", "knobs", "extents", "cases", "seconds", "default_seconds", "meta")
_COLUMNS = tuple(item.name for item in fields(Record))
_TEXT = {"rule_version": "INTEGER", "created": "REAL"}
_CREATE = (
    "CREATE TABLE IF NOT EXISTS records (id INTEGER PRIMARY KEY, "
    + ", ".join(f"{name} {_TEXT.get(name, 'TEXT')} NOT NULL" for name in _COLUMNS)
    + ")"
)
_INDEX = "CREATE INDEX IF NOT EXISTS records_by_key ON records (machine, pattern, kind)"


class Database:
    """The records in a folder; made on the first use unless ``read_only``.

    Every call opens the file, does its work in one transaction and closes it again: a database can be used
    from any thread and process and needs no closing.

    Raises :class:`DatabaseError` where the file is missing (``read_only``), damaged, of another version, or
    cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], read_only: bool = False) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE
        if read_only:
            if not self.path.is_file():
                raise DatabaseError(f"{str(self.folder)!r} holds no tuning database: run tune first")
        else:
            self._create()
        self._check_format()

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise DatabaseError(f"cannot make the folder {str(self.folder)!r}: {err.strerror}") from err
        with self._open() as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("BEGIN IMMEDIATE")
            fresh = connection.execute("PRAGMA user_version").fetchone()[0] == 0
            connection.execute(_CREATE)
            connection.execute(_INDEX)
            if fresh:
                connection.execute(f"PRAGMA user_version={FORMAT}")
            connection.execute("COMMIT")

    def _check_format(self) -> None:
        with self._open() as connection:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found != FORMAT:
            raise DatabaseError(
                f"{str(self.path)!r} has format {found} and this version reads {FORMAT}: use another folder"
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose errors are a sentence."""
        try:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                # Committed means on the disk, also after a loss of power.
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as err:
            raise DatabaseError(_sentence(self.path, err)) from err

    def add(self, record: Record) -> None:
        """Commit one record; ``created`` is filled in where it is 0."""
        row = asdict(record)
        row["created"] = row["created"] or time.time()
        values = [json.dumps(row[name]) if name in _JSON else row[name] for name in _COLUMNS]
        marks = ", ".join("?" for _ in _COLUMNS)
        with self._open() as connection:
            connection.execute(f"INSERT INTO records ({', '.join(_COLUMNS)}) VALUES ({marks})", values)

    def records(
        self, kind: Kind | None = None, machine: str | None = None, pattern: str | None = None
    ) -> list[Record]:
        """The records that agree with what is given, oldest first, without damaged ones (a warning tells)."""
        wanted = {"kind": kind, "machine": machine, "pattern": pattern}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name}=?" for name in given)
        query = f"SELECT {', '.join(_COLUMNS)} FROM records{' WHERE ' + where if where else ''} ORDER BY id"
        with self._open() as connection:
            rows = connection.execute(query, list(given.values())).fetchall()
        found = []
        for row in rows:
            try:
                found.append(_record(dict(zip(_COLUMNS, row))))
            except (ValueError, TypeError) as err:
                logger.warning("a damaged record in %s is left out: %s", self.path, err)
        return found

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all records to ``path`` as JSON, one object a line; returns how many."""
        from ..artifact import replacing

        records = self.records()
        with replacing(path) as draft, draft.open("w", encoding="utf-8") as out:
            for record in records:
                out.write(json.dumps(asdict(record)) + "\n")
        return len(records)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Add the records of a file that :meth:`export` wrote; a torn line is left out with a warning.

        Returns how many were added. Raises :class:`DatabaseError` where the file cannot be read.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as err:
            raise DatabaseError(f"cannot read {str(path)!r}: {err.strerror}") from err
        count = 0
        for number, line in enumerate(lines, 1):
            try:
                record = _record(json.loads(line), decoded=True)
            except (ValueError, TypeError) as err:
                logger.warning("line %d of %s is torn and left out: %s", number, path, err)
                continue
            self.add(record)
            count += 1
        return count


def _record(row: dict[str, Any], decoded: bool = False) -> Record:
    """A row as a record; raises ``ValueError`` or ``TypeError`` for one that is damaged."""
    if not isinstance(row, dict) or row.get("kind") not in ("trial", "best"):
        raise ValueError("it is no tuning record")
    if not decoded:
        row = row | {name: json.loads(row[name]) for name in _JSON}
    for name in ("extents", "cases", "seconds", "default_seconds"):
        row[name] = tuple(row[name])
    if not all(isinstance(row[name], dict) for name in ("plan", "knobs", "meta")):
        raise ValueError("its plan, knobs or meta are damaged")
    if not all(isinstance(s, float | int) and s > 0 for s in row["seconds"]):
        raise ValueError("its times are damaged")
    return Record(**row)


def _sentence(path: Path, err: sqlite3.Error) -> str:
    """What went wrong with the file, and what to do."""
    text = str(err)
    if "full" in text:
        return f"the disk is full, {str(path)!r} keeps what was committed: make room and resume"
    if "locked" in text:
        return f"another process has kept {str(path)!r} locked for {BUSY_SECONDS:.0f} s: end it and resume"
    if "malformed" in text or "not a database" in text:
        return f"{str(path)!r} is damaged ({text}): move it away, or restore it with sqlite3 .recover"
    return f"cannot use {str(path)!r} ({text}): give a folder that can be written"
