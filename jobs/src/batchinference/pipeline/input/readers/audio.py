"""Reads audio files with soundfile, one file per row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from ray.data.extensions import ArrowVariableShapedTensorArray

from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.media import audio
from batchinference.spec.read import AudioOptions


class AudioReader(WholeFileReader):
    names = ("amplitude", "sample_rate")
    extensions = (
        *("wav", "flac", "mp3", "ogg", "oga", "opus"),
        *("aif", "aiff", "aifc", "au", "caf", "w64", "rf64"),
    )

    def __init__(self, options: AudioOptions) -> None:
        super().__init__(options)
        self._options = options

    def decode(self, content: bytes) -> tuple[np.ndarray, int]:
        return audio.decode(content, self._options)

    def columns_of(self, decoded: list[tuple[np.ndarray, int]]) -> list[pa.Array]:
        amplitudes, rates = zip(*decoded, strict=True)
        return [ArrowVariableShapedTensorArray.from_numpy(list(amplitudes)), pa.array(rates)]
