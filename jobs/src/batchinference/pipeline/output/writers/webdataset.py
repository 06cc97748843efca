"""Writes WebDataset tar files. Each file in an archive (a member) is a value of a row. The names of
the members of a row begin with the key of the row."""

from __future__ import annotations

import io
import itertools
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.json_text import to_json
from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.error_classification import is_about_the_row
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.media.images import encode, is_pixels
from batchinference.pipeline.non_finite_counts import non_finite_values
from batchinference.pipeline.output.key_types import OF_WEBDATASET
from batchinference.pipeline.output.python_rows import Row
from batchinference.pipeline.output.writers import FileWriter, unwritable_items
from batchinference.pipeline.storage.location import Location

_EMPTY_MEMBER = ("json", b"null")
"""The only member of a row whose values are all null. Readers skip a row without any member."""
_UNSAFE_IN_MEMBERS = re.compile(r"[/\x00-\x1f\x7f-\x9f]")
_UNSAFE_IN_KEYS = re.compile(
    r"(?:[^\w\u0080-\U0010ffff-]"  # in ASCII, all except letters, digits, '_' and '-'
    r"|[\s\x80-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff])+"  # invisible
)
"""Matches invisible characters, and characters that cause problems in file systems."""
Encode = Callable[[Any], bytes]


def _text(value: Any) -> bytes:
    return str(value).encode()


def _npy(value: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(value), allow_pickle=False)
    return buffer.getvalue()


_ENCODERS: dict[str, Encode] = {
    "txt": _text,
    "cls": _text,
    "json": lambda it: to_json(it.tolist() if isinstance(it, np.ndarray) else it).encode(),
    "npy": _npy,
    "jpg": partial(encode, file_format="jpeg"),
    "jpeg": partial(encode, file_format="jpeg"),
    "png": partial(encode, file_format="png"),
    "webp": partial(encode, file_format="webp"),
}


@dataclass(frozen=True)
class WebdatasetWriter(FileWriter):
    key_column: str | None

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        keys = self._keys(table)
        values = self._values(table)
        members = _members(values)
        key_member = _key_member(values)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for row, (key, original) in enumerate(keys):
                contents = [
                    (member, _content(name, encoded, values[name][row]))
                    for name, (member, encoded) in members.items()
                    if values[name][row] is not None
                ]
                contents += [] if original is None else [(key_member, original)]
                for member, content in contents or [_EMPTY_MEMBER]:
                    _add(tar, f"{key}.{member}", content)
        yield ".tar", buffer.getvalue()

    def rows(self, part: Location) -> Iterator[Row]:
        """Yield the key of each row, and the sizes of its members by suffix. Decodes no values."""
        with tarfile.open(fileobj=io.BytesIO(part.read()), mode="r:") as tar:
            for key, members in itertools.groupby(tar, lambda member: member.name.split(".")[0]):
                sizes = {info.name.split(".", 1)[1]: f"{info.size} bytes" for info in members}
                yield {"key": key, **sizes}

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        values = self._values(table)
        errors: dict[int, UnwritableValue] = {}
        for name, (_, encoded) in _members(values).items():
            errors = unwritable_items(partial(_content, name, encoded), values[name]) | errors
        return errors

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        if not non_finite_values(table):
            return {}
        members = _members(self._values(table))
        json = [name for name, (_, encoded) in members.items() if encoded is _ENCODERS["json"]]
        return non_finite_values(table.select(json))

    def _keys(self, table: pa.Table) -> list[tuple[str, bytes | None]]:
        """Return the result of `_keys_of`, or row indexes as keys if the job names no key column.
        Raises BadOutput if the type of the key column cannot be a key."""
        if self.key_column is None:
            return [(f"{row:08d}", None) for row in range(table.num_rows)]
        for problem in OF_WEBDATASET.problems([table.schema.field(self.key_column)]):
            raise BadOutput(f"write.keyColumn: {problem}")
        return _keys_of(table.column(self.key_column))

    def _values(self, table: pa.Table) -> dict[str, list[Any]]:
        columns = [name for name in table.column_names if name != self.key_column]
        return {name: values_of(table.column(name)) for name in columns}


def _content(column: str, encode_value: Encode, value: Any) -> bytes:
    """Return the content of a member. Raises UnwritableValue if the value cannot be encoded."""
    if value is None or isinstance(value, bytes):
        return value or b""
    try:
        return encode_value(value)
    except Exception as error:
        if isinstance(error, BadOutput) or not is_about_the_row(error):
            raise
        message = f"write: column '{column}' cannot be encoded ({error})"
        raise UnwritableValue(message) from error


def _key_member(columns: Iterable[str]) -> str:
    """Return the suffix of the members with values of the key column. The suffix is the same in all
    files with these columns, and no column has it."""
    name, others = "__key__", {column.lower().partition(".")[0] for column in columns}
    while name in others:
        name = f"_{name}"
    return f"{name}.txt"


def _members(values: dict[str, list[Any]]) -> dict[str, tuple[str, Encode]]:
    """Return the suffix of the member names and the encoder of each column that has values. Raises
    BadOutput if two columns have the same suffix."""
    members: dict[str, tuple[str, Encode]] = {}
    column_of_member: dict[str, str] = {}
    for name, column in values.items():
        if all(value is None for value in column):
            continue
        members[name] = member_of(name, column)
        member = members[name][0].lower()  # readers ignore case
        if (other := column_of_member.setdefault(member, name)) != name:
            raise BadOutput(
                f"write: columns {other!r} and {name!r} have the same member name ('.{member}'). "
                "Rename one of them"
            )
    return members


def member_of(column: str, values: list[Any]) -> tuple[str, Encode]:
    """Return the suffix of the member names of a column, and the encoder of its values. The encoder
    is not used for bytes, which are written unchanged."""
    first = next((value for value in values if value is not None), None)
    parts = [_UNSAFE_IN_MEMBERS.sub("_", part) for part in column.split(".")]
    if parts[-1].lower() not in _ENCODERS and not isinstance(first, bytes):
        parts.append(_extension(first))
    return ".".join(parts), _ENCODERS.get(parts[-1].lower(), _text)


def _extension(value: Any) -> str:
    match value:
        case np.ndarray():
            return "png" if is_pixels(value) else "npy"
        case str():
            return "txt"
        case int() if not isinstance(value, bool):
            return "cls"
    return "json"


def _keys_of(column: pa.ChunkedArray) -> list[tuple[str, bytes | None]]:
    """Return a unique key for each row, and the value of the key column as bytes. The bytes are
    None if the value is null or equal to the key.

    Unsafe characters become `_`: a `.` would end a key, and `../` would leave the directory. A
    repeated key gets a number (`cat--2`), because readers take members with one key as one row."""
    uses: dict[str, int] = {}
    keys: list[tuple[str, bytes | None]] = []
    for row, value in enumerate(column.to_pylist()):
        text = "" if value is None else str(value)
        wanted = key = _UNSAFE_IN_KEYS.sub("_", text) or f"{row:08d}"
        while key in uses:
            uses[wanted] += 1
            key = f"{wanted}--{uses[wanted]}"
        uses[key] = 1
        original = value if isinstance(value, bytes) else text.encode()
        keys.append((key, None if value is None or text == key else original))
    return keys


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
