"""Checks the lines of an input file while it is uploaded."""

import codecs
import hashlib
import json
from array import array
from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np
from pydantic import BaseModel
from pydantic_core import from_json

from batchinference.openai_urls import PATHS, path_of
from batchinference.pipeline.exact_json import refuse_constant

MAX_LINE = 16 * 2**20
"""Maximum number of bytes of a line."""
MAX_MODEL = 256
"""Maximum number of characters of the name of a model."""
MAX_ERRORS = 50
"""Maximum number of errors of lines that are kept and shown."""
ENDPOINTS = tuple(f"/v1{path}" for path in PATHS)
_FIELDS = ("custom_id", "method", "url", "body")
_MISSING = "missing_required_parameter"


def _parsed(line: bytes) -> Any:
    """Return the JSON value in a line. Raises ValueError or RecursionError for other lines."""
    try:
        return from_json(line, allow_inf_nan=False)
    except ValueError:
        if rb"\u" not in line:
            raise
    # pydantic refuses half a surrogate pair, but cut texts may have one, and it is valid JSON
    return json.loads(line, parse_constant=refuse_constant)


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a text that is not empty and can be encoded in UTF-8."""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value != ""


class LineError(BaseModel):
    """An error of a line, or of the file, in the format of OpenAI's API."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class FileCheck(BaseModel):
    """The result of checking a file: what its lines have in common, and the first errors."""

    lines: int = 0
    """Number of lines that are neither blank nor too long."""
    model: str | None = None
    url: str | None = None
    errors: list[LineError] = []
    more_errors: int = 0
    """Number of errors after the first MAX_ERRORS."""

    def add(self, error: LineError) -> None:
        """Add an error, or only count it if there are already MAX_ERRORS."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)
        else:
            self.more_errors += 1


class LineChecker:
    """Checks the blocks of a file in order. Keeps 8 bytes per line, and the last incomplete line.
    A line may have `max_line` bytes."""

    def __init__(self, max_lines: int, max_line: int = MAX_LINE) -> None:
        self._result = FileCheck()
        self._max_lines, self._max_line = max_lines, max_line
        self._rest = bytearray()
        self._too_long = False
        self._id_hashes = array("Q")
        """A hash of the custom_id of each line; 0 for a line without a custom_id."""

    def add(self, block: bytes) -> None:
        """Check the lines that end in the next block of the file."""
        first, *others = block.split(b"\n")
        self._append(first)
        for part in others:
            self._end_line()
            self._append(part)

    def end(self) -> FileCheck:
        """Check the last line, and return the result. Call this after the last block."""
        if self._rest or self._too_long:
            self._end_line()
        for line in self._repeated():
            self._error("duplicate_custom_id", "custom_id: an earlier line has the same id", line)
        if not self._result.lines:
            self._result.add(LineError(code="empty_file", message="The file has no requests"))
        return self._result

    def _append(self, part: bytes) -> None:
        if self._too_long or len(self._rest) + len(part) > self._max_line:
            self._too_long = True
            self._rest.clear()
        elif len(self._id_hashes) <= self._max_lines:
            self._rest += part

    def _end_line(self) -> None:
        if len(self._id_hashes) > self._max_lines:
            return
        line, too_long = bytes(self._rest), self._too_long
        if not self._id_hashes:
            line = line.removeprefix(codecs.BOM_UTF8)
        self._rest.clear()
        self._too_long = False
        self._id_hashes.append(0)
        if len(self._id_hashes) > self._max_lines:
            message = f"The file has more than {self._max_lines} lines. Split it"
            self._error("too_many_tasks", message)
        elif too_long:
            self._error("invalid_json_line", f"The line has more than {self._max_line} bytes")
        elif line.strip():
            self._result.lines += 1
            self._check(line)

    def _check(self, line: bytes) -> None:
        try:
            request = _parsed(line)
        except (ValueError, RecursionError):
            request = None
        if not isinstance(request, dict):
            self._error("invalid_json_line", "This line is not parseable as a JSON object")
            return
        for code, param, message in self._problems(**{name: request.get(name) for name in _FIELDS}):
            self._error(code, f"{param}: {message}", param=param)

    def _problems(
        self, custom_id: Any, method: Any, url: Any, body: Any
    ) -> Iterator[tuple[str, str, str]]:
        """Yield the problems of a request as code, field and message."""
        path, model = path_of(url), body.get("model") if isinstance(body, dict) else None
        earlier = self._result
        if not _is_text(custom_id):
            yield _MISSING, "custom_id", "expected a text that no other line has"
        else:
            hashed = hashlib.blake2b(custom_id.encode(), digest_size=8)
            self._id_hashes[-1] = int.from_bytes(hashed.digest()) or 1
        if method != "POST":
            yield "invalid_method", "method", "expected POST"
        if path is None:
            yield "invalid_url", "url", f"expected one of {', '.join(ENDPOINTS)}"
        elif earlier.url not in (None, f"/v1{path}"):
            message = f"an earlier line has {earlier.url}. Use one per file"
            yield "mismatched_url", "url", message
        else:
            earlier.url = f"/v1{path}"
        if not _is_text(model) or len(model) > MAX_MODEL:
            message = f"expected the name of a model, of at most {MAX_MODEL} characters"
            yield _MISSING, "body.model", message
        elif earlier.model not in (None, model):
            message = f"an earlier line has {earlier.model}. Use one per file"
            yield "mismatched_model", "body.model", message
        else:
            earlier.model = model

    def _error(
        self, code: str, message: str, line: int | None = None, param: str | None = None
    ) -> None:
        number = len(self._id_hashes) if line is None else line
        self._result.add(LineError(code=code, message=message, line=number, param=param))

    def _repeated(self) -> list[int]:
        """Return the numbers of the lines whose custom_id is also in an earlier line."""
        ids = np.frombuffer(self._id_hashes, dtype=np.uint64)
        ordered = np.sort(ids)
        twice = ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)]
        if not len(twice):
            return []
        lines = np.flatnonzero(np.isin(ids, twice))
        _, first = np.unique(ids[lines], return_index=True)
        return [int(line) + 1 for line in np.delete(lines, first)]
