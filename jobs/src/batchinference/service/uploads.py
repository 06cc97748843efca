"""Receives files in parts, and joins the parts of an upload when it is completed.

PATH/NAMESPACE/uploads/UPLOAD/upload.json   the request and the status of the upload
PATH/NAMESPACE/uploads/UPLOAD/PART          the content of a part
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any, Literal

import obstore
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchinference.service.api_error import ApiError, bad_request, not_found, parse_request
from batchinference.service.batch_files import PARTS_AT_ONCE, Expiry, Files, StoredFile

OPEN_SECONDS = 3600
"""Seconds after its creation in which parts can be added to an upload."""
MAX_PART = 64 * 2**20
_UPLOAD, _PART = re.compile("upload_([0-9a-f]{12})[0-9a-f]{20}"), re.compile("part_[0-9a-f]{32}")


class UploadRequest(BaseModel):
    """The body of a request for a new upload."""

    model_config = ConfigDict(extra="forbid")
    bytes: Annotated[int, Field(ge=1)]
    filename: Annotated[str, Field(min_length=1, max_length=180)]
    mime_type: str
    purpose: Literal["batch"]
    expires_after: Expiry | None = None


class _Stored(BaseModel):
    """The content of upload.json."""

    request: UploadRequest
    status: Literal["pending", "completed", "cancelled"] = "pending"
    file: str | None = None


class _Completion(BaseModel):
    """The body of a request that completes an upload."""

    model_config = ConfigDict(extra="forbid")
    part_ids: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    md5: str | None = None


class Uploads:
    """The uploads in a store. The first argument of methods is the namespace of the API key."""

    def __init__(self, files: Files) -> None:
        self._files, self._store = files, files.store

    async def create(self, namespace: str, body: bytes) -> dict[str, Any]:
        """Begin an upload and return it. Raises ApiError."""
        stored = _Stored(request=parse_request(UploadRequest, body))
        if stored.request.bytes > self._files.max_bytes:
            raise bad_request(f"bytes: more than {self._files.max_bytes}", "bytes")
        identifier = f"upload_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
        await self._write(namespace, identifier, stored)
        return _shown(identifier, stored)

    async def add_part(
        self, namespace: str, identifier: str, content: AsyncIterator[bytes]
    ) -> dict[str, Any]:
        """Store a part and return it. Raises ApiError."""
        await self._pending(namespace, identifier)
        part = f"part_{secrets.token_hex(16)}"
        key = f"{namespace}/uploads/{identifier}/{part}"
        await obstore.put_async(
            self._store, key, content, use_multipart=True, max_concurrency=PARTS_AT_ONCE
        )
        about = {"object": "upload.part", "created_at": int(time.time())}
        return {"id": part, **about, "upload_id": identifier}

    async def complete(self, namespace: str, identifier: str, body: bytes) -> dict[str, Any]:
        """Join the parts of an upload to a file, and return the upload. Raises ApiError."""
        wanted, stored = parse_request(_Completion, body), await self._read(namespace, identifier)
        if stored.status == "completed":  # the answer to the first request was lost
            return _shown(identifier, stored, await self._files.get(namespace, stored.file or ""))
        request = (await self._pending(namespace, identifier)).request
        content = self._content(f"{namespace}/uploads/{identifier}", wanted, request.bytes)
        file = await self._files.add(namespace, request.filename, content, request.expires_after)
        done = stored.model_copy(update={"status": "completed", "file": file.id})
        await self._end(namespace, identifier, done)
        return _shown(identifier, done, file)

    async def cancel(self, namespace: str, identifier: str) -> dict[str, Any]:
        """Cancel an upload, and return it. Raises ApiError if it has ended."""
        stored = await self._pending(namespace, identifier)
        done = stored.model_copy(update={"status": "cancelled"})
        await self._end(namespace, identifier, done)
        return _shown(identifier, done)

    async def _content(
        self, directory: str, wanted: _Completion, size: int
    ) -> AsyncIterator[bytes]:
        """Yield the content of the parts. Raises ApiError if it has another size than announced, or
        (at its end) another checksum."""
        found = {
            each["path"].rpartition("/")[2]: each for each in await self._files.objects(directory)
        }
        for part in wanted.part_ids:
            if not _PART.fullmatch(part) or part not in found:
                raise bad_request(f"part_ids: there is no part {part[:64]}", "part_ids")
        parts = [found[part] for part in wanted.part_ids]
        if (total := sum(part["size"] for part in parts)) != size:
            raise bad_request(f"bytes: the parts have {total} bytes, not {size}", "bytes")
        digest = hashlib.md5(usedforsecurity=False)
        async for chunk in self._files.content_of(parts):
            digest.update(chunk)
            yield chunk
        if wanted.md5 is not None and digest.hexdigest() != wanted.md5.lower():
            raise bad_request("md5: the content of the parts has another one", "md5")

    async def _end(self, namespace: str, identifier: str, done: _Stored) -> None:
        """Store the final status of an upload, and delete its parts."""
        await self._write(namespace, identifier, done)
        for each in await self._files.objects(f"{namespace}/uploads/{identifier}"):
            if not each["path"].endswith(".json"):
                await obstore.delete_async(self._store, each["path"])

    async def _pending(self, namespace: str, identifier: str) -> _Stored:
        """Return an upload to which parts can be added. Raises ApiError."""
        stored = await self._read(namespace, identifier)
        status: str = stored.status
        if status == "pending" and time.time() > _created(identifier) + OPEN_SECONDS:
            status = "expired"
        if status != "pending":
            raise ApiError(HTTPStatus.BAD_REQUEST, f"The upload is {status}", "upload_id")
        return stored

    async def _read(self, namespace: str, identifier: str) -> _Stored:
        try:
            if not _UPLOAD.fullmatch(identifier):
                raise FileNotFoundError
            key = f"{namespace}/uploads/{identifier}/upload.json"
            found = await obstore.get_async(self._store, key)
            return _Stored.model_validate_json(bytes(await found.bytes_async()))
        except (FileNotFoundError, ValidationError):  # the object is untrusted
            raise not_found("Upload", identifier) from None

    async def _write(self, namespace: str, identifier: str, stored: _Stored) -> None:
        key = f"{namespace}/uploads/{identifier}/upload.json"
        await obstore.put_async(self._store, key, stored.model_dump_json().encode())


def _created(identifier: str) -> int:
    match = _UPLOAD.fullmatch(identifier)
    return int(match[1], 16) // 1000 if match else 0


def _shown(identifier: str, stored: _Stored, file: StoredFile | None = None) -> dict[str, Any]:
    created = _created(identifier)
    return {
        **{"id": identifier, "object": "upload", "created_at": created, "status": stored.status},
        **stored.request.model_dump(include={"bytes", "filename", "purpose"}),
        **{"expires_at": created + OPEN_SECONDS, "file": file.as_json() if file else None},
    }
