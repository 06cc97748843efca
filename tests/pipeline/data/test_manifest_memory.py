"""The read task of a manifest holds few bytes and images in memory, even if they are large."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.input.readers import url_manifest
from batchinference.pipeline.input.readers.url_manifest import ManifestReader
from batchinference.pipeline.media import images
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.url_fetcher import Fetcher
from batchinference.spec.read import ManifestOptions

SIDE = 100
PICTURE_BYTES = 3 * SIDE**2


class Picture(np.ndarray):
    """Pixels, counted while they are in memory."""

    alive = 0

    def __array_finalize__(self, _: Any) -> None:
        Picture.alive += 1

    def __del__(self) -> None:
        Picture.alive -= 1


class Content(bytes):
    """Fetched bytes, counted while they are in memory."""

    alive = 0

    def __new__(cls) -> Content:
        cls.alive += 1
        return super().__new__(cls, 1000)

    def __del__(self) -> None:
        Content.alive -= 1


def tables(directory: Path, **options: Any) -> Iterator[pa.Table]:
    """Yield the tables that are read from a manifest of 26 addresses."""
    pq.write_table(pa.table({"uri": [*string.ascii_lowercase]}), directory / "a.parquet")
    file = Location(str(directory / "a.parquet"))
    reader = ManifestReader(ManifestOptions(**options))
    reader.prepare([file])
    yield from reader.read(file)


def read(path: Path, decode: Callable[..., np.ndarray], patch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of rows in each table of pictures."""
    patch.setattr(Fetcher, "fetch", lambda *_: Content())
    patch.setattr(images, "decode", decode)
    patch.setattr(url_manifest, "TABLE_BYTES", 2 * PICTURE_BYTES)
    return [table.num_rows for table in tables(path, decode="image")]


def test_images_are_decoded_when_their_table_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def decode(*_: Any) -> np.ndarray:
        seen.append(Picture.alive)
        return Picture((SIDE, SIDE, 3), np.uint8)

    assert read(tmp_path, decode, monkeypatch) == [2] * 13
    assert max(seen) <= 3, "those of a table, and the one behind it"


def test_fetched_content_is_freed_when_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def decode(*_: Any) -> np.ndarray:
        seen.append(Content.alive)
        return np.zeros((1, 1, 3), np.uint8)

    monkeypatch.setattr(url_manifest, "HELD_ROWS", 4)
    assert read(tmp_path, decode, monkeypatch) == [26]
    assert max(seen) <= 4 + 2, "those that wait, the one that is decoded, and the one before it"


def test_bytes_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def fetched(_: Fetcher, uri: str, __: Location) -> bytes:
        begun.append(uri)
        return bytes(1000)

    monkeypatch.setattr(Fetcher, "fetch", fetched)
    monkeypatch.setattr(url_manifest, "HELD_BYTES", 4000)
    monkeypatch.setattr(url_manifest, "TABLE_BYTES", 1)
    yielded = 0
    for table in tables(tmp_path, maxBytes=1000):
        yielded += table.num_rows
        assert len(begun) <= yielded + 4 + 1, "the table that is yielded, and the row behind it"
    assert yielded == len(begun) == 26
