"""Puts rows into a collection of Qdrant. Each point has the version of its commit in its payload,
and an upsert with a filter replaces only points of lower versions."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from packaging.version import Version
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from batchinference.json_text import to_json
from batchinference.pipeline.error_attribution import is_transient_status
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.upserts import (
    MARKS,
    Refusal,
    UpsertTable,
    higher_version,
    variable,
)
from batchinference.pipeline.output.tables.vectors import Vectors
from batchinference.pipeline.storage.retry import HTTP, TryAgain
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.write.stores import WriteQdrant

VERSION = f"{OWN_PREFIX}version"
"""The field of the payload with the version of the commit that put the point."""
OLDEST = Version("1.16")
"""The first version whose upserts have a filter. Earlier ones ignore it."""
TIMEOUT = 60
_IDS = uuid.UUID("5c1b0d56-6d2f-4b59-9a0e-6f1c5b8a2f10")
_DISTANCES = {
    "cosine": models.Distance.COSINE,
    "dot": models.Distance.DOT,
    "euclidean": models.Distance.EUCLID,
}
_STRONG = {"wait": True, "ordering": models.WriteOrdering.STRONG}
_MAX_ID = (1 << 64) - 1


class QdrantTable(UpsertTable):
    _write: WriteQdrant
    _named = False
    """Whether the vectors of the collection have names."""

    def __init__(self, write: WriteQdrant) -> None:
        super().__init__(write, write.collection)

    @contextmanager
    def client(self) -> Iterator[QdrantClient]:
        key = self._write.api_key_env and variable("apiKeyEnv", self._write.api_key_env)
        client = QdrantClient(
            url=self.address(), api_key=key, timeout=TIMEOUT, check_compatibility=False
        )
        try:
            yield client
        finally:
            client.close()

    def layout(self, client: QdrantClient) -> Vectors | None:
        self._check_version(client)
        if not _ask(client.collection_exists, self.name):
            return None
        found = _ask(client.get_collection, self.name).config.params.vectors
        column = self._write.vector_column
        one = found.get(column) if isinstance(found, dict) else found
        if one is None or one.multivector_config is not None:
            raise BadOutput(
                f"write.vectorColumn: the collection '{self.name}' has no vector '{column}', only "
                f"{', '.join(found or ()) or 'points without vectors'}. Name a vector of it"
            )
        if self._write.distance and one.distance != _DISTANCES[self._write.distance]:
            raise BadOutput(
                f"write.distance: the collection '{self.name}' has {one.distance.value}. Remove "
                "distance, or choose another collection"
            )
        self._named = isinstance(found, dict)
        return Vectors(column, one.size, one.distance is models.Distance.COSINE)

    def _check_version(self, client: QdrantClient) -> None:
        found = _ask(client.info).version
        if Version(found) < OLDEST:
            raise BadOutput(
                f"write: Qdrant {found} cannot refuse the rows of a delayed job. Upgrade it to "
                f"{OLDEST} or later"
            )

    def create(self, client: QdrantClient) -> None:
        assert self.vectors is not None  # noqa: S101 - `load` has set it
        distance = _DISTANCES[self._write.distance or "cosine"]
        params = models.VectorParams(size=self.vectors.dimensions, distance=distance)
        _create(client, self.name, params)

    def id_of(self, key: tuple[Any, ...]) -> int | str:
        if len(key) == 1 and isinstance(key[0], int) and 0 <= key[0] <= _MAX_ID:
            return key[0]
        return _uuid(*key)

    def put_rows(
        self, client: QdrantClient, rows: dict[Any, Row], version: int
    ) -> dict[Any, Refusal]:
        points = [self._point(id_, row, version) for id_, row in rows.items()]
        try:
            _request(client.upsert, self.name, points, update_filter=_up_to(version), **_STRONG)
        except UnexpectedResponse as error:
            if error.status_code not in (400, 422):
                raise
            if len(rows) == 1:
                return dict.fromkeys(rows, Refusal(" ".join(str(error).split())[:300]))
            ids, half = list(rows), len(rows) // 2  # the server refuses a whole request
            parts = ({id_: rows[id_] for id_ in part} for part in (ids[:half], ids[half:]))
            found = [self.put_rows(client, part, version) for part in parts]
            return found[0] | found[1]
        return {}

    def _point(self, id_: int | str, row: Row, version: int) -> models.PointStruct:
        payload = json.loads(to_json({**row, VERSION: version}))
        vector = payload.pop(self._write.vector_column)
        named = {self._write.vector_column: vector} if self._named else vector
        return models.PointStruct(id=id_, vector=named, payload=payload)

    def mark(self, client: QdrantClient, name: str) -> Row:
        if not _ask(client.collection_exists, MARKS):
            return {}
        found = _ask(client.retrieve, MARKS, [_uuid(name)])
        return dict(found[0].payload or {}) if found else {}

    def put_mark(self, client: QdrantClient, name: str, fields: Row, **options: Any) -> None:
        if not _ask(client.collection_exists, MARKS):
            _create(client, MARKS, {})
        point = models.PointStruct(id=_uuid(name), vector={}, payload={"mark": name, **fields})
        _ask(client.upsert, MARKS, [point], **options, **_STRONG)

    def next_version(self, client: QdrantClient) -> int:
        name, owner = f"version of {self.name}", uuid.uuid4().hex
        while True:
            version = higher_version(self.mark(client, name).get(VERSION, 0))
            fields = {VERSION: version, "owner": owner}
            self.put_mark(client, name, fields, update_filter=_up_to(version - 1))
            if self.mark(client, name) == {"mark": name, **fields}:
                return version

    def known_ids(self, client: QdrantClient, ids: Sequence[Any]) -> set[Any]:
        found = _ask(client.retrieve, self.name, list(ids), with_payload=False)
        return {record.id for record in found}

    def first(self, client: QdrantClient, count: int) -> list[Row]:
        found, _ = _ask(client.scroll, self.name, limit=count, with_vectors=True)
        rows = [{**(one.payload or {}), self._write.vector_column: one.vector} for one in found]
        return [{name: row[name] for name in row if name != VERSION} for row in rows]


def _uuid(*values: Any) -> str:
    return str(uuid.uuid5(_IDS, to_json(values)))


def _up_to(version: int) -> models.Filter:
    """Return the filter of points that no commit of a higher version has put."""
    unmarked = models.IsEmptyCondition(is_empty=models.PayloadField(key=VERSION))
    earlier = models.FieldCondition(key=VERSION, range=models.Range(lte=version))
    return models.Filter(should=[unmarked, earlier])


def _create(client: QdrantClient, name: str, vectors: Any) -> None:
    try:
        _ask(client.create_collection, name, vectors_config=vectors)
    except (TryAgain, UnexpectedResponse):
        if not _ask(client.collection_exists, name):  # another job may have created it
            raise


def _ask(call: Any, *arguments: Any, **options: Any) -> Any:
    """Return the result of a request, which is retried."""
    return HTTP.call(lambda: _request(call, *arguments, **options))


def _request(call: Any, *arguments: Any, **options: Any) -> Any:
    """Return the result of a request. Raises TryAgain for an error that may pass."""
    try:
        return call(*arguments, **options)
    except ResourceExhaustedResponse as error:
        raise TryAgain(str(error), error.retry_after_s) from None
    except ResponseHandlingException as error:
        raise TryAgain(str(error.source)) from None
    except UnexpectedResponse as error:
        if is_transient_status(error.status_code or 0):
            raise TryAgain(" ".join(str(error).split())) from None
        raise
