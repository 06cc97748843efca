"""Rows in Qdrant and OpenSearch: ids, vectors, values that JSON does not have, and refusals.

The servers are those of support/servers/stores.py: real ones do not run in the tests."""

from __future__ import annotations

import datetime as dt
import math
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from qdrant_client import models

from batchinference.pipeline.commit.table_commit import table_errors_as_bad_output
from batchinference.pipeline.errors import BadOutput, StorageUnavailable
from batchinference.pipeline.output.key_types import key_problems
from batchinference.pipeline.output.tables import upserts
from batchinference.pipeline.output.tables.upserts import BATCH_BYTES, BATCH_ROWS
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.jobs.table_writes import TableJob, open_job, run_job, table_of
from support.jobs.vector_jobs import STORES, store_fields
from support.outputs.rows import Row
from support.servers.stores import Answer, Call, FakeOpensearch, LocalQdrant, Store, stored_in

ONE_VECTOR = pa.array([[1.0, 0.0]], pa.list_(pa.float32()))


@dataclass
class Target:
    """A collection or an index in a store of its own."""

    format: str
    folder: Path
    store: Store

    def write(self, **fields: Any) -> Row:
        given = store_fields(self.format, self.store, self.folder, **{"key": ["id"], **fields})
        return {name: value for name, value in given.items() if value is not None}

    def run(self, *tables: pa.Table, name: str = "job", **fields: Any) -> None:
        """Run a job. Calls with different names run different jobs."""
        path = str(self.folder / f"out-{name}")
        assert run_job(self.folder / name, {**self.write(**fields), "path": path}, tables)

    def open(self, **fields: Any) -> TableJob:
        job = open_job(self.folder / "job", self.write(**fields))
        assert job is not None
        return job

    def row(self, **columns: Any) -> Row:
        """Return what the store has of a row with these columns, an id and a vector."""
        values = {name: pa.array([value]) for name, value in columns.items()}
        self.run(pa.table({"id": [1], "vector": ONE_VECTOR, **values}))
        (row,) = self.store.rows()
        return {name: row[name] for name in columns}

    def failed(self, table: pa.Table) -> dict[int, str]:
        """Return the messages of rows that cannot be put, by row index."""
        table_ = table_of(self.write())
        table_.load()
        return {row: str(error) for row, error in table_.unwritable(table).items()}


@pytest.fixture(params=STORES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with stored_in(STORES[request.param]()) as store:
        yield Target(request.param, tmp_path, store)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP", "WRITES"):
        policy = getattr(upserts, name)
        monkeypatch.setattr(upserts, name, replace(policy, first_wait=0.0))


def rows_with(*ids: Any, **columns: Any) -> pa.Table:
    vectors = pa.array([[1.0, 0.0]] * len(ids), pa.list_(pa.float32()))
    return pa.table({"id": list(ids), "vector": vectors, **columns})


only_qdrant = pytest.mark.parametrize("target", ["qdrant"], indirect=True)
only_opensearch = pytest.mark.parametrize("target", ["opensearch"], indirect=True)


def test_rows_with_the_same_key_are_replaced_and_others_kept(target: Target) -> None:
    for kind, ids in {"number": range(3), "uuid": [uuid.UUID(int=at) for at in range(3)]}.items():
        target.run(rows_with(*ids[:2], text=["a", "b"]), name=kind)
        target.run(rows_with(*ids[1:], text=["c", "d"]), name=f"second {kind}")
        texts = {str(row["id"]): row["text"] for row in target.store.rows()}
        assert [texts[str(at)] for at in ids] == ["a", "c", "d"]


def test_values_that_json_lacks_are_kept_as_text(target: Target) -> None:
    kept = target.row(
        integer=(1 << 62) + 1,
        decimal=Decimal("1.10"),
        time=dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC),
        day=dt.date(2026, 1, 2),
        binary=b"\x00\xff",
        nested={"a": [1.5, None]},
    )
    assert kept == {
        "integer": (1 << 62) + 1,
        "decimal": "1.10",
        "time": "2026-01-02 03:04:05.678901+00:00",
        "day": "2026-01-02",
        "binary": "AP8=",
        "nested": {"a": [1.5, None]},
    }


