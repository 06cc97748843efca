"""Reads JSON from the API server with limits, so that no object of a tenant stops the operator.

The API server stores values with up to 10,000 levels of nesting, which Python's parsers cannot
read. Python objects may need 40 times the memory of their JSON text. So fields that are too large
or nested too deeply are skipped. All other fields and objects of a response are read.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from batchinference.rendering import RAY_JOB
from batchinference.spec.arguments import MAX_DEPTH
from batchinference.spec.job import KIND
from batchinference_operator.reconcile.job_view import SKIPPED_FIELDS
from batchinference_operator.status.ray_job_view import Object

MAX_BYTES = 128 << 10
"""Maximum size of a section (the metadata, the spec or the status) of an object. The operator keeps
the specs of all jobs in memory. Responses up to this size are parsed as a whole."""
MAX_RAY_JOB_BYTES = 512 << 10
"""Maximum size of a section of a RayJob, because the operator needs the worker groups."""
MAX_FIELD_BYTES = 4 << 10
"""Maximum size of a field in a section that is too large. Larger fields are skipped."""
_SECTIONS = {"metadata", "spec", "status"}
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_KEY = re.compile(rb"\s*+(%s)\s*+:\s*+" % _STRING, re.DOTALL)
_SCALAR = re.compile(rb"%s|[^][{},:\"\s]++" % _STRING, re.DOTALL)
# Python before 3.11.5 continues at a wrong position if a possessively repeated group fails after a
# partial match. Here, this only happens in a string without an end, which is an error anyway.
_TO_BRACKETS = re.compile(
    rb'[^][{}"]*+(?:%s[^][{}"]*+)*+(?:([{[]++)|([]}]++)|)' % _STRING, re.DOTALL
)
_WHITESPACE = re.compile(rb"\s*+")
_PUNCTUATION = re.compile(rb"\s*+([][{},])\s*+")


async def read_json(text: bytes) -> Any:
    """Return a response of the API server as plain data. Raises ValueError if it is not JSON. A
    thread parses a large response, so that the event loop can renew the Lease."""
    return read(text) if len(text) <= MAX_BYTES else await asyncio.to_thread(read, text)


def read(text: bytes) -> Any:
    """Return an object, a list or a watch event as plain data, without fields beyond the limits."""
    if len(text) <= MAX_BYTES:
        try:
            return from_json(text)
        except ValueError:
            pass  # it is nested too deeply, or is not JSON
    return _object(_Scanner(text))


def _object(scanner: _Scanner) -> Object:
    """Return the object, list or watch event at the position of the scanner."""
    body: Object = {}
    skipped: dict[str, str] = {}
    for key in scanner.members():
        if key == "items" and scanner.next == b"[":
            body[key] = [_object(scanner) for _ in scanner.values(b"[", b"]")]
        elif key == "object":
            body[key] = _object(scanner)
        elif _is_limited(body.get("kind"), key) and scanner.next == b"{":
            limit = MAX_RAY_JOB_BYTES if body.get("kind") == RAY_JOB else MAX_BYTES
            body[key] = _section(scanner, key, skipped, limit)
        else:
            body[key] = from_json(scanner.text[scanner.skip()])
    if skipped:
        body[SKIPPED_FIELDS] = skipped
    return body


def _is_limited(kind: Any, section: str) -> bool:
    """Return whether fields of a section may be skipped.

    Fields of a job's status are never skipped, because a finished job without its conditions would
    start again. Only the operator writes this status, and the CRD limits its size.
    """
    return section in _SECTIONS and not (kind == KIND and section == "status")


def _section(scanner: _Scanner, name: str, skipped: dict[str, str], limit: int) -> Object:
    """Return the section at the position of the scanner. If fields are skipped, add the reason to
    `skipped`."""
    fields = {key: scanner.skip() for key in scanner.members()}
    fields.pop("managedFields", None)  # unused, and as large as the spec
    size = sum(extent.stop - extent.start for extent in fields.values())
    field_limit = limit if size <= limit else MAX_FIELD_BYTES
    section = {}
    for key, extent in fields.items():
        if extent.stop - extent.start > field_limit:
            sizes = f"{-(-size >> 10)} KiB, at most {limit >> 10} KiB"
            skipped[name] = f"{name}: it is too large ({sizes}). Put long values into files."
            continue
        try:
            section[key] = from_json(scanner.text[extent])
        except ValueError as problem:
            why = f"{name}.{key}: it is nested too deeply ({problem})"
            skipped.setdefault(name, f"{why}. Use at most {MAX_DEPTH} levels.")
    return section


class _Scanner:
    """Finds the values in a JSON text, without creating Python objects for skipped values."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._at = self._match(_WHITESPACE, 0).end()

    @property
    def next(self) -> bytes:
        """The first byte of the next value."""
        return self.text[self._at : self._at + 1]

    def members(self) -> Iterator[str]:
        """Yield each key of the object that comes next. The caller must read or skip its value."""
        for _ in self.values(b"{", b"}"):
            key = self._match(_KEY, self._at)
            self._at = key.end()
            yield from_json(key[1])

    def values(self, opening: bytes, closing: bytes) -> Iterator[None]:
        """Yield once for each element of the next array or object, which has these brackets. The
        caller must read or skip the element."""
        self._read_punctuation(opening)
        if self.next == closing:
            self._read_punctuation(closing)
            return
        yield None
        while self._read_punctuation(b"," + closing) == b",":
            yield None

    def skip(self) -> slice:
        """Skip the next value and return its position in the text."""
        start = self._at
        if self.next not in (b"{", b"["):
            self._at = self._match(_SCALAR, start).end()
            return slice(start, self._at)
        depth = 0
        for match in _TO_BRACKETS.finditer(self.text, start):
            if match.lastindex is None:
                break
            length = match.end() - match.start(match.lastindex)
            if match.lastindex == 1:
                depth += length
            elif length < depth:
                depth -= length
            else:
                self._at = match.start(2) + depth
                return slice(start, self._at)
        raise ValueError("the JSON text ends too early")

    def _read_punctuation(self, marks: bytes) -> bytes:
        """Move past the next punctuation mark and return it."""
        match = self._match(_PUNCTUATION, self._at)
        if match[1] not in marks:
            raise ValueError(f"{marks!r} is missing at byte {self._at}")
        self._at = match.end()
        return match[1]

    def _match(self, pattern: re.Pattern[bytes], at: int) -> re.Match[bytes]:
        if (match := pattern.match(self.text, at)) is None:
            raise ValueError(f"no JSON at byte {at}")
        return match
