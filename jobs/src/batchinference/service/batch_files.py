"""Stores uploaded files. Reads, lists and deletes uploaded files and the result files of batches.

- `PATH/NAMESPACE/files/FILE/NAME.jsonl`: the content of an uploaded file with this encoded name
- `PATH/NAMESPACE/files/FILE/check.json`: the result of checking the lines of the file
- `PATH/NAMESPACE/batches/BATCH/`: the output of the job with the name BATCH

`check.json` is written first. An uploaded file exists as soon as `NAME.jsonl` does.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import obstore
from obstore.store import LocalStore
from pydantic import BaseModel, ConfigDict, Field

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import obstore_bucket
from batchinference.service.api_error import ApiError, bad_request, not_found
from batchinference.service.config import ServiceConfig
from batchinference.service.line_check import FileCheck, LineChecker
from batchinference.service.lines_not_run import committed_entries, write_lines_not_run

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

Result = TypeVar("Result")
PART_BYTES = 16 * 2**20
"""Bytes of a part of an upload. S3 accepts 10,000 parts, which allows files of 160 GB."""
PARTS_AT_ONCE = 2
"""Number of parts of an upload that are sent to the store at the same time."""
BLOCK = 4 * 2**20
"""Number of bytes that one call in a thread checks."""
READ_BYTES = 4 * 2**20
"""Number of bytes that one request reads from the store."""
MAX_NAME = 180
"""Maximum bytes of the name of a file, because the key of its object contains the encoded name."""
MAX_CHECK = 2**20
"""Maximum bytes of `check.json`, because it is untrusted: tenants can write to it."""
MAX_STATE = 64 * 2**20
"""Maximum bytes of the state of an output, because it is untrusted: tenants can write to it."""
CHECK, ERROR_FILE = "check.json", "_errors.jsonl"
_UPLOADED = re.compile("file-[0-9a-f]{32}")
_OF_BATCH = re.compile("file-(output|errors)-([0-9a-f]{32})")
_BATCH = re.compile("batch-([0-9a-f]{32})")
_CONTENT = re.compile(r"([-_A-Za-z0-9]+)(?:\.([0-9]{10}))?\.jsonl")
"""The name of an object with content: the encoded name of the file, and the time of its expiry."""


class Expiry(BaseModel):
    """The part of a request that says when a file expires: `seconds` after its creation."""

    model_config = ConfigDict(extra="forbid")
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3600, le=2592000)]


@dataclass(frozen=True)
class StoredFile:
    """A file. `parts` are the objects that contain its content, in order."""

    id: str
    name: str
    purpose: str
    created_at: int
    parts: tuple[ObjectMeta, ...]
    expires_at: int | None = None

    @property
    def bytes(self) -> int:
        """The size of the content."""
        return sum(part["size"] for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return the file object of OpenAI's API."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


def open_store(config: ServiceConfig) -> ObjectStore:
    """Return the object store at `config.path`. Raises OSError if there are no credentials."""
    root = Location(config.path, config.storage)
    if root.local:
        return LocalStore(root.path, mkdir=True)
    bucket, _, prefix = root.path.partition("/")
    store = obstore_bucket(root.scheme, bucket, config.storage, prefix)
    if store is None:
        raise OSError(f"{config.path}: set the credentials of the store in the environment")
    return store


class Files:
    """The files in a store. Keys of objects begin with the namespace of the API key. `in_use` is
    called with a namespace and a file id, and returns whether a batch still needs the file. A
    needed file is not deleted when it expires."""

    def __init__(
        self, config: ServiceConfig, in_use: Callable[[str, str], Awaitable[bool]]
    ) -> None:
        self._config, self.store, self._in_use = config, open_store(config), in_use
        self.max_bytes = config.max_file_bytes
        self._one_thread = ThreadPoolExecutor(1)

    def location(self, key: str) -> Location:
        """Return the location of an object, whose URI can be written into the spec of a job."""
        return Location(f"{self._config.path.rstrip('/')}/{key}", self._config.storage)

    async def objects(self, key: str) -> list[ObjectMeta]:
        """Return the objects in the directory `key`, at any depth."""
        return [each async for page in obstore.list(self.store, key) for each in page]

    async def add(
        self,
        namespace: str,
        name: str,
        content: AsyncIterator[bytes],
        expires_after: Expiry | None = None,
    ) -> StoredFile:
        """Store an uploaded file, check its lines meanwhile, and return the file. Raises ApiError.

        The content becomes visible at the end, so an interrupted upload leaves no file."""
        encoded = name.encode(errors="surrogatepass")
        if not 1 <= len(encoded) <= MAX_NAME:
            raise bad_request(f"file: expected a name of 1 to {MAX_NAME} bytes", "file")
        identifier = f"file-{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"
        directory = f"{namespace}/files/{identifier}"
        expiry = f".{int(time.time()) + expires_after.seconds:010d}" if expires_after else ""
        await obstore.put_async(
            self.store,
            f"{directory}/{base64.urlsafe_b64encode(encoded).rstrip(b'=').decode()}{expiry}.jsonl",
            self._checked(content, f"{directory}/{CHECK}"),
            use_multipart=True,
            chunk_size=PART_BYTES,
            max_concurrency=PARTS_AT_ONCE,
        )
        return await self.get(namespace, identifier)

    async def _checked(self, content: AsyncIterator[bytes], result: str) -> AsyncIterator[bytes]:
        """Yield the content in blocks after their check. At the end, store the result of the check
        as the object `result`."""
        checker, size = LineChecker(self._config.max_lines), 0
        async for block in _blocks(content):
            size += len(block)
            if size > self.max_bytes:
                message = f"file: larger than {self.max_bytes} bytes. Split it"
                raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, "file")
            await self._in_check_thread(checker.add, block)
            yield block
        check = await self._in_check_thread(checker.end)
        await obstore.put_async(self.store, result, check.model_dump_json().encode())

    async def _in_check_thread(self, check: Callable[..., Result], *arguments: Any) -> Result:
        """Call `check` in a thread. Calls run one after the other: a line may need much memory."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._one_thread, check, *arguments)

    async def get(self, namespace: str, identifier: str) -> StoredFile:
        """Return a file. Raises ApiError if the namespace has no file with this id, or if the file
        has expired. An expired file is deleted if no batch needs it."""
        file = None
        if _UPLOADED.fullmatch(identifier):
            file = await self._find_upload(namespace, identifier)
            if file and file.expires_at and file.expires_at <= time.time():
                if not await self._in_use(namespace, identifier):
                    await self.delete(namespace, file)
                file = None
        elif match := _OF_BATCH.fullmatch(identifier):
            file = await self._find_batch_file(namespace, match[1], match[2])
        if file is None:
            raise not_found("File object", identifier)
        return file

    async def _find_upload(self, namespace: str, identifier: str) -> StoredFile | None:
        """Return an uploaded file, even if it has expired; None if it does not exist."""
        objects = await self.objects(f"{namespace}/files/{identifier}")
        files = (_as_uploaded_file(identifier, each) for each in objects)
        return next(filter(None, files), None)

    async def check(self, file: StoredFile) -> FileCheck:
        """Return the stored result of checking the lines of an uploaded file. Raises ApiError."""
        if file.purpose != "batch":
            raise bad_request("input_file_id: the purpose of the file is batch_output")
        key = f"{file.parts[0]['path'].rpartition('/')[0]}/{CHECK}"
        try:
            answer = await obstore.get_async(self.store, key)
            if answer.meta["size"] > MAX_CHECK:
                raise ValueError("too large")
            return FileCheck.model_validate_json(bytes(await answer.bytes_async()))
        except (FileNotFoundError, ValueError):  # the object is untrusted: tenants can write it
            message = "input_file_id: its check is missing or was changed. Upload it again"
            raise bad_request(message) from None

    async def list_ids(
        self, namespace: str, purpose: str | None, after: str | None, batches: list[str]
    ) -> list[str]:
        """Return the ids of all files with this purpose, sorted by upload time of the input file.

        Some files may not exist, such as result files of running batches. `batches` are the names
        of the jobs of all batches, because the store does not show jobs without output. The id
        `after` is always included: a client may have deleted this file between two pages."""
        is_id = after and (_UPLOADED.fullmatch(after) or _OF_BATCH.fullmatch(after))
        identifiers = [after] if after and is_id else []
        if purpose in (None, "batch"):
            identifiers += await self._names(f"{namespace}/files")
        if purpose in (None, "batch_output"):
            stored = await self._names(f"{namespace}/batches")
            names = map(_BATCH.fullmatch, [*stored, *batches])
            for number in (name[1] for name in names if name):
                identifiers += [f"file-output-{number}", f"file-errors-{number}"]
        return sorted(set(identifiers), key=lambda each: (each.rpartition("-")[2], each))

    async def _names(self, key: str) -> list[str]:
        listed = await obstore.list_with_delimiter_async(self.store, key)
        return [path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]]

    async def delete(self, namespace: str, file: StoredFile) -> None:
        """Delete a file. An error file becomes empty, because `write_error_file` would write a
        missing error file again."""
        for part in file.parts:
            if part["path"].endswith(f"/{ERROR_FILE}"):
                await obstore.put_async(self.store, part["path"], b"")
            else:
                await obstore.delete_async(self.store, part["path"])
        if file.purpose == "batch":
            await obstore.delete_async(self.store, f"{namespace}/files/{file.id}/{CHECK}")

    async def content_of(self, parts: Iterable[ObjectMeta]) -> AsyncIterator[bytes]:
        """Yield the content of objects, one after the other."""
        for part in parts:
            path, size = part["path"], part["size"]
            for start in range(0, size, READ_BYTES):  # no request stays open for a slow client
                length = min(READ_BYTES, size - start)
                read = obstore.get_range_async(self.store, path, start=start, length=length)
                yield bytes(await read)

    async def has_error_file(self, namespace: str, name: str) -> bool:
        """Return whether a batch has an error file, even if `delete` has made it empty."""
        output = f"{namespace}/batches/{name}"
        return any(each["path"] == f"{output}/{ERROR_FILE}" for each in await self.objects(output))

    async def write_error_file(
        self, namespace: str, name: str, source: str, error: Mapping[str, str]
    ) -> None:
        """Write the error file of a batch that has ended early, if there is none. The file has
        `error` for each line that did not run, if the input file `source` still exists."""
        output = f"{namespace}/batches/{name}"
        if await self.has_error_file(namespace, name):
            return
        objects = await self.objects(output)
        _check_state(objects)
        file = await self._find_upload(namespace, source)
        with suppress(JobFailure, ValueError):  # a tenant has changed the state
            lines = self.location(file.parts[0]["path"]) if file else None
            await asyncio.to_thread(write_lines_not_run, self.location(output), lines, error)

    async def _find_batch_file(self, namespace: str, kind: str, number: str) -> StoredFile | None:
        """Return the output or error file of a batch; None if it has no lines."""
        output, names = f"{namespace}/batches/batch-{number}", {ERROR_FILE}
        objects = await self.objects(output)
        if kind == "output" and objects:
            _check_state(objects)
            names = await asyncio.to_thread(_committed_names, self.location(output))
        parts = [each for each in objects if each["path"].removeprefix(f"{output}/") in names]
        parts = sorted((part for part in parts if part["size"]), key=lambda part: part["path"])
        if not parts:
            return None
        created_at = int(max(part["last_modified"] for part in parts).timestamp())
        name = f"batch_{number}_{kind}.jsonl"
        return StoredFile(f"file-{kind}-{number}", name, "batch_output", created_at, tuple(parts))


def _check_state(objects: Iterable[ObjectMeta]) -> None:
    """Raise ApiError if the state of an output is too large to be read."""
    states = (each["size"] for each in objects if each["path"].endswith(".json"))
    if sum(states) > MAX_STATE:
        message = "The state of the output is too large. Read the files in the object store"
        raise ApiError(HTTPStatus.FORBIDDEN, message)


def _committed_names(output: Location) -> set[str]:
    try:
        entries = committed_entries(output)
    except (JobFailure, ValueError):
        return set()
    return {file.name for entry in entries for file in entry.data}


def _as_uploaded_file(identifier: str, content: ObjectMeta) -> StoredFile | None:
    """Return the uploaded file whose content is this object; None for other objects."""
    match = _CONTENT.fullmatch(content["path"].rpartition("/")[2])
    if match is None:
        return None
    name = base64.urlsafe_b64decode(match[1] + "=" * (-len(match[1]) % 4)).decode(errors="replace")
    created_at = int(identifier[5:17], 16) // 1000
    expires_at = int(match[2]) if match[2] else None
    return StoredFile(identifier, name, "batch", created_at, (content,), expires_at)


async def _blocks(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    block = bytearray()
    async for chunk in content:
        block += chunk
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)