def test_nan_outside_of_the_vector_becomes_null_and_is_counted(target: Target) -> None:
    assert target.row(score=math.nan) == {"score": None}
    counted = table_of(target.write()).nulled_rows(rows_with(1, 2, score=[math.nan, 1.0]))  # type: ignore[attr-defined]
    assert counted == {0: 1}


def test_vectors_are_kept_as_float32(target: Target) -> None:
    target.run(pa.table({"id": [1], "vector": [[0.1, -3.0]]}), distance="dot")
    (row,) = target.store.rows()
    assert row["vector"] == pa.array([0.1, -3.0], pa.float32()).to_pylist()


def test_rows_without_a_suitable_vector_fail(target: Target, messages: Messages) -> None:
    vectors = [[1, 2], None, [1], [1, None], [1, math.nan], [1, math.inf], [1e300, 1], [0, 0], []]
    table = pa.table(
        {"id": range(len(vectors)), "vector": pa.array(vectors, pa.list_(pa.float64()))}
    )
    failed = target.failed(table)
    assert list(failed) == [1, 2, 8, 3, 4, 5, 6, 7]
    messages.check(*failed.values())


def test_zeros_are_a_vector_unless_their_direction_counts(target: Target) -> None:
    target.run(pa.table({"id": [1], "vector": [[0.0, 0.0]]}), distance="euclidean")
    assert [row["vector"] for row in target.store.rows()] == [[0.0, 0.0]]


@only_qdrant
def test_ids_of_points(target: Target) -> None:
    target.run(rows_with(0, (1 << 63) - 1))
    assert sorted(row["_id"] for row in target.store.rows()) == [0, (1 << 63) - 1]
    texts = rows_with("a", "5", "A")
    target.store.clear()
    target.run(texts, name="texts")
    ids = {row["id"]: row["_id"] for row in target.store.rows()}
    assert set(ids) == {"a", "5", "A"}
    assert {uuid.UUID(id_).version for id_ in ids.values()} == {5}
    target.run(texts, rows_with("b"), name="again")
    assert {row["id"]: row["_id"] for row in target.store.rows()}.items() > ids.items()


@only_opensearch
def test_ids_of_documents(target: Target, messages: Messages) -> None:
    target.run(rows_with("a/b", "ä", "x" * 512))
    assert {row["_id"] for row in target.store.rows()} == {"a/b", "ä", "x" * 512}
    failed = target.failed(rows_with("", "a", "ä" * 257))
    assert list(failed) == [0, 2]
    messages.check(*failed.values())


def test_keys_of_several_columns(target: Target) -> None:
    """No two keys have the same id, whatever is in their texts."""
    table = rows_with(1, 1, 11, part=["1,2", '1","2', "2"])
    target.run(table, key=["id", "part"])
    assert len(target.store.rows()) == 3


@pytest.mark.parametrize(
    "fields", [{"dimensions": None}, {"dimensions": 3}, {"distance": "dot"}], ids=str
)
def test_vectors_that_do_not_fit_are_refused_before_rows_are_computed(
    target: Target, fields: Row, messages: Messages
) -> None:
    if fields != {"dimensions": None}:
        target.run(rows_with(1))
    with messages.raises(BadOutput):
        target.open(**fields)


@pytest.mark.parametrize("fields", [{"distance": "euclidean"}, {"dimensions": 2}], ids=str)
def test_collection_with_other_vectors_that_another_job_creates_is_refused(
    target: Target, fields: Row
) -> None:
    job = target.open(dimensions=3, distance="dot")
    vectors = pa.array([[0.0, 2.0, 0.0]], pa.list_(pa.float32()))
    job.put(pa.table({"id": [1], "vector": vectors}))
    other = {"dimensions": 3, "distance": "dot", **fields}
    own = vectors.flatten()[: other["dimensions"]].to_pylist()
    target.run(pa.table({"id": [2], "vector": [own]}), name="other", **other)
    with pytest.raises(BadOutput, match=r"has vectors with . numbers and the distance"):
        job.commit()
    assert [row["id"] for row in target.store.rows()] == [2]


@only_opensearch
def test_index_without_the_vectors_is_refused(target: Target, messages: Messages) -> None:
    target.run(rows_with(1))
    with messages.raises(BadOutput):
        target.open(vectorColumn="other")


