"""Files of a namespace: uploaded ones, and the output and error files of batches."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.verify.jobs import stored_job, stored_layouts
from batchinference.service.errors import ApiError, bad_request, not_found
from batchinference.service.line_check import FileCheck, LineChecker
from batchinference.service.store import Store, StoredObject

MAX_NAME = 180
"""Maximum bytes of the name of a file. Encoded, it is a part of the key of an object."""
BLOCK = 4 * 2**20
"""Bytes that are checked at once, in a thread."""
ERROR_FILE = "_errors.jsonl"
CHECK = "check.json"
_UPLOADED = re.compile("file-[0-9a-f]{32}")
_OF_BATCH = re.compile("file-(output|errors)-([0-9a-f]{32})")
_BATCH = re.compile("batch-([0-9a-f]{32})")


@dataclass(frozen=True)
class StoredFile:
    """A file. Its content is that of `parts`, one after the other."""

    id: str
    name: str
    purpose: str
    created_at: int
    parts: tuple[StoredObject, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": None,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


class Files:
    """The files in a store. Each method takes the namespace of the key of the request first."""

    def __init__(self, store: Store, max_bytes: int, max_lines: int) -> None:
        self.store = store
        self._max_bytes, self._max_lines = max_bytes, max_lines

    async def add(self, namespace: str, name: str, content: AsyncIterator[bytes]) -> StoredFile:
        """Store an uploaded file while its lines are checked. Raises ApiError.

        If the upload ends early, no file appears: its content becomes visible at the end."""
        if not name or len(name.encode(errors="surrogatepass")) > MAX_NAME:
            raise bad_request(f"file: expected a name of 1 to {MAX_NAME} bytes", "file")
        milliseconds = time.time_ns() // 1_000_000
        identifier = f"file-{milliseconds:012x}{secrets.token_hex(10)}"
        place = f"{namespace}/files/{identifier}"
        checker = LineChecker(self._max_lines)
        await self.store.write(
            f"{place}/{_encoded(name)}.jsonl", self._checked(content, checker, f"{place}/{CHECK}")
        )
        return await self.get(namespace, identifier)

    async def _checked(
        self, content: AsyncIterator[bytes], checker: LineChecker, result: str
    ) -> AsyncIterator[bytes]:
        """Yield the content in blocks that were checked, and store the result at their end."""
        size = 0
        async for block in _blocks(content):
            size += len(block)
            if size > self._max_bytes:
                message = f"file: larger than {self._max_bytes} bytes. Split it"
                raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, param="file")
            await asyncio.to_thread(checker.add, block)
            yield block
        found = await asyncio.to_thread(checker.end)
        await self.store.write(result, found.model_dump_json().encode())

    async def get(self, namespace: str, identifier: str) -> StoredFile:
        """Return a file. Raises ApiError if the namespace has no file with this id."""
        if _UPLOADED.fullmatch(identifier):
            objects = await self.store.list(f"{namespace}/files/{identifier}")
            found = next(iter(_uploaded(objects)), None)
        elif match := _OF_BATCH.fullmatch(identifier):
            found = await self._of_batch(namespace, match[1], match[2])
        else:
            found = None
        if found is None:
            raise not_found("File object", identifier)
        return found

    async def check(self, file: StoredFile) -> FileCheck:
        """Return what was found out about the lines of an uploaded file. Raises ApiError."""
        if file.purpose != "batch":
            raise bad_request("input_file_id: the file has the purpose batch_output")
        directory = file.parts[0].key.rpartition("/")[0]
        return FileCheck.model_validate_json(await self.store.read(f"{directory}/{CHECK}"))

    async def list(self, namespace: str, purpose: str | None) -> list[str]:
        """Return the ids of all files, in the order in which the uploaded files were created."""
        identifiers: list[str] = []
        if purpose in (None, "batch"):
            identifiers += await self.store.names(f"{namespace}/files")
        if purpose in (None, "batch_output"):
            names = map(_BATCH.fullmatch, await self.store.names(f"{namespace}/batches"))
            batches = [name[1] for name in names if name]
            identifiers += [
                f"file-{kind}-{one}" for kind in ("output", "errors") for one in batches
            ]
        return sorted(identifiers, key=lambda each: (each.rpartition("-")[2], each))

    async def delete(self, namespace: str, identifier: str) -> None:
        """Delete a file. Raises ApiError."""
        found = await self.get(namespace, identifier)
        checks = [f"{namespace}/files/{identifier}/{CHECK}"] if found.purpose == "batch" else []
        await self.store.delete([*(part.key for part in found.parts), *checks])

    async def content(self, file: StoredFile) -> AsyncIterator[bytes]:
        """Yield the content of a file."""
        for part in file.parts:
            async for chunk in self.store.stream(part.key):
                yield chunk

    async def _of_batch(self, namespace: str, kind: str, number: str) -> StoredFile | None:
        """Return the output or error file of a batch; None if it has no lines."""
        place = f"{namespace}/batches/batch-{number}"
        if kind == "output":
            output = self.store.place(namespace, "batches", f"batch-{number}")
            names = await asyncio.to_thread(_committed, output)
        else:
            names = {ERROR_FILE}
        objects = await self.store.list(place) if names else []
        parts = [each for each in objects if each.key.removeprefix(f"{place}/") in names]
        parts = sorted((part for part in parts if part.bytes), key=lambda part: part.key)
        if not parts:
            return None
        created_at = max(part.changed_at for part in parts)
        name = f"batch_{number}_{kind}.jsonl"
        return StoredFile(f"file-{kind}-{number}", name, "batch_output", created_at, tuple(parts))


def _committed(output: Location) -> set[str]:
    """Return the names of the files in an output whose rows are committed. Tenants can write there,
    so nothing else of its state is used."""
    try:
        (layout,) = stored_layouts(output)
        job = stored_job(layout)
        entries = job.committed().entries if job else []
    except (JobFailure, ValueError):
        return set()
    return {file.name for entry in entries for file in entry.data}


def _uploaded(objects: Iterable[StoredObject]) -> list[StoredFile]:
    return [
        StoredFile(identifier, name, "batch", int(identifier[5:17], 16) // 1000, (each,))
        for each in objects
        for identifier in [each.key.split("/")[-2]]
        if (name := _decoded(base_name(each.key))) is not None
    ]


def _encoded(name: str) -> str:
    """Return a name as letters, digits, - and _, so that it is no path in any store."""
    content = name.encode(errors="surrogatepass")
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(key: str) -> str | None:
    """Return the name in the last part of a key; None if this is no uploaded content."""
    encoded, dot, extension = key.partition(".")
    if not dot or extension != "jsonl":
        return None
    try:
        content = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return content.decode(errors="replace")
    except (binascii.Error, ValueError):
        return None


async def _blocks(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the content in blocks of about BLOCK bytes."""
    block = bytearray()
    async for chunk in content:
        block += chunk
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)
