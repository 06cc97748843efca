"""Recordings, by soundfile."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import soundfile
from ray.data.extensions import ArrowVariableShapedTensorArray

from batchinference.pipeline.readers.whole_file import WholeFileReader
from batchinference.pipeline.resampling import resampled
from batchinference.spec.read import AudioOptions


class AudioReader(WholeFileReader):
    names = ("amplitude", "sample_rate")
    extensions = (
        *("wav", "flac", "mp3", "ogg", "oga", "opus"),
        *("aif", "aiff", "aifc", "au", "caf", "w64", "rf64"),
    )

    def __init__(self, options: AudioOptions) -> None:
        self._rate = options.sample_rate
        self._mono = options.mono

    def decode(self, content: bytes) -> tuple[np.ndarray, int]:
        """Samples, or without `mono` channels x samples, and how many there are a second."""
        channels, rate = _samples(content)
        if self._mono:
            channels = channels.mean(axis=0, keepdims=True)
        if self._rate not in (None, rate):
            channels = np.stack([resampled(one, rate, self._rate) for one in channels])
            rate = self._rate
        return channels[0] if self._mono else channels, rate

    def columns_of(self, decoded: list[tuple[np.ndarray, int]]) -> list[pa.Array]:
        amplitudes, rates = zip(*decoded, strict=True)
        return [ArrowVariableShapedTensorArray.from_numpy(list(amplitudes)), pa.array(rates)]


def _samples(content: bytes) -> tuple[np.ndarray, int]:
    """Channels x samples (float32), and samples a second."""
    try:
        return _decoded(content)
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error


def _decoded(content: bytes) -> tuple[np.ndarray, int]:
    with soundfile.SoundFile(io.BytesIO(content)) as recording:
        samples = recording.read(dtype="float32", always_2d=True)
        # of MP3 files without an index the number is a guess
        if recording.format != "MP3" and len(samples) < recording.frames:
            raise ValueError(f"only {len(samples)} of {recording.frames} samples can be decoded")
        return samples.T, recording.samplerate