@only_qdrant
def test_vectors_with_names(target: Target, messages: Messages) -> None:
    params = models.VectorParams(size=2, distance=models.Distance.DOT)
    assert isinstance(target.store, LocalQdrant)
    target.store.local.create_collection("rows", {"vector": params})
    target.run(rows_with(1), dimensions=None)
    assert [row["vector"] for row in target.store.rows()] == [{"vector": [1.0, 0.0]}]
    with messages.raises(BadOutput):
        target.open(vectorColumn="other")


@only_qdrant
@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_multivectors_are_refused(target: Target, named: bool, messages: Messages) -> None:
    config = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    params = models.VectorParams(size=2, distance=models.Distance.DOT, multivector_config=config)
    assert isinstance(target.store, LocalQdrant)
    target.store.local.create_collection("rows", {"vector": params} if named else params)
    with messages.raises(BadOutput):
        target.open()


INTERVALS = pa.nulls(1, pa.month_day_nano_interval())


@pytest.mark.parametrize(
    "column",
    [{"id": [1.5]}, {"vector": ["a"]}, {"odd": INTERVALS}],
    ids=["key", "vector", "interval"],
)
def test_columns_of_unsuitable_types_are_refused(
    target: Target, column: Row, messages: Messages
) -> None:
    job = target.open()
    with messages.raises(BadOutput):
        job.begin(pa.table({"id": [1], "vector": ONE_VECTOR, **column}))


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64()), pa.date32()], ids=str)
def test_key_of_another_type_is_refused_before_the_start(kind: pa.DataType) -> None:
    fields = {"index": "rows", "url": "http://127.0.0.1:9", "key": ["id", "name"]}
    write = write_of("opensearch", **fields)
    (problem,) = key_problems(write, pa.schema({"id": kind, "name": pa.null()}))
    assert (problem.path, str(kind) in problem.message) == ("spec.write.key", True)
    assert not [*key_problems(write, pa.schema({"id": pa.uuid(), "name": pa.string()}))]


def test_length_of_the_vectors_of_an_existing_collection_is_known(target: Target) -> None:
    target.run(rows_with(1))
    target.run(rows_with(2), name="second", dimensions=None)
    assert len(target.store.rows()) == 2


def failing(*answers: Answer) -> Callable[[Call], Answer | None]:
    """Return what answers requests with rows like this first, and then as it should."""
    left = list(answers)
    return lambda call: left.pop(0) if call.writes_rows and left else None


LOST = (0, None)
"""The connection is lost before the request is done."""
UNANSWERED = (-1, None)
"""The connection is lost after the request is done."""


@pytest.mark.parametrize("answer", [(429, {}), (503, {}), LOST, UNANSWERED], ids=str)
def test_failed_requests_are_repeated(target: Target, answer: Answer) -> None:
    target.store.fault = failing(answer, answer)
    target.run(rows_with(1, 2))
    assert {row["id"] for row in target.store.rows()} == {1, 2}


def test_store_that_stays_away_fails_the_commit_and_the_next_run_completes_it(
    target: Target, messages: Messages
) -> None:
    job = target.open()
    job.put(rows_with(1, 2))
    entries = job.check()
    target.store.fault = lambda call: (503, {}) if call.writes_rows else None
    with messages.raises(StorageUnavailable):
        job.commit(entries)
    target.store.fault = lambda call: None
    job.commit(entries)
    assert {row["id"] for row in target.store.rows()} == {1, 2}


