"""The objects of the service in an object store, or in a local directory.

    PATH/NAMESPACE/files/FILE/NAME.jsonl   the content of an uploaded file with this encoded name
    PATH/NAMESPACE/files/FILE/check.json   what is known about its lines
    PATH/NAMESPACE/batches/BATCH/          the output of the job with the name BATCH

A file exists as soon as its content does, which is written last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore.store import LocalStore

from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import store_for_conditions
from batchinference.service.config import ServiceConfig

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 * 2**20
"""Size of the parts of an upload. S3 accepts 10,000 parts, so 80 GB."""
PARTS_AT_ONCE = 2
READ_BYTES = 2**20


@dataclass(frozen=True)
class StoredObject:
    """An object: its key, its size in bytes, and the Unix time of its last change."""

    key: str
    bytes: int
    changed_at: int


@dataclass(frozen=True)
class Store:
    """The objects below a prefix."""

    objects: ObjectStore
    prefix: str
    root: Location

    @classmethod
    def of(cls, config: ServiceConfig) -> Store:
        """Return the store that a configuration names. Raises OSError if it lacks credentials."""
        root = Location(config.path, config.storage)
        if root.local:
            return cls(LocalStore(root.path, mkdir=True), "", root)
        bucket, _, prefix = root.path.partition("/")
        found = store_for_conditions(root.scheme, bucket, config.storage)
        if found is None:
            raise OSError(f"{config.path}: set the credentials of the store in the environment")
        return cls(found, prefix, root)

    def place(self, *parts: str) -> Location:
        """Return the location of an object, as jobs and the pipeline name it."""
        return Location(f"{self.root.uri.rstrip('/')}/{'/'.join(parts)}", self.root.storage)

    async def write(self, key: str, content: bytes | AsyncIterator[bytes]) -> None:
        """Write an object, which appears when all of its content is written. If the iterator
        raises, there is no object."""
        await obstore.put_async(
            self.objects,
            self._path(key),
            content,
            use_multipart=not isinstance(content, bytes),
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_AT_ONCE,
        )

    async def read(self, key: str) -> bytes:
        """Return the content of a small object. Raises FileNotFoundError."""
        found = await obstore.get_async(self.objects, self._path(key))
        return bytes(await found.bytes_async())

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yield the content of an object. Raises FileNotFoundError."""
        found = await obstore.get_async(self.objects, self._path(key))
        async for chunk in found.stream(min_chunk_size=READ_BYTES):
            yield bytes(chunk)

    async def list(self, key: str) -> list[StoredObject]:
        """Return the objects below a key."""
        start = len(self._path("")) + 1 if self.prefix else 0
        found = obstore.list(self.objects, self._path(key))
        return [
            StoredObject(each["path"][start:], each["size"], int(each["last_modified"].timestamp()))
            async for page in found
            for each in page
        ]

    async def names(self, key: str) -> list[str]:
        """Return the names of the directories directly below a key."""
        found = await obstore.list_with_delimiter_async(self.objects, self._path(key))
        return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    async def delete(self, keys: list[str]) -> None:
        """Delete objects. It is no error if one does not exist."""
        for key in keys:
            try:
                await obstore.delete_async(self.objects, self._path(key))
            except FileNotFoundError:
                continue

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self.prefix, key) if part)
