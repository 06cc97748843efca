"""Tar files in WebDataset's form: members that share a key are the columns of a row."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.writers.base import naming, values_of
from batchinference.pipeline.writers.json import to_json
from batchinference.pipeline.writers.numpy import npy
from batchinference.pipeline.writers.pixels import encode, is_pixels

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
Encode = Callable[[Any], bytes]


def _text(value: Any) -> bytes:
    return str(value).encode()


_ENCODERS: dict[str, Encode] = {
    "txt": _text,
    "cls": _text,
    "json": lambda value: to_json(_plain(value)).encode(),
    "npy": lambda value: npy(np.asarray(value)),
    "jpg": partial(encode, file_format="jpeg"),
    "jpeg": partial(encode, file_format="jpeg"),
    "png": partial(encode, file_format="png"),
    "webp": partial(encode, file_format="webp"),
}


class WebdatasetWriter:
    def __init__(self, key_column: str | None) -> None:
        self._key_column = key_column

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes]]:
        keys = _keys(table.column(self._key_column)) if self._key_column else _numbers(table)
        columns = [name for name in table.column_names if name != self._key_column]
        values = {name: values_of(table.column(name)) for name in columns}
        members = {name: member_of(name, values[name]) for name in columns}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for row, key in enumerate(keys):
                for name, (member, encoded) in members.items():
                    if (value := values[name][row]) is not None:
                        with naming(name):
                            content = value if isinstance(value, bytes) else encoded(value)
                        _add(tar, f"{key}.{member}", content)
        yield ".tar", buffer.getvalue()


def member_of(column: str, values: list[Any]) -> tuple[str, Encode]:
    """What follows the key in the names of a column's members, and how its values become bytes;
    values that are bytes stay as they are."""
    first = next((value for value in values if value is not None), None)
    words = [_UNSAFE.sub("_", word) for word in column.split(".")]
    if words[-1].lower() not in _ENCODERS and not isinstance(first, bytes):
        words.append(_extension(first))
    return ".".join(words), _ENCODERS.get(words[-1].lower(), _text)


def _extension(value: Any) -> str:
    match value:
        case np.ndarray():
            return "png" if is_pixels(value) else "npy"
        case str():
            return "txt"
        case int() if not isinstance(value, bool):
            return "cls"
    return "json"


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _numbers(table: pa.Table) -> list[str]:
    return [f"{row:08d}" for row in range(table.num_rows)]


def _keys(column: pa.ChunkedArray) -> list[str]:
    """Keys without what would end them or lead out of a directory, each once: WebDataset takes
    members that follow each other with one key for one row."""
    taken: dict[str, int] = {}
    keys = []
    for row, value in enumerate(column.to_pylist()):
        wanted = key = _UNSAFE.sub("_", "" if value is None else str(value)) or f"{row:08d}"
        while key in taken:
            taken[wanted] += 1
            key = f"{wanted}--{taken[wanted]}"
        taken[key] = 1
        keys.append(key)
    return keys


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))
