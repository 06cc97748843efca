"""Reads forms with files while a client sends them. Also stores uploads: a client sends parts of a
file in several requests. The parts are joined when the client completes the upload.

- `PATH/NAMESPACE/uploads/UPLOAD/upload.json`: the request and the status of the upload
- `PATH/NAMESPACE/uploads/UPLOAD/PART`: the content of a part
"""

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

import obstore
from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchinference.service.api_error import ApiError, bad_request, not_found, parse_request
from batchinference.service.batch_files import PARTS_AT_ONCE, Expiry, Files, StoredFile

MIN_BYTES_PER_SECOND = 10_000
"""The slowest allowed speed of a client. A form may take `UploadLimits.grace_seconds` longer."""
CHUNK = 2**18
"""Maximum bytes of a file that are read at once."""
MAX_FIELD = 1024
"""Maximum bytes of a field of a form. This does not limit the file."""
MAX_FIELDS = 16
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
Result = TypeVar("Result")


@dataclass(frozen=True)
class UploadLimits:
    """Limits of the requests to one replica of the service."""

    at_once: int = 8
    """Maximum number of requests that store a file at the same time. Further requests wait."""
    grace_seconds: float = 60.0
    """Seconds that a request may always take, even if its client sends very slowly."""
    max_part: int = 64 * 2**20
    """Maximum bytes of a part of an upload."""


LIMITS = UploadLimits()


class UploadForm:
    """A form with a file in the field `field`. The field is `data` for a part of an upload, and
    `file` for a whole file. With `file`, the form also has a field `purpose`, and may have fields
    `expires_after` before the file."""

    def __init__(self, request: web.Request, limits: UploadLimits, field: str = "file") -> None:
        self._request, self._limits, self._field, self._fields = request, limits, field, 0
        self._max_bytes = limits.max_part if field == "data" else None
        self._values: dict[str, str] = {}
        self._start, self._received = asyncio.get_running_loop().time(), 0

    async def name_of_file(self) -> str:
        """Read the form up to the file, and return the name of the file. Raises ApiError."""
        if self._request.content_type != "multipart/form-data":
            raise bad_request("Send the file as multipart/form-data")
        self._reader = await self._within_time_limit(self._request.multipart())
        file = await self._next_file()
        if file is None:
            raise bad_request(f"{self._field}: the form has no file", self._field)
        self._file = file
        return file.filename or ""

    @property
    def expires_after(self) -> Expiry | None:
        """The expiry of the file, or None. Raises ApiError if the expiry in the form is invalid."""
        fields = {name[len("expires_after[") : -1]: value for name, value in self._values.items()
                  if name != "purpose"}  # fmt: skip
        return parse_request(Expiry, fields) if fields else None

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the content. Raises ApiError if the file is too large or the form is invalid."""
        while chunk := await self._within_time_limit(self._file.read_chunk(CHUNK)):
            self._received += len(chunk)
            if self._max_bytes is not None and self._received > self._max_bytes:
                message = f"{self._field}: larger than {self._max_bytes} bytes. Send several parts"
                raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, self._field)
            yield chunk
        if await self._next_file() is not None:
            raise bad_request(f"{self._field}: the form has two files", self._field)
        if self._field == "file" and self._values.get("purpose") != "batch":
            raise bad_request("purpose: expected batch", "purpose")

    async def _next_file(self) -> BodyPartReader | None:
        while (part := await self._within_time_limit(self._reader.next())) is not None:
            self._fields += 1
            if not isinstance(part, BodyPartReader) or self._fields > MAX_FIELDS:
                raise bad_request("The form has too many parts, or a part that is multipart itself")
            if part.name == self._field:
                return part
            await self._read_field(part)
        return None

    async def _read_field(self, part: BodyPartReader) -> None:
        value = b""
        while chunk := await self._within_time_limit(part.read_chunk(MAX_FIELD)):
            value += chunk
            if len(value) > MAX_FIELD:
                raise bad_request("A field of the form is too long", part.name)
        name, late = part.name or "", hasattr(self, "_file")
        if self._field != "file" or name not in (_FIELDS[:1] if late else _FIELDS):
            is_late = self._field == "file" and name in _FIELDS
            problem = "comes after the file. Send it before" if is_late else "unknown. Remove it"
            raise bad_request(f"{name}: {problem}", name)
        self._values[name] = value.decode(errors="replace")

    async def _within_time_limit(self, reading: Awaitable[Result]) -> Result:
        """Return the result of `reading`. Raises TimeoutError if the client sends too slowly, and
        ApiError if the form is malformed."""
        allowed = self._limits.grace_seconds + self._received / MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(self._start + allowed):
                return await reading
        except (ValueError, HttpProcessingError):
            raise bad_request("The form is malformed. Send multipart/form-data") from None


OPEN_SECONDS = 3600
"""Seconds after the creation of an upload in which it can be changed, completed or cancelled."""
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
    """The uploads in a store. The argument `namespace` is the namespace of the API key."""

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
        if stored.status == "completed":  # a retry after a lost answer
            return _shown(identifier, stored, await self._files.get(namespace, stored.file or ""))
        request = (await self._pending(namespace, identifier)).request
        content = self._content(f"{namespace}/uploads/{identifier}", wanted, request.bytes)
        file = await self._files.add(namespace, request.filename, content, request.expires_after)
        ended = stored.model_copy(update={"status": "completed", "file": file.id})
        await self._end(namespace, identifier, ended)
        return _shown(identifier, ended, file)

    async def cancel(self, namespace: str, identifier: str) -> dict[str, Any]:
        """Cancel an upload, and return it. Raises ApiError if it has ended."""
        stored = await self._pending(namespace, identifier)
        ended = stored.model_copy(update={"status": "cancelled"})
        await self._end(namespace, identifier, ended)
        return _shown(identifier, ended)

    async def _content(
        self, directory: str, wanted: _Completion, size: int
    ) -> AsyncIterator[bytes]:
        """Yield the content of the parts. First, raises ApiError if a part is missing, or if all
        parts together do not have `size` bytes. At the end, raises it if the checksum differs."""
        stored = await self._files.objects(directory)
        objects = {each["path"].rpartition("/")[2]: each for each in stored}
        for part in wanted.part_ids:
            if not _PART.fullmatch(part) or part not in objects:
                raise bad_request(f"part_ids: there is no part {part[:64]}", "part_ids")
        parts = [objects[part] for part in wanted.part_ids]
        if (total := sum(part["size"] for part in parts)) != size:
            raise bad_request(f"bytes: the parts have {total} bytes, not {size}", "bytes")
        digest = hashlib.md5(usedforsecurity=False)
        async for chunk in self._files.content_of(parts):
            digest.update(chunk)
            yield chunk
        if wanted.md5 is not None and digest.hexdigest() != wanted.md5.lower():
            raise bad_request("md5: the content of the parts has another checksum", "md5")

    async def _end(self, namespace: str, identifier: str, ended: _Stored) -> None:
        await self._write(namespace, identifier, ended)
        for each in await self._files.objects(f"{namespace}/uploads/{identifier}"):
            if not each["path"].endswith(".json"):
                await obstore.delete_async(self._store, each["path"])

    async def _pending(self, namespace: str, identifier: str) -> _Stored:
        """Return an upload that has not ended or expired. Raises ApiError for any other upload."""
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
            answer = await obstore.get_async(self._store, key)
            return _Stored.model_validate_json(bytes(await answer.bytes_async()))
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
