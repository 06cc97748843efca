"""The mode merge: rows of a job update the rows of a table with the same key, or are added."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, QueryBuilder
from sqlalchemy.dialects import mysql

from batchinference.pipeline.commit.table_commit import Fence
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import sql, sql_types
from batchinference.pipeline.output.tables.keys import Keys
from plugins.messages import Messages
from support.inputs.delta_vectors import delete_positions, enable_vectors, live_adds
from support.jobs.table_writes import TableTarget

LAKES = ["delta", "iceberg"]
FORMATS = [*LAKES, "sqlite", "postgresql"]


def merging(kind: str, path: Path, **fields: Any) -> TableTarget:
    return TableTarget(kind, path, {"mode": "merge", "key": ["id"], **fields})


@pytest.fixture(params=FORMATS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableTarget:
    of_server = request.param == "postgresql"
    url = {"url": request.getfixturevalue("postgres")} if of_server else {}
    return merging(request.param, tmp_path, **url)


lakes = pytest.mark.parametrize("target", LAKES, indirect=True)
databases = pytest.mark.parametrize("target", ["sqlite", "postgresql"], indirect=True)


def rows_with(*ids: int, **columns: Any) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), **columns})


def passed() -> None:
    """Pass the check before the commit."""


def test_rows_are_updated_or_added(target: TableTarget) -> None:
    assert target.run(rows_with(1, 2, text=["a", "b"]), rows_with(3, text=["c"]), name="first")
    assert target.run(rows_with(2, 4, text=["B", "D"]), rows_with(3, text=[None]), name="second")
    assert target.rows() == [
        {"id": 1, "text": "a"},
        {"id": 2, "text": "B"},
        {"id": 3, "text": None},
        {"id": 4, "text": "D"},
    ]


def test_columns_that_the_job_does_not_write_keep_their_values(target: TableTarget) -> None:
    assert target.run(rows_with(1, 2, text=["a", "b"], size=[1.5, 2.5]), name="first")
    assert target.run(rows_with(2, 3, size=[9.0, 8.0]), name="second")
    assert target.rows() == [
        {"id": 1, "text": "a", "size": 1.5},
        {"id": 2, "text": "b", "size": 9.0},
        {"id": 3, "text": None, "size": 8.0},
    ]


def test_rows_that_have_only_the_key_change_nothing_else(target: TableTarget) -> None:
    assert target.run(rows_with(1, text=["a"]), name="first")
    assert target.run(rows_with(1, 2), name="second")
    assert target.rows() == [{"id": 1, "text": "a"}, {"id": 2, "text": None}]


@lakes
def test_null_lists_and_maps_do_not_become_empty(target: TableTarget) -> None:
    kind = pa.struct([("x", pa.list_(pa.float64()))])
    lists = pa.array([None, [], [{"x": None}]], pa.list_(kind))
    maps = pa.array([None, [], [("k", {"x": []})]], pa.map_(pa.string(), kind))
    rows = rows_with(1, 2, 3, lists=lists, maps=maps, n=[1, 2, 3])
    assert target.run(rows, name="first")
    assert target.run(rows_with(3, n=[3]), name="second")  # writes the file again
    assert target.run(rows.slice(0, 1), name="third")
    assert target.rows() == rows.to_pylist()


@lakes
def test_new_columns_are_added(target: TableTarget) -> None:
    assert target.run(rows_with(1, 2, text=["a", "b"]), name="first")
    assert target.run(rows_with(2, **{'odd "name': [0.5]}), name="second")
    by_id = {row["id"]: row['odd "name'] for row in target.rows()}
    assert by_id == {1: None, 2: 0.5}


@databases
def test_column_that_a_database_lacks_is_refused(target: TableTarget, messages: Messages) -> None:
    assert target.run(rows_with(1), name="first")
    with messages.raises(BadOutput):
        target.run(rows_with(1, other=[1]), name="second")


KEYS: dict[str, list[Any] | pa.Array] = {
    "texts": ["a", "Ä\n"],
    "dates": [dt.date(2026, 1, 2), dt.date(2026, 1, 3)],
    "moments": [dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(1969, 1, 1)],  # noqa: DTZ001
    "decimals": [Decimal("1.25"), Decimal("-3.50")],
    "flags": [True, False],
    "small numbers": pa.array([255, 0], "uint8"),
    "UUIDs": pa.array([b"\0" * 16, b"\xff" * 16], pa.uuid()),
}


@pytest.mark.parametrize("values", KEYS.values(), ids=KEYS)
def test_keys_of_each_type(target: TableTarget, values: list[Any] | pa.Array) -> None:
    keys = pa.array(values)
    before, after = pa.table({"id": keys, "n": [1, 2]}), pa.table({"id": keys[1:], "n": [3]})
    assert target.run(before, name="first")
    assert target.run(after, name="second")
    assert sorted(row["n"] for row in target.rows()) == [1, 3]


def test_key_of_several_columns(target: TableTarget) -> None:
    keys = {"key": ["id", "page"]}
    assert target.run(rows_with(1, 1, page=["x", "y"], n=[1, 2]), name="first", **keys)
    assert target.run(rows_with(1, 2, page=["y", "x"], n=[3, 4]), name="second", **keys)
    result = {(row["id"], row["page"]): row["n"] for row in target.rows()}
    assert result == {(1, "x"): 1, (1, "y"): 3, (2, "x"): 4}


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_row_with_a_nul_fails(target: TableTarget) -> None:
    assert target.run(rows_with(1, 2, text=["a\0", "b"]))
    assert target.rows() == [{"id": 2, "text": "b"}]


@pytest.mark.parametrize(("kind", "written"), [("jsonb", [2, 3]), ("json", [1, 2, 3])])
@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_row_with_a_nul_that_jsonb_lacks_fails(
    target: TableTarget, kind: str, written: list[int]
) -> None:
    target.execute(f"CREATE TABLE rows (id bigint PRIMARY KEY, v {kind})")
    values = [{"a": ["x\0"]}, {"a": ["\\u0000"]}, None]
    assert target.run(rows_with(1, 2, 3, v=values))
    assert target.rows() == [{"id": id_, "v": values[id_ - 1]} for id_ in written]


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_bytes_in_a_column_of_texts_are_refused_before_rows_are_computed(
    target: TableTarget, messages: Messages
) -> None:
    assert target.run(rows_with(1, text=["a"]), name="first")
    job = target.open(name="second")
    with messages.raises(BadOutput):
        job.begin(rows_with(2, text=[b"b"]))


REFUSED: dict[str, Callable[[], list[pa.Table]]] = {
    "a key twice in a task": lambda: [rows_with(1, 2, 1)],
    "a key twice in the job": lambda: [rows_with(*range(9)), rows_with(*range(3, 8))],
    "no key": lambda: [rows_with(1), rows_with(2, None)],  # type: ignore[arg-type]
    "a fraction": lambda: [pa.table({"id": [0.5]})],
    "a list": lambda: [pa.table({"id": [[1]]})],
}


@pytest.mark.parametrize("target", ["delta", "postgresql"], indirect=True)
@pytest.mark.parametrize("tables", REFUSED.values(), ids=REFUSED)
def test_rows_without_a_key_of_their_own_are_refused(
    target: TableTarget, tables: Callable[[], list[pa.Table]], messages: Messages
) -> None:
    with messages.raises(BadOutput):
        target.run(*tables())
    assert target.rows() == []


def test_value_that_does_not_fit_the_table_is_refused(target: TableTarget) -> None:
    assert target.run(pa.table({"id": pa.array([1], pa.int32()), "n": [1.5]}), name="first")
    with pytest.raises(BadOutput, match=r"in the table"):
        target.run(rows_with(2**40, n=["x"]), name="second")
    assert target.rows() == [{"id": 1, "n": 1.5}]


@lakes
def test_key_that_the_table_has_twice_is_refused(target: TableTarget, messages: Messages) -> None:
    assert target.run(rows_with(1, 2, 1, n=[1, 2, 3]), name="first", mode="append", key=None)
    with messages.raises(BadOutput):
        target.run(rows_with(1, n=[4]), name="second")
    assert target.run(rows_with(2, n=[5]), name="third")
    assert sorted(row["n"] for row in target.rows()) == [1, 3, 5]


def test_rows_that_a_deletion_vector_removes_stay_deleted(tmp_path: Path) -> None:
    target = merging("delta", tmp_path)
    deltalake.write_deltalake(tmp_path / "out", rows_with(1, 2, 3, n=[1, 2, 3]))
    enable_vectors(tmp_path / "out")
    (path,) = live_adds(tmp_path / "out")
    delete_positions(tmp_path / "out", path, [0, 1])
    assert target.run(rows_with(2, 3, n=[8, 9]))
    register = QueryBuilder().register("rows", DeltaTable(tmp_path / "out"))
    stored = pa.table(register.execute("SELECT * FROM rows ORDER BY id"))
    assert stored.to_pylist() == [{"id": 2, "n": 8}, {"id": 3, "n": 9}]


@lakes
def test_table_must_have_the_key(target: TableTarget, messages: Messages) -> None:
    assert target.run(pa.table({"text": ["a"]}), name="first", mode="append", key=None)
    with messages.raises(BadOutput):
        target.open(name="second")


@lakes
def test_updated_row_moves_to_its_partition(target: TableTarget) -> None:
    by = {"partitionBy": ["part"]}
    assert target.run(rows_with(1, 2, 3, part=["x", "x", "y"], n=[1, 2, 3]), name="first", **by)
    assert target.run(rows_with(1, part=["y"]), name="second", **by)
    assert target.run(rows_with(2, n=[9]), name="third")
    by_id = {row["id"]: (row["part"], row["n"]) for row in target.rows()}
    assert by_id == {1: ("y", 1), 2: ("x", 9), 3: ("y", 3)}
    if target.kind == "delta":
        table = deltalake.DeltaTable(target.folder / "out")
        assert table.to_pyarrow_table(filters=[("part", "=", "y")]).num_rows == 2


def test_job_without_rows_changes_nothing(target: TableTarget) -> None:
    assert target.run(rows_with(1, text=["a"]), name="first")
    assert target.run(name="second")
    assert target.rows() == [{"id": 1, "text": "a"}]


@pytest.mark.parametrize("filled", [False, True])
def test_table_takes_one_merge_of_a_series(target: TableTarget, filled: bool) -> None:
    if filled:
        target.run(rows_with(9, text=["z"]), name="first")
    job = target.open(rows_with(1, text=["a"]), name="second")
    files = job.place_files(job.check())[1]
    table = target.table()
    for _ in range(2):
        table.register(files, Fence("first", "series", passed))
    with pytest.raises(BadOutput):
        target.table().register(files, Fence("second", "series", passed))
    assert [row["id"] for row in target.rows()] == [1, 9][: 1 + filled]
    assert (table.commit_count("first"), table.commit_count("second")) == (1, 0)


def test_rows_of_others_that_arrive_during_a_merge_are_merged_too(target: TableTarget) -> None:
    assert target.run(rows_with(1, 2, text=["a", "b"], n=[1, 2]), name="first")
    job = target.open(rows_with(2, 3, text=["B", "C"]), name="second")
    files = job.place_files(job.check())[1]
    others = iter([True])

    def interrupt() -> None:
        if next(others, False) and target.kind != "sqlite":  # which has one writer at a time
            target.run(rows_with(1, 3, n=[7, 8]), name="other")

    target.table().register(files, Fence("commit", "series", interrupt))
    expected = {1: ("a", 1), 2: ("B", 2), 3: ("C", None)}
    if target.kind != "sqlite":
        expected |= {1: ("a", 7), 3: ("C", 8)}
    assert {row["id"]: (row["text"], row["n"]) for row in target.rows()} == expected


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
def test_merges_that_block_each_other_are_repeated(target: TableTarget) -> None:
    """They lock the same rows in opposite order, so PostgreSQL ends one of them."""
    ids = range(6000)
    assert target.run(rows_with(*ids, n=[0] * len(ids)), name="first")
    placed = {}
    for name, order in {"up": ids, "down": ids[::-1]}.items():
        job = target.open(
            rows_with(*order, n=[1] * len(ids)), name=name, path=f"{target.folder}/{name}"
        )
        placed[name] = job.place_files(job.check())[1]

    def register(name: str) -> None:
        target.table().register(placed[name], Fence(name, f"of {name}", passed))

    with ThreadPoolExecutor() as pool:
        list(pool.map(register, placed))
    assert [row["n"] for row in target.rows()] == [1] * len(ids)
    assert all(target.table().commit_count(name) for name in placed)


@databases
@pytest.mark.parametrize(
    ("columns", "accepted"),
    [
        ("id BIGINT PRIMARY KEY, part TEXT", True),
        ("id BIGINT, part TEXT, UNIQUE (id)", True),
        ("id BIGINT, part TEXT", False),
        ("id BIGINT, part TEXT, UNIQUE (id, part)", False),
    ],
)
def test_existing_table_must_have_a_unique_constraint(
    target: TableTarget, columns: str, accepted: bool, messages: Messages
) -> None:
    index = "CREATE UNIQUE INDEX one ON rows (id) WHERE id > 5"
    target.execute(f"CREATE TABLE rows ({columns})", index, "INSERT INTO rows VALUES (1, 'x')")
    if accepted:
        assert target.run(rows_with(1, 2, part=["y", "z"]))
        assert target.rows() == [{"id": 1, "part": "y"}, {"id": 2, "part": "z"}]
    else:
        with messages.raises(BadOutput):
            target.open()


def test_database_that_ignores_case_keeps_its_rows(tmp_path: Path, messages: Messages) -> None:
    target = merging("sqlite", tmp_path)
    create = "CREATE TABLE rows (id TEXT COLLATE NOCASE PRIMARY KEY, n INT)"
    target.execute(create, "INSERT INTO rows VALUES ('a', 1)")
    with messages.raises(BadOutput):
        target.run(pa.table({"id": ["A", "b"], "n": [2, 3]}))
    assert target.rows() == [{"id": "a", "n": 1}]


UNFIT: dict[str, pa.Array] = {
    "INTEGER": pa.array([1.7]),
    "DOUBLE PRECISION": pa.array([2**53 + 1]),
    "NUMERIC(10,2)": pa.array([Decimal("1.239")]),
    "NUMERIC(11,2)": pa.array([1.239]),
    "DATE": pa.array([dt.datetime(2026, 1, 2, 3)]),  # noqa: DTZ001
    "TIMESTAMP": pa.array([1], pa.timestamp("ns")),
    "TEXT": pa.array([["a"]]),
    "JSON": pa.array(['{"a": 1}']),
}


@databases
@pytest.mark.parametrize("kind", UNFIT)
def test_value_that_a_database_would_change_is_refused(target: TableTarget, kind: str) -> None:
    target.execute(f"CREATE TABLE rows (id BIGINT PRIMARY KEY, n {kind})")
    with pytest.raises(BadOutput, match="'n'"):
        target.open(rows_with(1, n=UNFIT[kind]))


@pytest.mark.parametrize("kind", ["NUMERIC", "NUMERIC(20,0)"])
def test_integer_that_sqlite_would_store_as_a_float_is_refused(tmp_path: Path, kind: str) -> None:
    target = merging("sqlite", tmp_path)
    target.execute(f"CREATE TABLE rows (id BIGINT PRIMARY KEY, n {kind})")
    with pytest.raises(BadOutput, match="'n'"):
        target.run(rows_with(1, n=[2**53 + 1]))
    assert target.run(rows_with(1, n=[2**53]))
    assert target.rows() == [{"id": 1, "n": 2**53}]


def test_null_for_which_the_database_would_generate_a_number_is_refused(
    tmp_path: Path, messages: Messages
) -> None:
    target = merging("sqlite", tmp_path)
    target.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
    rows = {"id": pa.array([7, None], pa.int64()), "text": ["a", "b"]}
    with messages.raises(BadOutput):
        target.run(pa.table(rows), mode="append", key=None)
    del rows["id"]
    assert target.run(pa.table(rows), mode="append", key=None, name="another")
    assert target.rows() == [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


@pytest.mark.parametrize("numbers", [[0, 1], [False, True]])
def test_zero_for_which_mysql_would_generate_a_number_is_refused(numbers: list[int]) -> None:
    existing = sa.Table("rows", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    rows = pa.table({"id": numbers})
    sql_types.check_generated(rows, existing, "sqlite")
    with pytest.raises(BadOutput, match="a row has 0 there"):
        sql_types.check_generated(rows, existing, "mysql")


@pytest.mark.parametrize("target", ["postgresql"], indirect=True)
@pytest.mark.parametrize("kind", ["VARCHAR(3)", "CHAR(5)"])
def test_text_of_another_length_is_refused(target: TableTarget, kind: str) -> None:
    target.execute(f"CREATE TABLE rows (id BIGINT PRIMARY KEY, n {kind})")
    with pytest.raises(BadOutput, match="'n'"):
        target.open(rows_with(1, n=["abc "]))


@databases
@pytest.mark.parametrize(("kind", "key"), [("BIGINT", "5"), ("TEXT", 5), ("UUID", "5")])
def test_key_of_another_type_is_refused(target: TableTarget, kind: str, key: Any) -> None:
    target.execute(f"CREATE TABLE rows (id {kind} PRIMARY KEY)")
    table = target.table()
    with pytest.raises(BadOutput, match="'id'"):
        table.open(pa.table({"id": [key]}).schema)
    if (target.kind, kind) == ("postgresql", "UUID"):
        assert table.convert(ids := pa.table({"id": pa.array([bytes(16)], pa.uuid())})) == ids


@databases
def test_column_that_needs_a_value_is_refused_at_the_start(target: TableTarget) -> None:
    target.execute("CREATE TABLE rows (id BIGINT PRIMARY KEY, n BIGINT, text TEXT NOT NULL)")
    with pytest.raises(BadOutput, match="'text'"):
        target.table(columns=["id", "n"]).open(pa.schema([]))
    with pytest.raises(BadOutput, match="'text'"):
        target.open(rows_with(1, n=[1]))


def test_sqlite_refuses_keys_that_it_cannot_tell_apart(tmp_path: Path) -> None:
    target = merging("sqlite", tmp_path)
    zoned = pa.array([0], pa.timestamp("us", "Europe/Berlin"))
    for keys in (zoned, pa.array([Decimal("12345678901234567890.1")]), pa.array([dt.timedelta(1)])):
        with pytest.raises(BadOutput, match="'id'"):
            target.run(pa.table({"id": keys}))


def test_database_that_ignores_case_keeps_the_rows_of_a_job(tmp_path: Path) -> None:
    target = merging("sqlite", tmp_path)
    target.execute("CREATE TABLE rows (id TEXT COLLATE NOCASE, page INT, PRIMARY KEY (id, page))")
    keys = pa.table({"id": ["a", "A", "A"], "page": [1, 1, 2]})
    with pytest.raises(BadOutput):
        target.run(keys, key=["id", "page"])
    assert target.rows() == []


def test_keys_are_compared_by_value_and_not_by_type() -> None:
    keys = Keys(pa.table({"id": [Decimal("1.231"), Decimal("1.500")]}))
    assert keys.matched_numbers([pa.table({"id": [Decimal("1.5")]})]).tolist() == [1]
    assert keys.matched_numbers([pa.table({"id": ["1.5"]})]).tolist() == []


def test_database_without_upserts_is_refused(messages: Messages) -> None:
    oracle = sa.create_mock_engine("oracle://", lambda *_: None)
    with messages.raises(BadOutput):
        sql.check_upsert(oracle, None, ["id"])  # type: ignore[arg-type]


def test_statement_for_mysql() -> None:
    table = sa.Table(
        "rows", sa.MetaData(), sql.key_column("id", sa.Text()), sa.Column("n", sa.JSON())
    )
    statement = sql._statement("mysql", table, ["id"], ["id", "n"])
    assert str(statement.compile(dialect=mysql.dialect())) == (
        "INSERT INTO `rows` (id, n) VALUES (%s, %s) ON DUPLICATE KEY UPDATE n = VALUES(n)"
    )
    created = str(sa.schema.CreateTable(table).compile(dialect=mysql.dialect()))
    assert "VARCHAR(255) COLLATE utf8mb4_bin NOT NULL" in created
