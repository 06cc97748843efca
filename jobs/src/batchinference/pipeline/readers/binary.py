"""Files of any kind, as bytes."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.spec.read import BinaryOptions


class BinaryReader(WholeFileReader):
    column = "bytes"

    def __init__(self, options: BinaryOptions) -> None:
        pass

    def decode(self, content: bytes) -> bytes:
        return content

    def to_arrow(self, values: list[bytes]) -> pa.Array:
        return pa.array(values, pa.large_binary())
