# SPDX-License-Identifier: Apache-2.0
"""The tuning database: what is committed stays, whatever happens around it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from autotir_dlight.tune.records import FILE, Database, DatabaseError, Record

RECORD = Record(
    kind="trial",
    rule="cpu.Matmul",
    rule_version=1,
    plan={"title": "packed", "stages": []},
    knobs={"row_block": 8},
    pattern="p",
    dtype="float32",
    extents=(3, None, 5),
    machine="m",
    machine_name="a machine",
    cases=({"n": 16},),
    seconds=(0.5,),
    default_seconds=(1.0,),
    meta={"name": "matmul"},
    created=12.5,
)


def test_a_record_comes_back_as_it_was(tmp_path):
    database = Database(tmp_path / "a" / "db")
    database.add(RECORD)
    assert Database(tmp_path / "a" / "db", read_only=True).records() == [RECORD]
    assert RECORD.gain == 2.0
    assert RECORD.key.symbolic
    assert replace(RECORD, seconds=()).gain == 1.0


def test_records_are_found_by_machine_pattern_and_kind(tmp_path):
    database = Database(tmp_path)
    others = [
        RECORD,
        replace(RECORD, machine="n"),
        replace(RECORD, pattern="q"),
        replace(RECORD, kind="best"),
    ]
    for record in others:
        database.add(record)
    assert database.records() == others
    assert database.records("trial", "m", "p") == [RECORD]
    assert database.records("best") == others[3:]


def test_a_database_that_is_not_there_is_not_made_by_reading(tmp_path):
    with pytest.raises(DatabaseError, match="run tune first"):
        Database(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_a_damaged_file_is_one_sentence(tmp_path):
    (tmp_path / FILE).write_bytes(b"not a database" * 1000)
    for read_only in (True, False):
        with pytest.raises(DatabaseError, match="is damaged"):
            Database(tmp_path, read_only=read_only)


def test_a_database_of_another_version_is_refused(tmp_path):
    Database(tmp_path)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(DatabaseError, match="format 99"):
        Database(tmp_path)


@pytest.mark.parametrize(
    ("column", "value"), [("knobs", '{"row_b'), ("plan", "[]"), ("seconds", "[-1]"), ("kind", "worst")]
)
def test_a_damaged_row_is_left_out_with_a_warning(tmp_path, caplog, column, value):
    database = Database(tmp_path)
    database.add(RECORD)
    database.add(RECORD)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute(f"UPDATE records SET {column}=? WHERE id=1", [value])
    assert database.records() == [RECORD]
    assert "damaged record" in caplog.text


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    database = Database(tmp_path)
    database.add(RECORD)
    open_ = database._open

    class Full:
        """The connection of a database that may not grow: what SQLite says is the same as on a full disk."""

        def __enter__(self):
            self.context = open_()
            connection = self.context.__enter__()
            connection.execute("PRAGMA max_page_count=1")
            return connection

        def __exit__(self, *error):
            return self.context.__exit__(*error)

    database._open = Full
    with pytest.raises(DatabaseError, match="disk is full"):
        for _ in range(1000):
            database.add(replace(RECORD, meta={"text": "x" * 4096}))
    assert Database(tmp_path).records()[0] == RECORD


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "db").write_text("")
    with pytest.raises(DatabaseError, match="cannot make the folder"):
        Database(tmp_path / "db")


WRITER = """
import sys
from test_tune_records import RECORD, Database
from dataclasses import replace
database, number = Database(sys.argv[1]), 0
while True:
    database.add(replace(RECORD, meta={"number": number}))
    print(number, flush=True)
    number += 1
"""


def test_killing_a_tuner_loses_no_committed_record(tmp_path):
    """Each number is printed after its commit: all that were printed must be there."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=here, stdout=subprocess.PIPE, text=True
    )
    seen = [int(writer.stdout.readline()) for _ in range(20)]
    writer.send_signal(signal.SIGKILL)
    seen += [int(line) for line in writer.stdout.read().splitlines() if line.strip()]
    writer.wait(timeout=30)
    found = [record.meta["number"] for record in Database(tmp_path).records()]
    assert found[: len(seen)] == seen == list(range(len(seen)))


def test_two_tuners_share_a_database(tmp_path):
    Database(tmp_path)

    def work(tuner):
        database = Database(tmp_path)
        for number in range(25):
            database.add(replace(RECORD, meta={"tuner": tuner, "number": number}))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    found = [(r.meta["tuner"], r.meta["number"]) for r in Database(tmp_path).records()]
    assert sorted(found) == [(t, n) for t in range(2) for n in range(25)]


def test_export_and_load_with_a_torn_line(tmp_path, caplog):
    database = Database(tmp_path / "one")
    for number in range(3):
        database.add(replace(RECORD, meta={"number": number}))
    path = tmp_path / "records.json"
    assert database.export(path) == 3
    lines = path.read_text().splitlines()
    assert [json.loads(line)["meta"]["number"] for line in lines] == [0, 1, 2]
    path.write_text("\n".join([lines[0], lines[1][:-9], lines[2]]))
    other = Database(tmp_path / "two")
    assert other.load(path) == 2
    assert [r.meta["number"] for r in other.records()] == [0, 2]
    assert "line 2" in caplog.text
    with pytest.raises(DatabaseError, match="cannot read"):
        other.load(tmp_path / "none.json")
