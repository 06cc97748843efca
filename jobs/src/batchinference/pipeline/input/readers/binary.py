"""Reads files of any type as bytes, one file per row."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.input.readers.whole_file import WholeFileReader


class BinaryReader(WholeFileReader):
    names = ("bytes",)

    def decode(self, content: bytes) -> bytes:
        return content

    def columns_of(self, decoded: list[bytes]) -> list[pa.Array]:
        return [pa.array(decoded, pa.large_binary())]