def test_wrong_credentials_are_reported_without_them(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = target.store.url.replace("://", "://me:hunter2@")
    monkeypatch.setenv("ADDRESS", address)
    target.store.fault = lambda call: (401, {"error": "who are you"})
    with pytest.raises(BadOutput) as refused:
        target.open(url=None, urlEnv="ADDRESS")
    assert "401" in refused.value.message
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize("password", ["Geh/eim", "12#eim", "5432/eim", "Geh?eim"])
def test_address_that_is_not_valid_is_not_shown(
    target: Target, password: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setenv("ADDRESS", f"http://me:{password}@127.0.0.1:1")
    with messages.raises(BadOutput):
        target.open(url=None, urlEnv="ADDRESS")


def test_errors_of_libraries_are_shown_without_secrets() -> None:
    with pytest.raises(BadOutput) as error, table_errors_as_bad_output():
        raise ValueError("cannot reach http://me:hunter2@127.0.0.1:1")
    assert "hunter2" not in str(error.value)


@only_opensearch
def test_document_with_a_version_of_others_is_refused(target: Target, messages: Messages) -> None:
    target.run(rows_with(1, 2, text=["a", "b"]))
    assert isinstance(target.store, FakeOpensearch)
    target.store.documents["rows"]["1"]["_version"] = 1 << 60
    with messages.raises(BadOutput):
        target.run(rows_with(1, 2, text=["c", "d"]), name="second")
    assert {row["id"]: row["text"] for row in target.store.rows()} == {1: "a", 2: "d"}


@only_opensearch
def test_documents_are_refused_and_repeated_one_by_one(target: Target, messages: Messages) -> None:
    store = target.store
    assert isinstance(store, FakeOpensearch)
    busy = [1, 2]

    def refused(document: Row) -> Answer | None:
        if document.get("id") in busy:
            busy.remove(document["id"])
            return 429, {"type": "rejected_execution_exception", "reason": "busy"}
        if document.get("id") in (3, 4):
            return 400, {"type": "mapper_parsing_exception", "reason": "failed to parse [id]"}
        return None

    store.refused = refused
    with messages.raises(BadOutput):
        target.run(rows_with(*range(6)))
    assert sorted(row["id"] for row in store.rows()) == [0, 1, 2, 5]
    sent = [len(call.body) // 2 for call in store.calls if call.path == "/rows/_bulk"]
    assert sent == [6, 2]


@only_qdrant
def test_a_refused_point_does_not_refuse_the_others(target: Target, messages: Messages) -> None:
    def too_large(call: Call) -> Answer | None:
        points = call.body["points"] if call.writes_rows else []
        is_refused = any(point["payload"].get("id") == 3 for point in points)
        return (400, {"status": {"error": "too large"}}) if is_refused else None

    target.store.fault = too_large
    with messages.raises(BadOutput):
        target.run(rows_with(*range(6)))
    assert sorted(row["id"] for row in target.store.rows()) == [0, 1, 2, 4, 5]


@only_qdrant
def test_server_without_conditional_upserts_is_refused(
    target: Target, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr(LocalQdrant, "version", "1.15.5")
    with messages.raises(BadOutput):
        target.open()


@only_qdrant
def test_api_key_is_sent(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    with pytest.warns(UserWarning, match="insecure"):
        target.run(rows_with(1), apiKeyEnv="KEY")
    assert {call.headers["api-key"] for call in target.store.calls} == {"hunter2"}


@only_opensearch
def test_all_rows_of_an_index_are_read(target: Target) -> None:
    """OpenSearch returns at most 10,000 documents per search."""
    assert isinstance(target.store, FakeOpensearch)
    target.store.documents["rows"] = {str(n): {"_source": {"id": n}} for n in range(10_001)}
    target.store.mappings["rows"] = {}
    table = table_of(target.write(vectorColumn=None, dimensions=None))
    assert table.rows(sys.maxsize) == [{"id": n} for n in range(10_001)]
    assert table.first_rows(2) == [{"id": 0}, {"id": 1}]


@only_opensearch
def test_rows_without_vectors(target: Target) -> None:
    target.run(pa.table({"id": [1]}), vectorColumn=None, dimensions=None)
    assert target.store.rows() == [{"_id": "1", "id": 1}]


def test_requests_have_limited_size(target: Target) -> None:
    """The batch with the long text is halved until this text is alone."""
    rows = BATCH_ROWS + 2
    target.run(rows_with(*range(rows), text=["a" * BATCH_BYTES, *["b"] * (rows - 1)]))
    sizes = [
        len(call.body["points"] if target.format == "qdrant" else call.body[::2])
        for call in target.store.calls
        if call.writes_rows
    ]
    assert sorted(sizes) == [1, 1, 2, 2, 4, 8, 16, 32, 64, 128]
    assert len(target.store.rows()) == rows
