"""Puts rows into a collection of Qdrant. Points store the version of their commit. Upserts have a
filter, so they never replace a point with a higher version."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from packaging.version import Version
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import ResourceExhaustedResponse
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from batchinference.json_text import to_json
from batchinference.pipeline.error_classification import is_transient_status
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import Row
from batchinference.pipeline.output.tables.upserts import FIELDS, Refusal, UpsertTable
from batchinference.pipeline.output.tables.vectors import Vectors
from batchinference.pipeline.storage.retry import TransientError
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.write.tables import WriteQdrant

VERSION = f"{OWN_PREFIX}version"
"""The field of a point's payload with the version of the commit that has put the point."""
OLDEST = Version("1.16")
"""The first version of Qdrant whose upserts have filters. Earlier versions ignore the filter."""
TIMEOUT = 60
_IDS = uuid.UUID("5c1b0d56-6d2f-4b59-9a0e-6f1c5b8a2f10")
_DISTANCES = {
    "cosine": models.Distance.COSINE,
    "dot": models.Distance.DOT,
    "euclidean": models.Distance.EUCLID,
}
_NAMES = {distance: name for name, distance in _DISTANCES.items()}
_INVALID = (400, 422)


class QdrantTable(UpsertTable):
    product = "Qdrant"
    _write: WriteQdrant
    _named = False
    """Whether the vectors of the collection have names."""

    def __init__(self, write: WriteQdrant) -> None:
        super().__init__(write, write.collection)

    @contextmanager
    def client(self) -> Iterator[QdrantClient]:
        name = self._write.api_key_env
        key = name and self.environment_variable("apiKeyEnv", name)
        client = QdrantClient(
            url=self.server_url(), api_key=key, timeout=TIMEOUT, check_compatibility=False
        )
        with closing(client):
            actual = self.call_with_retries(client.info).version
            if Version(actual) < OLDEST:
                raise BadOutput(
                    f"write: Qdrant {actual} ignores the filter of upserts, so a delayed job could "
                    f"replace newer points. Update Qdrant to {OLDEST} or later"
                )
            yield client

    def as_transient(self, error: Exception) -> TransientError | None:
        if isinstance(error, ResourceExhaustedResponse):
            return TransientError(str(error), error.retry_after_s)
        if isinstance(error, ResponseHandlingException):
            return TransientError(str(error.source))
        if isinstance(error, UnexpectedResponse) and is_transient_status(error.status_code or 0):
            return TransientError(_text(error))
        return None

    def find_vectors(self, client: QdrantClient) -> Vectors | None:
        if not self.call_with_retries(client.collection_exists, self.name):
            return None
        vectors = self.call_with_retries(client.get_collection, self.name).config.params.vectors
        column, self._named = self._write.vector_column, isinstance(vectors, dict)
        one = vectors.get(column) if self._named else vectors
        if one is not None and one.multivector_config is not None:
            raise BadOutput(
                f"write.vectorColumn: the vector '{column}' of '{self.name}' is a multivector, "
                "which is not supported. Use another vector or collection"
            )
        if one is None:
            raise BadOutput(
                f"write.vectorColumn: the collection '{self.name}' has no vector '{column}', only "
                f"{', '.join(vectors or ()) or 'points without vectors'}. Name a vector of it"
            )
        return Vectors(column, one.size, _NAMES.get(one.distance, one.distance.value))

    def create(self, client: QdrantClient, name: str, vectors: Vectors | None) -> None:
        config: Any = {}
        if vectors is not None:
            distance = _DISTANCES[vectors.distance]
            config = models.VectorParams(size=vectors.dimensions, distance=distance)
        if self.call_with_retries(client.collection_exists, name):
            return
        try:
            self.request(client.create_collection, name, vectors_config=config)
        except (TransientError, UnexpectedResponse):
            # another job may have created it
            if not self.call_with_retries(client.collection_exists, name):
                raise

    def id_of(self, key: tuple[Any, ...]) -> int | str:
        if len(key) == 1 and isinstance(key[0], int) and key[0] >= 0:
            return key[0]
        return str(uuid.uuid5(_IDS, to_json(key)))

    def put_rows(
        self, client: QdrantClient, name: str, rows: dict[Any, Row], version: int
    ) -> dict[Any, Refusal]:
        points = [self._point(id_, row, version) for id_, row in rows.items()]
        options = {"wait": True, "ordering": models.WriteOrdering.STRONG}
        try:
            self.request(client.upsert, name, points, update_filter=_up_to(version), **options)
        except UnexpectedResponse as error:
            if error.status_code not in _INVALID:
                raise
            if len(rows) == 1:
                return dict.fromkeys(rows, (_text(error), False))
            # one invalid row fails the request, so divide the rows to find it
            items, half = list(rows.items()), len(rows) // 2
            parts = (dict(items[:half]), dict(items[half:]))
            refusals = [self.put_rows(client, name, part, version) for part in parts]
            return refusals[0] | refusals[1]
        return {}

    def _point(self, id_: int | str, row: Row, version: int) -> models.PointStruct:
        payload = json.loads(to_json({**row, VERSION: version}))
        vector = payload.pop(self._write.vector_column, {})
        named = {self._write.vector_column: vector} if self._named and vector else vector
        return models.PointStruct(id=id_, vector=named, payload=payload)

    def rows_of(self, client: QdrantClient, name: str, ids: Sequence[Any]) -> dict[Any, Row]:
        try:
            points = self.call_with_retries(client.retrieve, name, list(ids), with_payload=FIELDS)
        except UnexpectedResponse as error:
            if error.status_code == 404:
                return {}
            raise
        return {record.id: record.payload or {} for record in points}

    def sample(self, client: QdrantClient, count: int) -> list[Row]:
        points, _ = self.call_with_retries(client.scroll, self.name, limit=count, with_vectors=True)
        rows = [{**(one.payload or {}), self._write.vector_column: one.vector} for one in points]
        return [{name: row[name] for name in row if name != VERSION} for row in rows]


def _up_to(version: int) -> models.Filter:
    """Return the filter for points without a version or with at most this version."""
    unmarked = models.IsEmptyCondition(is_empty=models.PayloadField(key=VERSION))
    earlier = models.FieldCondition(key=VERSION, range=models.Range(lte=version))
    return models.Filter(should=[unmarked, earlier])


def _text(error: UnexpectedResponse) -> str:
    return " ".join(str(error).split())[:300]
