"""Puts rows into an index of OpenSearch, with external versions: a document is replaced only by one
of the same or a higher version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opensearchpy import ConflictError, NotFoundError, OpenSearch, RequestError, TransportError
from opensearchpy import ConnectionError as Disconnected

from batchinference.json_text import to_json
from batchinference.pipeline.error_attribution import is_transient_status
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.upserts import (
    MARKS,
    Refusal,
    UpsertTable,
    higher_version,
)
from batchinference.pipeline.output.tables.vectors import Vectors
from batchinference.pipeline.storage.retry import HTTP, TryAgain
from batchinference.spec.write.stores import WriteOpensearch

TIMEOUT = 60
MAX_ID_BYTES = 512
_SPACES = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}
_CONFLICT = 409


class OpensearchTable(UpsertTable):
    _write: WriteOpensearch

    def __init__(self, write: WriteOpensearch) -> None:
        super().__init__(write, write.index)

    @contextmanager
    def client(self) -> Iterator[OpenSearch]:
        client = OpenSearch(self.address(), timeout=TIMEOUT, max_retries=0)
        try:
            yield client
        finally:
            client.close()

    def layout(self, client: OpenSearch) -> Vectors | None:
        try:
            found = _ask(client.indices.get_mapping, index=self.name)
        except NotFoundError:
            return None
        column = self._write.vector_column
        if column is None:
            return Vectors("", 0)
        ((_, index),) = found.items()
        field = index["mappings"].get("properties", {}).get(column, {})
        if field.get("type") != "knn_vector" or "dimension" not in field:
            raise BadOutput(
                f"write.vectorColumn: '{column}' is no knn_vector in the index '{self.name}'. Add "
                "it to the mapping of the index, or choose another index"
            )
        space = field.get("space_type") or field.get("method", {}).get("space_type", "l2")
        wanted = _SPACES.get(self._write.distance or "", space)
        if wanted != space:
            raise BadOutput(
                f"write.distance: '{column}' has the space {space} in the index '{self.name}', not "
                f"{wanted}. Remove distance, or choose another index"
            )
        return Vectors(column, field["dimension"], space == "cosinesimil")

    def create(self, client: OpenSearch) -> None:
        body: dict[str, Any] = {}
        if self.vectors is not None:
            space = _SPACES[self._write.distance or "cosine"]
            method = {"name": "hnsw", "engine": "lucene", "space_type": space}
            vector = {"type": "knn_vector", "dimension": self.vectors.dimensions, "method": method}
            body = {
                "settings": {"index.knn": True},
                "mappings": {"properties": {self.vectors.column: vector}},
            }
        try:
            _ask(client.indices.create, index=self.name, body=body)
        except RequestError as error:
            if error.error != "resource_already_exists_exception":
                raise

    def id_of(self, key: tuple[Any, ...]) -> str:
        id_ = str(key[0]) if len(key) == 1 else to_json(key)
        if not id_ or len(id_.encode()) > MAX_ID_BYTES:
            raise UnwritableValue(
                f"the key is {'longer than 512 bytes' if id_ else 'empty'}, so it cannot be the id "
                "of a document"
            )
        return id_

    def put_rows(
        self, client: OpenSearch, rows: dict[Any, Row], version: int
    ) -> dict[Any, Refusal]:
        action = {"version": version, "version_type": "external_gte"}
        lines = (
            f"{to_json({'index': {'_id': id_, **action}})}\n{to_json(row)}\n"
            for id_, row in rows.items()
        )
        answer = _request(client.bulk, index=self.name, body="".join(lines))
        results = (item["index"] for item in answer["items"])
        # a conflict is about a document of a later commit
        return {
            id_: Refusal(_cause(result), is_transient_status(result["status"]))
            for id_, result in zip(rows, results, strict=True)
            if result["status"] not in (200, 201, _CONFLICT)
        }

    def mark(self, client: OpenSearch, name: str) -> Row:
        return dict(self._mark(client, name).get("_source", {}))

    def _mark(self, client: OpenSearch, name: str) -> Row:
        try:
            return dict(_ask(client.get, index=MARKS, id=name))
        except NotFoundError:
            return {}

    def put_mark(self, client: OpenSearch, name: str, fields: Row, **options: Any) -> None:
        _ask(client.index, index=MARKS, id=name, body=fields, **options)

    def next_version(self, client: OpenSearch) -> int:
        name = f"version of {self.name}"
        while True:
            before = self._mark(client, name)
            version = higher_version(before.get("_source", {}).get("version", 0))
            unchanged = (
                {"if_seq_no": before["_seq_no"], "if_primary_term": before["_primary_term"]}
                if before
                else {"op_type": "create"}
            )
            try:
                self.put_mark(client, name, {"version": version}, **unchanged)
            except ConflictError:
                continue  # another commit has begun
            return version

    def known_ids(self, client: OpenSearch, ids: Sequence[Any]) -> set[Any]:
        found = _ask(client.mget, index=self.name, body={"ids": list(ids)}, _source=False)
        return {one["_id"] for one in found["docs"] if one.get("found")}

    def first(self, client: OpenSearch, count: int) -> list[Row]:
        found = _ask(client.search, index=self.name, body={"size": min(count, 10_000)})
        return [dict(hit["_source"]) for hit in found["hits"]["hits"]]

    def finish(self, client: OpenSearch) -> None:
        _ask(client.indices.refresh, index=self.name)


def _cause(result: Row) -> str:
    error = result.get("error") or {}
    return f"{error.get('type', 'status')}: {error.get('reason', result['status'])}"[:300]


def _ask(call: Any, **arguments: Any) -> Any:
    """Return the result of a request, which is retried."""
    return HTTP.call(lambda: _request(call, **arguments))


def _request(call: Any, **arguments: Any) -> Any:
    """Return the result of a request. Raises TryAgain for an error that may pass."""
    try:
        return call(**arguments)
    except Disconnected as error:
        raise TryAgain(str(error.info)) from None
    except TransportError as error:
        status = int(error.status_code)
        if status != _CONFLICT and is_transient_status(status):
            raise TryAgain(str(error)) from None
        raise
