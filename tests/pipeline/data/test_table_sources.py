"""Table sources: rows, ids, counts, and rejected fields.

The expected rows are those that the source's own library reads.
"""

from __future__ import annotations

import io
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.cloudpickle
from pydantic import TypeAdapter
from sqlalchemy import event
from sqlalchemy.pool import Pool

from batchinference import credentials
from batchinference.credentials import without_credentials
from batchinference.pipeline.commit.manifest import digest
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_targets import output_targets
from batchinference.pipeline.errors import BadInput, Incomplete, JobFailure
from batchinference.pipeline.input import JobInput, RowCount
from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.input.sources import TableInput, kinds
from batchinference.pipeline.pass_start import prepare_pass
from batchinference.pipeline.storage.location import Location
from batchinference.spec import parse
from batchinference.spec.read import Read
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.inputs.read_files import Outcome
from support.inputs.table_sources import ROWS, database, lance_set, saved
from support.servers.s3 import S3Server

SECRET = "hunter2"
_READ: TypeAdapter[Read] = TypeAdapter(Read)


def opened(format_: str, **fields: Any) -> JobInput:
    return open_input(_READ.validate_python({"format": format_, **fields}))


def read(given: JobInput) -> Outcome:
    """Read all rows with read tasks that have been pickled and unpickled."""
    travelled = ray.cloudpickle.loads(ray.cloudpickle.dumps(given.read_tasks(1)))
    return Outcome([batch for task in travelled for batch in task()])


@pytest.fixture(scope="session")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Document]:
    """Return the fields of each source."""
    directory = tmp_path_factory.mktemp("sources")
    return {
        "sql": {"url": database(directory / "a.db"), "query": "SELECT * FROM texts ORDER BY id"},
        "huggingface": {"name": str(saved(directory / "set")), "options": {"split": "train"}},
        "lance": {"path": str(lance_set(directory / "a.lance"))},
    }


def by_library(format_: str, fields: Document) -> list[dict[str, Any]]:
    match format_:
        case "sql":
            connection = sqlite3.connect(fields["url"].removeprefix("sqlite:///"))
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(fields["query"])]
        case "huggingface":
            return list(datasets.load_from_disk(fields["name"])["train"])
    return list(lance.dataset(fields["path"]).to_table().to_pylist())


