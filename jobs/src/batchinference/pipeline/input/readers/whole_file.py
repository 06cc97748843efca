"""Reads formats in which a file is one row: the base class, and binary and audio files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from batchinference.pipeline.input.readers import BadRow, Chunk, Reader, or_bad
from batchinference.pipeline.input.readers.text_lines import TOO_LARGE
from batchinference.pipeline.input.signatures import is_audio
from batchinference.pipeline.ray_on_first_use import ray_data_compat
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import AudioOptions
    from batchinference.spec.read.base import RowOptions


class WholeFileReader(Reader):
    """A reader of files that are one row each. A subclass decodes files, and makes columns."""

    rows_exact = True
    names: ClassVar[tuple[str, ...]]
    """The columns of the format."""

    def __init__(self, options: RowOptions) -> None:
        self._options = options
        self.max_row_bytes = options.row_bytes

    def decode(self, content: bytes) -> Any:
        """Return the decoded content of a file, in the form for `columns_of`."""
        raise NotImplementedError

    def columns_of(self, decoded: list[Any]) -> list[pa.Array]:
        """Return the columns of decoded files. Each file is one row."""
        raise NotImplementedError

    def fetch(self, file: Location) -> bytes:
        """Return the first `maxRowBytes` + 1 bytes of a file, or a smaller file completely."""
        return file.read(self.max_row_bytes + 1)

    def check_size(self, content: bytes) -> bytes:
        """Return the content that `fetch` returned. Raises ValueError if the file is too large."""
        if len(content) > self.max_row_bytes:
            raise ValueError(TOO_LARGE.format("file", self.max_row_bytes))
        return content

    def decode_or_bad(self, content: bytes) -> Any | BadRow:
        """Return the decoded content of a file; a BadRow if it is damaged or too large."""
        return or_bad(lambda: self.decode(self.check_size(content)))

    def table(self, decoded: list[Any]) -> pa.Table:
        """Return decoded files as a table. Each file is one row."""
        return pa.table(self.columns_of(decoded), names=list(self.names))

    def read(self, file: Location) -> Iterator[Chunk]:
        decoded = self.decode_or_bad(self.fetch(file))
        yield decoded if isinstance(decoded, BadRow) else self.table([decoded])

    def rows_in(self, file: Location, size: int) -> int:
        return 1

    def columns(self) -> list[str]:
        return list(self.names)


class BinaryReader(WholeFileReader):
    """Reads files of any format as bytes."""

    names = ("bytes",)

    def decode(self, content: bytes) -> bytes:
        return content

    def columns_of(self, decoded: list[bytes]) -> list[pa.Array]:
        return [pa.array(decoded, pa.large_binary())]


class AudioReader(WholeFileReader):
    names = ("amplitude", "sample_rate")
    recognizes = staticmethod(is_audio)
    _options: AudioOptions

    def decode(self, content: bytes) -> tuple[np.ndarray, int]:
        """Return the samples (float32) and the sample rate in Hz, as `decode_audio` does."""
        from batchinference.pipeline.media.audio import decode_audio

        return decode_audio(content, self._options, self.max_row_bytes)

    def columns_of(self, decoded: list[tuple[np.ndarray, int]]) -> list[pa.Array]:
        amplitudes, rates = zip(*decoded, strict=True)
        tensors = ray_data_compat().ArrowVariableShapedTensorArray.from_numpy(list(amplitudes))
        return [tensors, pa.array(rates)]
