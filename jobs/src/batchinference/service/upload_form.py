"""Reads a form with an uploaded file while it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from http import HTTPStatus
from typing import TypeVar

from aiohttp import BodyPartReader, web
from aiohttp.http import HttpProcessingError

from batchinference.service.api_error import ApiError, bad_request, parse_request
from batchinference.service.batch_files import Expiry

GRACE_SECONDS = 60.0
MIN_BYTES_PER_SECOND = 10_000
"""The minimum speed of an upload after GRACE_SECONDS. A slower upload is ended."""
CHUNK = 2**18
MAX_FIELD = 1024
MAX_FIELDS = 16
_FIELDS = ("purpose", "expires_after[anchor]", "expires_after[seconds]")
Result = TypeVar("Result")


class UploadForm:
    """A form with a file of at most `max_bytes` in the field `field`. If this is `file`, the form
    also has a field `purpose`, and may have fields `expires_after` before the file."""

    def __init__(
        self, request: web.Request, field: str = "file", max_bytes: int | None = None
    ) -> None:
        self._request, self._field, self._max_bytes, self._fields = request, field, max_bytes, 0
        self._values: dict[str, str] = {}
        self._start, self._received = asyncio.get_running_loop().time(), 0

    async def name_of_file(self) -> str:
        """Read the form up to the file, and return its name. Raises ApiError."""
        if self._request.content_type != "multipart/form-data":
            raise bad_request("Send the file as multipart/form-data")
        self._reader = await self._within_time_limit(self._request.multipart())
        file = await self._next_file()
        if file is None:
            raise bad_request("file: the form has no file", "file")
        self._file = file
        return file.filename or ""

    @property
    def expires_after(self) -> Expiry | None:
        """The expiry of the file; None if it does not expire. Raises ApiError if it is invalid."""
        given = {name[len("expires_after[") : -1]: value for name, value in self._values.items()
                 if name != "purpose"}  # fmt: skip
        return parse_request(Expiry, given) if given else None

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the content of the file, and raise ApiError at its end if the form is invalid."""
        while chunk := await self._within_time_limit(self._file.read_chunk(CHUNK)):
            self._received += len(chunk)
            if self._max_bytes is not None and self._received > self._max_bytes:
                message = f"{self._field}: larger than {self._max_bytes} bytes. Send several parts"
                raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, self._field)
            yield chunk
        if await self._next_file() is not None:
            raise bad_request("file: the form has two files", "file")
        if self._field == "file" and self._values.get("purpose") != "batch":
            raise bad_request("purpose: expected batch", "purpose")

    async def _next_file(self) -> BodyPartReader | None:
        while (part := await self._within_time_limit(self._reader.next())) is not None:
            self._fields += 1
            if not isinstance(part, BodyPartReader) or self._fields > MAX_FIELDS:
                raise bad_request("The form has too many parts, or parts of parts")
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
            fix = "Send it before the file" if name in _FIELDS else "Remove it"
            raise bad_request(f"{name}: not supported. {fix}", name)
        self._values[name] = value.decode(errors="replace")

    async def _within_time_limit(self, reading: Awaitable[Result]) -> Result:
        """Return the result of `reading`. Raises TimeoutError if the client sends too slowly, and
        ApiError if the form is malformed."""
        allowed = GRACE_SECONDS + self._received / MIN_BYTES_PER_SECOND
        try:
            async with asyncio.timeout_at(self._start + allowed):
                return await reading
        except (ValueError, HttpProcessingError):
            raise bad_request("The form is malformed. Send multipart/form-data") from None
