"""Puts rows into an index of OpenSearch, as documents with external versions. OpenSearch never
replaces a document by a document with a lower version."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import Any

from opensearchpy import ConnectionError as Disconnected
from opensearchpy import NotFoundError, OpenSearch, RequestError, TransportError
from opensearchpy.helpers import scan

from batchinference.json_text import to_json
from batchinference.pipeline.error_classification import is_transient_status
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.upserts import FIELDS, MARKS, Refusal, UpsertTable
from batchinference.pipeline.output.tables.vectors import Vectors
from batchinference.pipeline.storage.retry import TransientError
from batchinference.spec.write.tables import WriteOpensearch

TIMEOUT = 60
MAX_ID_BYTES = 512
MAX_HITS = 10_000
"""Maximum number of documents that a single search returns."""
_SPACES = {"cosine": "cosinesimil", "dot": "innerproduct", "euclidean": "l2"}
_NAMES = {space: name for name, space in _SPACES.items()}
_WRITTEN = (200, 201)
_CONFLICT = 409
"""The status for documents that already have a higher version."""


class OpensearchTable(UpsertTable):
    product = "OpenSearch"
    _write: WriteOpensearch

    def __init__(self, write: WriteOpensearch) -> None:
        super().__init__(write, write.index)

    def client(self) -> AbstractContextManager[OpenSearch]:
        return closing(OpenSearch(self.server_url(), timeout=TIMEOUT, max_retries=0))

    def as_transient(self, error: Exception) -> TransientError | None:
        if isinstance(error, Disconnected):
            return TransientError(str(error.info))
        if isinstance(error, TransportError) and is_transient_status(int(error.status_code)):
            return TransientError(str(error))
        return None

    def find_vectors(self, client: OpenSearch) -> Vectors | None:
        try:
            mapping = self.call_with_retries(client.indices.get_mapping, index=self.name)
        except NotFoundError:
            return None
        if (column := self._write.vector_column) is None:
            return Vectors("", 0)
        (index,) = mapping.values()
        field = index["mappings"].get("properties", {}).get(column, {})
        if field.get("type") != "knn_vector" or "dimension" not in field:
            raise BadOutput(
                f"write.vectorColumn: '{column}' is not a knn_vector in the index '{self.name}'. "
                "Add it to the mapping of the index, or choose another index"
            )
        space = field.get("space_type") or field.get("method", {}).get("space_type", "l2")
        return Vectors(column, field["dimension"], _NAMES.get(space, space))

    def create(self, client: OpenSearch, name: str, vectors: Vectors | None) -> None:
        if self.call_with_retries(client.indices.exists, index=name):
            return
        body: Row = {}
        if vectors is not None:
            space = _SPACES[vectors.distance]
            method = {"name": "hnsw", "engine": "lucene", "space_type": space}
            field = {"type": "knn_vector", "dimension": vectors.dimensions, "method": method}
            mappings = {"properties": {vectors.column: field}}
            body = {"settings": {"index.knn": True}, "mappings": mappings}
        try:
            self.call_with_retries(client.indices.create, index=name, body=body)
        except RequestError as error:
            if error.error != "resource_already_exists_exception":
                raise

    def id_of(self, key: tuple[Any, ...]) -> str:
        id_ = str(key[0]) if len(key) == 1 else to_json(key)
        if not id_ or len(id_.encode()) > MAX_ID_BYTES:
            raise UnwritableValue(
                f"the key is {f'longer than {MAX_ID_BYTES} bytes' if id_ else 'empty'}, so that it "
                "cannot be the id of a document"
            )
        return id_

    def put_rows(
        self, client: OpenSearch, name: str, rows: dict[Any, Row], version: int
    ) -> dict[Any, Refusal]:
        options = {"version": version, "version_type": "external_gte"}
        lines = (
            f"{to_json({'index': {'_id': id_, **options}})}\n{to_json(row)}\n"
            for id_, row in rows.items()
        )
        answer = self.request(client.bulk, index=name, body="".join(lines))
        results = dict(zip(rows, (item["index"] for item in answer["items"]), strict=True))
        conflicts = [id_ for id_, result in results.items() if result["status"] == _CONFLICT]
        later = self._replaced_later(client, name, conflicts)
        return {
            id_: (_cause(result), id_ not in conflicts and is_transient_status(result["status"]))
            for id_, result in results.items()
            if result["status"] not in _WRITTEN and id_ not in later
        }

    def _replaced_later(self, client: OpenSearch, name: str, ids: Sequence[Any]) -> set[Any]:
        """Return the ids in `ids` whose documents a later commit of a job has put. All documents in
        `ids` have a higher version than this commit. If the version is also above that of the last
        commit, another writer has put the document. No other writer puts documents into MARKS."""
        if not ids or name == MARKS:
            return set(ids)
        answer = self.call_with_retries(
            client.mget, index=name, body={"ids": list(ids)}, _source=False
        )
        last = self.last_version(client)
        return {one["_id"] for one in answer["docs"] if one.get("_version", 0) <= last}

    def rows_of(self, client: OpenSearch, name: str, ids: Sequence[Any]) -> dict[Any, Row]:
        body = {"ids": list(ids)}
        answer = self.call_with_retries(client.mget, index=name, body=body, _source_includes=FIELDS)
        return {one["_id"]: one["_source"] for one in answer["docs"] if one.get("found")}

    def sample(self, client: OpenSearch, count: int) -> list[Row]:
        if count > MAX_HITS:
            hits = self.call_with_retries(
                lambda: list(islice(scan(client, index=self.name), count))
            )
        else:
            answer = self.call_with_retries(client.search, index=self.name, body={"size": count})
            hits = answer["hits"]["hits"]
        return [dict(hit["_source"]) for hit in hits]

    def make_searchable(self, client: OpenSearch) -> None:
        self.call_with_retries(client.indices.refresh, index=self.name)


def _cause(result: Row) -> str:
    error = result.get("error") or {}
    return f"{error.get('type', 'status')}: {error.get('reason', result['status'])}"[:300]
