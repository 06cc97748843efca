"""Files of any kind, as bytes."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.spec.read import BinaryOptions


class BinaryReader(WholeFileReader):
    names = ("bytes",)

    def __init__(self, options: BinaryOptions) -> None:
        pass

    def decode(self, content: bytes) -> bytes:
        return content

    def columns_of(self, decoded: list[bytes]) -> list[pa.Array]:
        return [pa.array(decoded, pa.large_binary())]
