"""Other jobs use the same new table of a database while a job commits to it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from batchinference.pipeline.commit.table_commit import Fence, TableFiles
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import sql
from batchinference.pipeline.storage.location import Location
from plugins.messages import Messages
from support.jobs.table_writes import TableTarget

MISSING = Location("/missing.parquet")


@pytest.fixture(params=["sqlite", "postgresql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    of_server = request.param == "postgresql"
    url = {"url": request.getfixturevalue("postgres")} if of_server else {}
    return TableTarget(request.param, tmp_path, {"mode": "append", **url})


def staged(target: TableTarget, name: str, rows: pa.Table) -> TableFiles:
    """Return the files of a job that is ready to commit."""
    job = target.open(rows, name=name, path=str(target.folder / name))
    return job.place_files(job.check())[1]


def register(target: TableTarget, name: str, files: TableFiles) -> None:
    target.table().register(files, Fence(name, f"of {name}", lambda: None))


def test_failed_commit_keeps_the_rows_of_another_job(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the first job fails, the rows of the second one are not visible yet."""
    first = staged(target, "first", pa.table({"id": [1]}))
    second = staged(target, "second", pa.table({"id": [2]}))
    first = replace(first, files=[*first.files, MISSING])
    real, inserted = sql.batches_in, Event()
    pool, others = ThreadPoolExecutor(), list[Future[None]]()

    def batches(file: Location, count: int) -> Iterator[pa.RecordBatch]:
        if file is MISSING:
            others.append(pool.submit(register, target, "second", second))
            inserted.wait(0.5)  # the second job may also wait for the end of this transaction
        yield from real(file, count)
        if file in second.files:
            inserted.set()
            time.sleep(0.5)

    monkeypatch.setattr(sql, "batches_in", batches)
    with pool, pytest.raises(BadOutput, match=r"missing\.parquet"):
        register(target, "first", first)
    others[0].result()
    assert target.rows() == [{"id": 2}]
    assert target.table().commit_count("second")


def test_failed_commit_leaves_no_new_table(target: TableTarget) -> None:
    files = staged(target, "in", pa.table({"id": [1]}))
    with pytest.raises(BadOutput, match=r"missing\.parquet"):
        register(target, "in", replace(files, files=[*files.files, MISSING]))
    assert not sa.inspect(target.engine()).has_table("rows")
    register(target, "in", files)
    assert target.rows() == [{"id": 1}]


@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_rows_are_compared_with_a_table_that_another_job_creates(
    target: TableTarget, mode: str
) -> None:
    """The database would store another value."""
    job = target.open(pa.table({"id": [1], "n": [1.5]}), mode=mode)
    target.execute("CREATE TABLE rows (id BIGINT, n INTEGER)")
    with pytest.raises(BadOutput, match=r"column 'n' is INTEGER.*has integers only"):
        job.commit()
    assert target.rows() == []