@pytest.fixture(params=["sql", "huggingface", "lance"])
def format_(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fields(format_: str, documents: dict[str, Document]) -> Document:
    return documents[format_]


@pytest.fixture
def given(format_: str, fields: Document) -> JobInput:
    return opened(format_, **fields)


def test_rows_equal_library_of_each_source(format_: str, fields: Document, given: JobInput) -> None:
    assert read(given).good == by_library(format_, fields) == ROWS


def test_columns_and_row_count_are_known_before_reading(given: JobInput) -> None:
    assert given.columns() == ["id", "text", "score"]
    assert given.count() == RowCount(120, estimated=False)


def test_each_part_has_row_numbers_and_an_end(given: JobInput) -> None:
    outcome = read(given)
    assert set(outcome.ends) == set(range(len(given)))
    assert sum(outcome.ends.values()) == 120
    assert outcome.order == [
        (part, row) for part, rows in sorted(outcome.ends.items()) for row in range(rows)
    ]


def test_frozen_input_names_the_parts(format_: str, given: JobInput) -> None:
    table = pq.read_table(io.BytesIO(given.serialized()))
    assert table.column("path").to_pylist() == [f"{format_}:{n}" for n in range(len(given))]


def test_missing_library_error_has_the_install_command(
    format_: str, fields: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kinds.LIBRARIES, format_, "not_installed")
    with pytest.raises(BadInput, match=r"pip install '\./jobs\[formats\]'"):
        opened(format_, **fields)


def test_columns_of_steps_are_checked(format_: str, fields: Document, tmp_path: Path) -> None:
    write = {"format": "json", "path": str(tmp_path / "out")}
    steps = [{"name": "keep", "filter": "scor > 1"}]
    spec = parse(document(read={"format": format_, **fields}, write=write, steps=steps)).spec
    with pytest.raises(BadInput, match="did you mean 'score'"):
        prepare_pass(spec, next(output_targets(spec, Layout.of(spec))))


class TestItems:
    ITEMS = ({"text": "a", "n": 1}, {"n": 2.5, "more": ["x"]}, {"text": None})

    def test_rows_are_those_of_the_file(self) -> None:
        given = opened("items", items=[*self.ITEMS])
        assert read(given).good == [
            {"text": "a", "n": 1.0, "more": None},
            {"text": None, "n": 2.5, "more": ["x"]},
            {"text": None, "n": None, "more": None},
        ]
        assert (given.columns(), given.count()) == (["text", "n", "more"], RowCount(3, False))

    def test_rows_are_limited_and_divided(self) -> None:
        items = [{"n": n} for n in range(10)]
        given = opened("items", items=items, options={"limit": 7, "overrideNumBlocks": 3})
        assert [row["n"] for row in read(given).good] == [*range(7)]
        assert len(given) == 3

    def test_changed_rows_are_another_input(self) -> None:
        first, other = (opened("items", items=[{"n": n}]) for n in (1, 2))
        assert first.has_ids_of(digest(first.serialized()))
        assert not other.has_ids_of(digest(first.serialized()))

    def test_mixed_types_are_rejected(self, messages: Messages) -> None:
        with messages.raises(BadInput):
            opened("items", items=[{"n": 1}, {"n": "a"}])


class TestSql:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return database(tmp_path / "a.db")

    def test_query_may_select_and_end_in_a_semicolon(self, url: str) -> None:
        query = "SELECT text, id * 2 AS twice FROM texts WHERE id < 3 ORDER BY id;\n"
        assert read(opened("sql", url=url, query=query)).good == [
            {"text": f"text {number}", "twice": 2 * number} for number in range(3)
        ]

    def test_shards_divide_the_rows(self, url: str) -> None:
        for shards in (2, 3):
            options = {"shardKeys": ["id"], "shardHashFn": "ABS", "overrideNumBlocks": shards}
            given = opened("sql", url=url, query="SELECT * FROM texts", options=options)
            assert len(given) == shards
            outcome = read(given)
            assert sorted(outcome.good, key=lambda row: int(row["id"])) == ROWS
            assert set(outcome.ends.values()) == {120 // shards}

    def test_unusable_shard_keys_are_rejected(self, url: str, tmp_path: Path) -> None:
        nulls = database(tmp_path / "b.db", [*ROWS, {"id": None, "text": "lost", "score": 0}])
        options = {"shardKeys": ["id"], "overrideNumBlocks": 2}
        for source, more, reason in (
            (nulls, {"shardHashFn": "ABS"}, r"shardKeys: .*\(1\)"),
            (url, {}, r"shardHashFn: the database cannot compute MOD"),
        ):
            with pytest.raises(BadInput, match=reason):
                opened("sql", url=source, query="SELECT * FROM texts", options={**options, **more})

    @pytest.mark.parametrize("other", ["x'ff'", "1"])
    def test_values_without_a_common_type_are_refused(
        self, url: str, other: str, messages: Messages
    ) -> None:
        with messages.raises(BadInput):
            read(opened("sql", url=url, query=f"SELECT 'x' AS a UNION ALL SELECT {other}"))

    def test_query_without_rows_is_an_empty_input(self, url: str) -> None:
        query = "SELECT * FROM texts WHERE id < 0"
        for options in ({}, {"shardKeys": ["id"], "overrideNumBlocks": 2}):
            given = opened("sql", url=url, query=query, options=options)
            assert given.count() == RowCount(0, estimated=False)
            assert read(given).ends == {0: 0}

    def test_unreadable_source_names_its_field(self, url: str) -> None:
        twice = "SELECT a.id, b.id FROM texts a JOIN texts b -- all"
        for fields, reason in (
            ({"query": "SELECT * FROM txets"}, "read.query: .*no such table: txets"),
            ({"query": "SELEKT 1"}, "read.query: .*syntax error"),
            ({"query": twice}, r"read.query has two columns 'id'"),
            ({"url": "sqlite:////none/a.db"}, "read.url: there is no file '/none/a.db'"),
            ({"url": "nonesuch://host/db"}, "read.url: no connection: NoSuchModuleError"),
            ({"url": "mysql+pymysql://u@h/d"}, "read.url: the database's driver is missing"),
        ):
            with pytest.raises(BadInput, match=reason):
                opened("sql", **{"url": url, "query": "SELECT 1", **fields})

    @pytest.mark.parametrize(
        "name",
        ["{}/a.db", "file:a.db", "file:{}/a.db?uri=true", "file:a.db?uri=true",
         "file://{}/a.db?uri=1", "file:{}/a.db?mode=rwc&uri=true", "file:a.db?uri=true&mode=rw",
         "{}/a.db?mode=rwc&uri=true", "{}/b.db?mode=rwc&uri=true", "file:{}/a%20b.db?uri=yes",
         "file:a.db?uri=true&cache=shared"],
    )  # fmt: skip
    def test_missing_file_is_not_created(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "b.db").touch()
        for scheme in ("sqlite", "sqlite+pysqlite"):
            with pytest.raises(BadInput, match=r"read\.url: "):
                opened("sql", url=f"{scheme}:///{name.format(tmp_path)}", query="SELECT 1")
        assert [path.name for path in tmp_path.iterdir()] == ["b.db"]

    @pytest.mark.parametrize("query", ["uri=true", "uri=true&mode=ro", "mode=rwc&uri=true"])
    def test_database_named_by_a_uri_is_read(self, url: str, query: str) -> None:
        address = f"sqlite:///file:{url.removeprefix('sqlite:///')}?{query}"
        assert (
            read(opened("sql", url=address, query="SELECT * FROM texts ORDER BY id")).good == ROWS
        )

    @pytest.mark.parametrize("end", ["", ";", " -- the newest"])
    def test_wrapping_queries_avoid_as(self, url: str, end: str) -> None:
        asked: list[str] = []

        def trace(connection: sqlite3.Connection, _: object) -> None:
            connection.set_trace_callback(asked.append)

        event.listen(Pool, "connect", trace)
        try:
            given = opened("sql", url=url, query=f"SELECT id FROM texts ORDER BY id{end}")
            assert len(read(given).good) == 120
        finally:
            event.remove(Pool, "connect", trace)
        queries = [statement for statement in asked if "SELECT" in statement]
        assert len(queries) == 3
        assert not [query for query in queries if re.search(r"\)\s*AS\b", query, re.IGNORECASE)]

    def test_sql_server_order_by_error_has_a_hint(self, url: str, messages: Messages) -> None:
        message = (
            "(1033, b'The ORDER BY clause is invalid in views, inline functions, derived tables, "
            "subqueries, and common table expressions, unless TOP, OFFSET or FOR XML is also "
            "specified.')"
        )

        class SqlServer(tables_sql().Database):  # type: ignore[misc]
            def columns(self, query: str) -> list[str]:
                raise RuntimeError(message)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables_sql(), "Database", SqlServer)
            with messages.raises(BadInput):
                opened("sql", url=url, query="SELECT id FROM texts ORDER BY id")

    def test_url_from_the_environment_is_not_pickled(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("DATABASE_URL", raising=False)
        with pytest.raises(BadInput, match="the environment variable 'DATABASE_URL' is not set"):
            opened("sql", urlEnv="DATABASE_URL", query="SELECT 1")
        monkeypatch.setenv("DATABASE_URL", url)
        given = opened("sql", urlEnv="DATABASE_URL", query="SELECT * FROM texts ORDER BY id")
        assert url.encode() not in ray.cloudpickle.dumps(given.read_tasks(1))
        assert read(given).good == ROWS

    def test_errors_hide_passwords(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mysql = f"mysql://user:{SECRET}@host/db"
        for url in (mysql, f"no url, but {SECRET}", f"x://u:{SECRET}@h"):
            monkeypatch.setenv("DATABASE_URL", url)
            with pytest.raises(BadInput, match=r"read\.urlEnv: ") as raised:
                opened("sql", urlEnv="DATABASE_URL", query="SELECT 1")
            assert SECRET not in raised.value.message
        monkeypatch.setenv("DATABASE_URL", mysql)
        database = tables_sql().Database(None, "DATABASE_URL")
        assert database.explain(ValueError(f"login user/{SECRET} failed")) == (
            "ValueError: login user/*** failed"
        )

    def test_address_of_a_variable_is_masked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(credentials, "_values", set())
        monkeypatch.setenv("DATABASE_URL", "name-of-a-database?with=the-password")
        address = tables_sql().Database(None, "DATABASE_URL")._address()
        assert without_credentials(f"no {address}") == "no ***"


def tables_sql() -> Any:
    from batchinference.pipeline.input.sources import sql

    return sql


class TestHuggingface:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return saved(tmp_path / "set")

    def test_split_is_selected_unless_there_is_only_one(self, folder: Path, tmp_path: Path) -> None:
        given = opened("huggingface", name=str(folder), options={"split": "test"})
        assert read(given).good == ROWS[:7]
        for options in ({}, {"split": "trian"}):
            with pytest.raises(BadInput, match=r"read\.options\.split: .*has train, test"):
                opened("huggingface", name=str(folder), options=options)
        datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
        assert read(opened("huggingface", name=str(tmp_path / "one"))).good == ROWS

    def test_saved_set_is_split_into_parts(self, folder: Path) -> None:
        for parts in (1, 2, 7):
            options = {"split": "train", "overrideNumBlocks": parts}
            given = opened("huggingface", name=str(folder), options=options)
            assert len(given) == parts
            assert read(given).good == ROWS

    @pytest.fixture
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a folder of three Parquet files, which stands for any dataset of the Hub."""
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
        (tmp_path / "in").mkdir()
        for number in range(3):
            part = pa.Table.from_pylist(ROWS[number * 40 : number * 40 + 40])
            pq.write_table(part, tmp_path / "in" / f"train-{number}.parquet")
        load = datasets.load_dataset
        monkeypatch.setattr(
            datasets,
            "load_dataset",
            lambda *_, revision, **options: load(str(tmp_path / "in"), **options),
        )
        return tmp_path / "in"

    @pytest.mark.parametrize("streaming", [True, False])
    @pytest.mark.usefixtures("files")
    def test_dataset_of_the_hub_is_read(self, streaming: bool) -> None:
        options = {"split": "train", "streaming": streaming}
        given = opened("huggingface", name="org/set", options=options)
        assert len(given) == (3 if streaming else 1)
        assert read(given).good == ROWS

    @pytest.mark.usefixtures("files")
    def test_only_a_commit_is_read_twice(self) -> None:
        for revision, repeatable in {None: False, "main": False, "0" * 40: True}.items():
            options = {"split": "train", "revision": revision}
            assert opened("huggingface", name="org/set", options=options).repeatable == repeatable

    @pytest.mark.parametrize("how", ["saved", "streamed", "fetched"])
    @pytest.mark.usefixtures("files")
    def test_limit_is_exact(self, folder: Path, how: str) -> None:
        options = {"split": "train", "overrideNumBlocks": 2, "streaming": how == "streamed"}
        for limit in (1, 50, 120, 1000):
            name = str(folder) if how == "saved" else "org/set"
            given = opened("huggingface", name=name, options={**options, "limit": limit})
            assert read(given).good == ROWS[:limit]
            assert given.columns() == ["id", "text", "score"]
            count = given.count()
            assert count is None or count.rows == min(limit, 120)

    def test_size_of_a_split_or_limit_is_its_share(self, files: Path) -> None:
        pq.write_table(pa.Table.from_pylist(ROWS[:40]), files / "test.parquet")

        def size(**options: Any) -> int:
            options |= {"split": "train", "streaming": False}
            return opened("huggingface", name="org/set", options=options).size

        full = datasets.load_dataset("org/set", split="train", revision=None).info.dataset_size
        assert 0 < size() == round(full * 120 / 160)
        assert size(limit=20) == round(full * 20 / 160)


class TestLance:
    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        return str(lance_set(tmp_path / "a.lance"))

    def test_columns_filter_and_version(self, path: str) -> None:
        version = lance.dataset(path).versions()[0]["version"]
        options = {"columns": ["text"], "filter": "id % 10 = 3", "version": version}
        given = opened("lance", path=path, options=options)
        expected = lance.dataset(path, version=version).to_table(["text"], "id % 10 = 3")
        assert read(given).good == expected.to_pylist()
        assert given.count() == RowCount(10, estimated=False)
        assert given.columns() == ["text"]

    def test_version_found_at_open_is_read(self, path: str) -> None:
        given = opened("lance", path=path)
        lance.write_dataset(pa.Table.from_pylist(ROWS), path, mode="append")
        assert read(given).good == ROWS

    def test_fragments_are_distributed(self, path: str) -> None:
        for blocks, parts in ((1, 1), (2, 2), (99, 4)):
            given = opened("lance", path=path, options={"overrideNumBlocks": blocks})
            assert len(given) == parts
            assert read(given).good == ROWS

    def test_limit_is_exact(self, path: str) -> None:
        for filter_, passed in (({}, ROWS), ({"filter": "id % 3 = 1"}, ROWS[1::3])):
            for limit in (1, 50, 120, 1000):
                options: Document = {"limit": limit, "overrideNumBlocks": 3, **filter_}
                given = opened("lance", path=path, options=options)
                assert read(given).good == passed[:limit]
                assert given.count() == RowCount(len(passed[:limit]), estimated=False)

    def test_dataset_on_s3_is_read(
        self, path: str, s3: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3.client().create_bucket(Bucket="lake")
        files = [file for file in Path(path).rglob("*") if file.is_file()]
        s3.put("lake", {f"a/{f.relative_to(path)}": f.read_bytes() for f in files})
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, s3.environment[name])
        storage = {"endpoint": s3.endpoint, "region": "us-east-1"}
        assert read(opened("lance", path="s3://lake/a", storage=storage)).good == ROWS

    def test_empty_dataset_is_an_empty_input(self, tmp_path: Path) -> None:
        empty = tmp_path / "empty.lance"
        lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), empty)
        given = opened("lance", path=str(empty))
        assert (given.columns(), read(given).ends) == (["id"], {0: 0})

    def test_unreadable_source_names_its_field(self, path: str) -> None:
        for options, reason in (
            ({"columns": ["txt"]}, r"read\.options\.columns: .*txt"),
            ({"filter": "idd > 3"}, r"read\.options\.filter: .*idd"),
            ({"filter": "id >"}, r"read\.options\.filter: "),
            ({"version": 99}, r"read\.options\.version: "),
        ):
            with pytest.raises(BadInput, match=reason) as raised:
                opened("lance", path=path, options=options)
            assert ".rs:" not in raised.value.message

    def test_missing_dataset_is_rejected(self, tmp_path: Path) -> None:
        none = str(tmp_path / "none")
        with pytest.raises(BadInput, match=r"read\.path '.*/none': .*not found"):
            opened("lance", path=none)
        with pytest.raises(BadInput, match=r"read\.name '.*/none': "):
            opened("huggingface", name=none)

    def test_dataset_below_the_output_is_found(self, path: str, tmp_path: Path) -> None:
        given = opened("lance", path=path)
        assert given.path_inside(Location(str(tmp_path))) == path
        assert given.path_inside(Location(path)) == path
        assert given.path_inside(Location(path + "2")) is None
        assert given.path_inside(Location("s3://bucket")) is None


def test_read_error_names_the_part() -> None:
    def failing() -> Iterator[pa.Table]:
        yield pa.table({"id": [1]})
        raise ValueError("gone away")

    with pytest.raises(JobFailure, match="sql:0 cannot be read: ValueError: gone away"):
        list(TableInput("sql", [failing]).read_tasks(1)[0]())


def test_part_with_fewer_rows_than_before_has_no_end(messages: Messages) -> None:
    """Rows before the last gap were read, so an end there would hide missing rows."""
    given = TableInput("sql", [lambda: [pa.table({"id": [1, 2, 3]})]])
    with messages.raises(Incomplete):
        list(given.read_tasks(1, {0: [(1, 2), (8, None)]})[0]())
    *_, last = given.read_tasks(1, {0: [(3, None)]})[0]()
    assert last.ends == ((0, 3),)


def test_reserved_column_name_is_rejected() -> None:
    given = TableInput("sql", [lambda: [pa.table({"_bi_id": [1]})]])
    with pytest.raises(BadInput, match="sql:0 has a column '_bi_id'"):
        list(given.read_tasks(1)[0]())
