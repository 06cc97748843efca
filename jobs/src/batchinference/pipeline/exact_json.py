"""Parses JSON without changing numbers, and keeps some values as JSON text.

A value of type `json` is kept as JSON text. With `any_as_json`, a value of type `string` is also
kept, except a text. Parsers do not return JSON text, so these values are quoted before the document
is parsed: `{"a": 1.50}` becomes `{"a": "1.50"}`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from batchinference.spec.column_types import ColumnType

_SPACE = re.compile(r"[ \t\r\n]*")
_decode_at = json.JSONDecoder().raw_decode


def has_json(kind: ColumnType) -> bool:
    """Return whether a type is `json` or contains it."""
    if isinstance(kind, str):
        return kind == "json"
    return any(map(has_json, kind.values() if isinstance(kind, dict) else kind))


def with_texts(document: str, kind: ColumnType, *, any_as_json: bool = True) -> str:
    """Return JSON documents of type `kind`, with quotes around each value that is kept as JSON
    text, except null (see the module). Raises ValueError for invalid JSON, but not for a comma
    after the last item."""
    scanner = _Scanner(document, any_as_json)
    at = scanner.skip(0)
    with _valid():
        while at < len(document):
            at = scanner.skip(scanner.value(at, kind))
    return "".join(scanner.pieces())


class _Scanner:
    """Finds the values of a document that are kept as JSON text. Scanning methods take a position,
    and return the end of what they have scanned from there."""

    def __init__(self, text: str, any_as_json: bool) -> None:
        self._text, self._any_as_json = text, any_as_json
        self._spans: list[tuple[int, int]] = []

    def pieces(self) -> Iterator[str]:
        """Yield the document in pieces, with quotes around values that are kept as JSON text."""
        copied = 0
        for start, end in self._spans:
            yield self._text[copied:start]
            yield json.dumps(self._text[start:end], ensure_ascii=False)
            copied = end
        yield self._text[copied:]

    def skip(self, at: int) -> int:
        end: int = _SPACE.match(self._text, at).end()  # type: ignore[union-attr]
        return end

    def value(self, at: int, kind: ColumnType | None) -> int:
        opening = self._text[at]
        if isinstance(kind, dict) and opening == "{":
            return self._fields(at + 1, kind)
        if isinstance(kind, list) and opening == "[":
            return self.elements(at + 1, [], kind[0])
        end: int = _decode_at(self._text, at)[1]
        is_text = kind == "json" or (kind == "string" and self._any_as_json and opening != '"')
        if is_text and self._text[at:end] != "null":
            self._spans.append((at, end))
        return end

    def _fields(self, at: int, kind: dict[str, ColumnType]) -> int:
        at = self.skip(at)
        while self._text[at] != "}":
            name, at = scanstring(self._text, self._after('"', at), True)
            at = self.skip(self._after(":", self.skip(at)))
            at = self._next(self.value(at, kind.get(name)), "}")
        return at + 1

    def elements(
        self, at: int, spans: list[tuple[int, int]], kind: ColumnType | None = None
    ) -> int:
        """Scan the elements of an array, and add the start and the end of each to `spans`."""
        at = self.skip(at)
        while self._text[at] != "]":
            spans.append((at, self.value(at, kind)))
            at = self._next(spans[-1][1], "]")
        return at + 1

    def _next(self, at: int, closing: str) -> int:
        """Return the start of the next field or element, or the position of the closing bracket."""
        at = self.skip(at)
        return at if self._text[at] == closing else self.skip(self._after(",", at))

    def _after(self, mark: str, at: int) -> int:
        if self._text[at] != mark:
            raise ValueError(f"expected {mark} at character {at} of the JSON")
        return at + 1


def lines_of(document: bytes, *, elements: bool = True) -> list[str]:
    """Return the value of a document as one line or, with `elements`, an array as a line for each
    element. Raises ValueError for invalid JSON, but not for a comma after the last element."""
    text = as_text(document)
    scanner = _Scanner(text, any_as_json=True)
    spans: list[tuple[int, int]] = []
    with _valid():
        at = scanner.skip(0)
        if elements and text[at] == "[":
            end = scanner.elements(at + 1, spans)
        else:
            end = scanner.value(at, None)
            spans.append((at, end))
    if scanner.skip(end) < len(text):
        raise ValueError(f"the JSON ends at character {end}, but more text follows")
    return [text[start:end].replace("\n", " ").replace("\r", " ") for start, end in spans]


@contextmanager
def _valid() -> Iterator[None]:
    """Raise ValueError if the block reads beyond the end of the JSON, or if the JSON is nested too
    deep. Also raise it for a number whose exponent is too large for a Decimal."""
    try:
        yield
    except IndexError:
        raise ValueError("the JSON ends too early") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except InvalidOperation:
        raise ValueError("the exponent of a number has too many digits") from None


def as_text(document: bytes | str) -> str:
    """Return a JSON document as text. Bytes may be UTF-8, UTF-16 or UTF-32."""
    if isinstance(document, str):
        return document
    return document.decode(json.detect_encoding(document))


def load_exact(document: bytes | str, **options: Any) -> Any:
    """Return the parsed JSON like `load_unique`, but with fractions as Decimal."""
    return load_unique(document, fractions=Decimal, **options)


def load_unique(
    document: bytes | str, fractions: Callable[[str], Any] = float, **options: Any
) -> Any:
    """Return the parsed JSON. Raises ValueError for invalid JSON and for duplicate fields."""
    with _valid():
        return json.loads(document, parse_float=fractions, object_pairs_hook=_unique, **options)


def refuse_constant(constant: str) -> None:
    """Raise ValueError for NaN or infinity. Functions of `json` call it as `parse_constant`."""
    raise ValueError(f"JSON has no number {constant}")


def documents_in(text: str, *, exactly: bool = False) -> Iterator[Any]:
    """Yield the parsed JSON documents in a text. After an invalid document, parsing continues at
    the next line. With `exactly`, documents are parsed like in `load_exact`. Raises ValueError for
    a valid document that `load_exact` refuses, for example for a number with too many digits."""
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        try:
            document, end = _decode_exactly(text, at) if exactly else _decode_at(text, at)
        except (ValueError, RecursionError) as error:
            if exactly and not isinstance(error, json.JSONDecodeError):
                raise
            end = text.find("\n", at) + 1 or len(text)
        else:
            yield document
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        duplicate = next(name for name in counts if counts[name] > 1)
        raise ValueError(f"an object has two fields '{duplicate}'")
    return fields


_exact_at = json.JSONDecoder(parse_float=Decimal, object_pairs_hook=_unique).raw_decode


def _decode_exactly(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON document at a position of a text, as `load_exact` parses it, and its end."""
    with _valid():
        return _exact_at(text, at)