@pytest.mark.parametrize("of_earlier_run", [False, True], ids=["of this run", "of an earlier one"])
def test_rows_of_an_earlier_try_are_compared_again(
    target: TableTarget, of_earlier_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try that reads the columns of the other job's table fails before it compares rows."""
    files = staged(target, "in", pa.table({"id": [1], "n": [1.5]}))
    table = target.table()
    table.open(pa.schema([]))
    target.execute("CREATE TABLE rows (id BIGINT, n INTEGER)")
    if of_earlier_run:
        table.open(pa.schema([]))
    real, busy = sql.SqlTable._commit, iter([sql.Blocked("busy")])

    def commit(self: sql.SqlTable, *arguments: Any, **options: Any) -> None:
        for error in busy:
            raise error
        real(self, *arguments, **options)

    monkeypatch.setattr(sql.SqlTable, "_commit", commit)
    with pytest.raises(BadOutput, match=r"column 'n' is INTEGER.*has integers only"):
        table.register(files, Fence("in", "of in", lambda: None))
    assert target.rows() == []


def test_table_that_another_job_creates_at_the_same_moment_is_used(target: TableTarget) -> None:
    files = staged(target, "in", pa.table({"id": [1]}))
    create = "CREATE TABLE IF NOT EXISTS rows (id BIGINT, more BIGINT)"
    fence = Fence("in", "of in", lambda: target.execute(create))
    target.table().register(files, fence)
    assert target.rows() == [{"id": 1, "more": None}]


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
@pytest.mark.parametrize("mode", ["error", "overwrite"])
def test_job_waits_for_another_one_that_needs_the_table_for_itself(
    target: TableTarget, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins while the first one has read the table, but not inserted its row."""
    target.execute("CREATE TABLE rows (id BIGINT)")
    first = staged(target, "first", pa.table({"id": [1]}))
    second = staged(target, "second", pa.table({"id": [2]}))
    real, pool, others = sql.batches_in, ThreadPoolExecutor(), list[Future[None]]()

    def commit(name: str, files: TableFiles) -> None:
        target.table(mode=mode).register(files, Fence(name, f"of {name}", lambda: None))

    def batches(file: Location, count: int) -> Iterator[pa.RecordBatch]:
        if file in first.files:
            others.append(pool.submit(commit, "second", second))
            time.sleep(0.5)
        yield from real(file, count)

    monkeypatch.setattr(sql, "batches_in", batches)
    with pool:
        commit("first", first)
    if mode == "error":
        with pytest.raises(BadOutput, match="has rows already"):
            others[0].result()
    else:
        others[0].result()
    assert target.rows() == [{"id": 1 if mode == "error" else 2}]


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
@pytest.mark.parametrize("default", ["read committed", "serializable"])
def test_table_that_others_keep_updating_is_overwritten(
    target: TableTarget, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They update it between the beginning of the transaction and the deletion of its rows."""
    database = target.write()["url"].rpartition("/")[2]
    target.execute(
        f"ALTER DATABASE {database} SET default_transaction_isolation = '{default}'",
        "CREATE TABLE rows (id BIGINT)",
        "INSERT INTO rows VALUES (0)",
    )
    files = staged(target, "in", pa.table({"id": [1]}))
    real = sql.SqlTable._put

    def put(self: sql.SqlTable, *arguments: Any) -> None:
        target.execute("UPDATE rows SET id = id - 1")
        real(self, *arguments)

    monkeypatch.setattr(sql.SqlTable, "_put", put)
    fence = Fence("in", "of in", lambda: None, tries=2)
    target.table(mode="overwrite").register(files, fence)
    assert target.rows() == [{"id": 1}]


KEEPS_OTHERS = "CREATE TABLE rows (id INTEGER, text TEXT UNIQUE ON CONFLICT IGNORE)"
REPLACES_OTHERS = "CREATE TABLE rows (id INTEGER, text TEXT UNIQUE ON CONFLICT REPLACE)"
PLAIN = "CREATE TABLE rows (id BIGINT PRIMARY KEY, text TEXT)"
LEAVES_OUT = (
    "CREATE TRIGGER leaves_out BEFORE INSERT ON rows WHEN NEW.id = 2 "
    "BEGIN SELECT RAISE(IGNORE); END"
)
KEEPS_OLD = (
    "CREATE TRIGGER keeps_old BEFORE UPDATE ON rows BEGIN SELECT RAISE(IGNORE); END",
    "INSERT INTO rows VALUES (2, 'old')",
)
REPLACES_BY_TEXT = (
    "CREATE TABLE rows (id BIGINT PRIMARY KEY, text TEXT UNIQUE ON CONFLICT REPLACE)",
    "INSERT INTO rows VALUES (7, 'same')",
)
NULL_OF_POSTGRES = (
    "CREATE FUNCTION leave_out() RETURNS trigger AS $$ BEGIN IF NEW.id = 2 THEN RETURN NULL; "
    "END IF; RETURN NEW; END $$ LANGUAGE plpgsql",
    "CREATE TRIGGER leaves_out BEFORE INSERT OR UPDATE ON rows FOR EACH ROW "
    "EXECUTE FUNCTION leave_out()",
)
DROPPING = {
    "ignore": ("sqlite", (KEEPS_OTHERS,), {}),
    "replace": ("sqlite", (REPLACES_OTHERS,), {}),
    "overwrite": ("sqlite", (REPLACES_OTHERS,), {"mode": "overwrite"}),
    "trigger": ("sqlite", (PLAIN, LEAVES_OUT), {}),
    "merge with a trigger": ("sqlite", (PLAIN, *KEEPS_OLD), {"mode": "merge", "key": ["id"]}),
    "merge": ("sqlite", REPLACES_BY_TEXT, {"mode": "merge", "key": ["id"]}),
    "trigger of PostgreSQL": ("postgresql", (PLAIN, *NULL_OF_POSTGRES), {}),
    "merge in PostgreSQL": (
        "postgresql",
        (PLAIN, *NULL_OF_POSTGRES),
        {"mode": "merge", "key": ["id"]},
    ),
}


@pytest.mark.parametrize("case", DROPPING)
def test_job_fails_if_the_database_drops_rows(
    case: str, request: pytest.FixtureRequest, tmp_path: Path, messages: Messages
) -> None:
    """Rules and triggers of the table leave out or replace rows without an error."""
    kind, statements, fields = DROPPING[case]
    url = {"url": request.getfixturevalue("postgres")} if kind == "postgresql" else {}
    target = TableTarget(kind, tmp_path, {"mode": "append", **url, **fields})
    target.execute(*statements)
    before = target.rows()
    second = "other" if "key" in fields else "same"
    job = target.open(pa.table({"id": [1, 2], "text": ["same", second]}))
    with pytest.raises(BadOutput) as caught:
        job.commit()
    messages.check(caught.value)
    assert target.rows() == before


def test_merged_rows_with_and_without_other_columns_are_complete(target: TableTarget) -> None:
    """Each row of the job is in the table, whether it was inserted, updated or left unchanged."""
    target.execute(PLAIN, "INSERT INTO rows VALUES (2, 'old'), (3, 'stays')")
    merge: dict[str, Any] = {"mode": "merge", "key": ["id"]}
    assert target.run(pa.table({"id": [1, 2], "text": ["one", "two"]}), name="first", **merge)
    merge["path"] = str(target.folder / "second out")
    assert target.run(pa.table({"id": [2, 4]}), name="second", **merge)
    texts = {1: "one", 2: "two", 3: "stays", 4: None}
    assert target.rows() == [{"id": id_, "text": text} for id_, text in texts.items()]


CHANGED = [
    ("sqlite", "TEXT", pa.array([0.1 + 0.2])),
    ("sqlite", "TEXT", pa.array([Decimal("1.10")])),
    ("sqlite", "VARCHAR(9)", pa.array([dt.time(1, 2)])),
    ("sqlite", "", pa.array([Decimal("1.10")])),
    ("sqlite", "", pa.array([[1]])),
    ("postgresql", "part", pa.array([Decimal("1.5")])),
    ("postgresql", "BIT(3)", pa.array([2**53 + 1])),
    ("postgresql", "NUMERIC", pa.array(["007"])),
    ("postgresql", "BOOLEAN", pa.array([1])),
    ("postgresql", "CHAR(3)", pa.array([1])),
    ("postgresql", "VARCHAR(2)", pa.array([123])),
    ("postgresql", "mood", pa.array(["glad"])),
    ("postgresql", "TEXT[]", pa.array(["007"])),
    ("postgresql", "INTEGER[]", pa.array([[[1.5]]])),
    ("postgresql", "MONEY", pa.array([Decimal("1.105")])),
]
"""Values that a column of an existing table would change or refuse at the commit."""


@pytest.mark.parametrize(("kind", "column", "values"), CHANGED, ids=map(str, range(len(CHANGED))))
def test_value_that_a_column_would_change_is_refused(
    kind: str,
    column: str,
    values: pa.Array,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    messages: Messages,
) -> None:
    url = {"url": request.getfixturevalue("postgres")} if kind == "postgresql" else {}
    target = TableTarget(kind, tmp_path, {"mode": "append", **url})
    if column == "part":
        target.execute("CREATE DOMAIN part AS INTEGER")
    if column == "mood":
        target.execute("CREATE TYPE mood AS ENUM ('sad')")
    target.execute(f"CREATE TABLE rows (id BIGINT, v {column})")
    with messages.raises(BadOutput):
        target.open(pa.table({"id": [1], "v": values}))


def test_values_that_fit_unusual_columns_are_kept(postgres: str, tmp_path: Path) -> None:
    target = TableTarget("postgresql", tmp_path, {"mode": "append", "url": postgres})
    target.execute(
        "CREATE DOMAIN part AS INTEGER",
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TABLE rows (id BIGINT, l TEXT[], m BIGINT[], p part, e mood, s CHAR(2))",
    )
    row = {"id": 1, "l": ["a", None], "m": [[1], [2]], "p": 3, "e": "sad", "s": "ab"}
    rows = [row, {**dict.fromkeys(row), "id": 2}]
    assert target.run(pa.Table.from_pylist(rows))
    assert target.rows() == rows


def test_empty_lists_and_times_as_the_database_writes_them_are_kept(
    postgres: str, tmp_path: Path
) -> None:
    target = TableTarget("postgresql", tmp_path, {"mode": "append", "url": postgres})
    target.execute("CREATE TABLE rows (id BIGINT, l BIGINT[], t VARCHAR(19))")
    empty = pa.array([[]], pa.list_(pa.null()))
    at = pa.array([1_767_225_600_000_000], pa.timestamp("us"))  # 2026-01-01
    first = pa.table({"id": [1], "l": [[5]], "t": at})
    assert target.run(first, pa.table({"id": [2], "l": empty, "t": at}))
    assert [(row["l"], row["t"]) for row in target.rows()] == [
        ([5], "2026-01-01 00:00:00"),
        ([], "2026-01-01 00:00:00"),
    ]


def test_null_in_a_column_of_json_is_null(target: TableTarget) -> None:
    """It was the JSON text null, which is another value in SQL."""
    target.execute("CREATE TABLE rows (id BIGINT, v JSON)")
    assert target.run(pa.table({"id": [1, 2], "v": [[1], None]}))
    with target.engine().connect() as connection:
        nulls = connection.execute(sa.text("SELECT id FROM rows WHERE v IS NULL")).scalars()
        assert list(nulls) == [2]
