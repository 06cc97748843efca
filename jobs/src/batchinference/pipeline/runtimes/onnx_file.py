"""Checks that an ONNX model names only files of its own folder as external data.

Older versions of ONNX Runtime load any file that a model names, and its content becomes a weight.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.storage.location import is_inside

_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""The messages in the messages of onnx.proto, by the number of the field."""
_KEY, _VALUE = 1, 2
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_SIZES = {_FIXED_64: 8, _FIXED_32: 4}
MAX_DEPTH = 64
"""Maximum nesting of messages, of about three for each graph in a graph."""


def check_external_data(file: str) -> None:
    """Raise ModelLoad if external data of a model is not in a file below the model's folder, or if
    there is a link on the way to it."""
    folder = Path(file).parent.resolve()
    for location in _locations(file):
        name = location.removeprefix("./")
        target = folder / name
        if "\0" in name or not is_inside(name) or target.resolve() != target:
            problem = f"names the external data '{location[:200]}'"
            fix = "Store it in the model's folder, not as a link"
            raise ModelLoad(f"source: '{file}' {problem}, which is not below its folder. {fix}")


def _locations(file: str) -> Iterator[str]:
    """Yield the names of the external data of a model. Raises ModelLoad if it is no ONNX model."""
    try:
        with open(file, "rb") as opened:
            data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        names = [name for entry in _entries(data, "model") for name in _named(entry)]
    except (IndexError, ValueError) as error:
        raise ModelLoad(f"source: '{file}' is not an ONNX model ({error})") from None
    yield from names


def _named(entry: memoryview) -> list[str]:
    """Return the values of an entry of external data that is a location."""
    fields = [(number, bytes(value)) for number, value in _fields(entry)]
    if (_KEY, b"location") not in fields:
        return []
    return [value.decode("utf-8", "replace") for number, value in fields if number == _VALUE]


def _entries(data: memoryview, message: str, depth: int = 0) -> Iterator[memoryview]:
    """Yield all entries of external data in a message."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    for number, value in _fields(data):
        part = _PARTS[message].get(number)
        if part == "entry":
            yield value
        elif part is not None:
            yield from _entries(value, part, depth + 1)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each field of a message that is a message or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(data, place)
        elif kind == _BYTES:
            size, place = _varint(data, place)
            yield key >> 3, data[place : place + size]
            place += size
        elif kind in _SIZES:
            place += _SIZES[kind]
        else:
            raise ValueError("unknown kind of field")
    if place > len(data):
        raise ValueError("cut off")


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("too long a number")
