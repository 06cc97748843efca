"""Reads audio files with soundfile, one file per row."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import soundfile
from ray.data.extensions import ArrowVariableShapedTensorArray

from batchinference.pipeline.input.readers.whole_file import WholeFileReader
from batchinference.pipeline.media.recordings import resampled
from batchinference.spec.read import AudioOptions

MAX_RATE = 1_000_000
"""Maximum sample rate in Hz, also for the option `sample_rate`. Resampling takes memory in
proportion to the rate."""
SAMPLE_BYTES = 4


class AudioReader(WholeFileReader):
    names = ("amplitude", "sample_rate")
    extensions = (
        *("wav", "flac", "mp3", "ogg", "oga", "opus"),
        *("aif", "aiff", "aifc", "au", "caf", "w64", "rf64"),
    )

    def __init__(self, options: AudioOptions) -> None:
        super().__init__(options)
        self._rate = options.sample_rate
        self._mono = options.mono

    def decode(self, content: bytes) -> tuple[np.ndarray, int]:
        """Return the samples and the sample rate in Hz.

        The shape is (samples,) with `mono`, else (channels, samples)."""
        channels, rate = self._samples(content)
        if self._mono:
            channels = channels.mean(axis=0, keepdims=True)
        if self._rate not in (None, rate):
            channels = np.stack([resampled(one, rate, self._rate) for one in channels])
            rate = self._rate
        return channels[0] if self._mono else channels, rate

    def columns_of(self, decoded: list[tuple[np.ndarray, int]]) -> list[pa.Array]:
        amplitudes, rates = zip(*decoded, strict=True)
        return [ArrowVariableShapedTensorArray.from_numpy(list(amplitudes)), pa.array(rates)]

    def _samples(self, content: bytes) -> tuple[np.ndarray, int]:
        """Return float32 samples with the shape (channels, samples), and the sample rate in Hz.

        Raises ValueError if the file cannot be decoded."""
        try:
            return self._decoded(content)
        except soundfile.LibsndfileError as error:
            raise ValueError(error.error_string) from error

    def _decoded(self, content: bytes) -> tuple[np.ndarray, int]:
        with soundfile.SoundFile(io.BytesIO(content)) as recording:
            self._check(recording)
            samples = recording.read(dtype="float32", always_2d=True)
            # for MP3 files without an index, `frames` is an estimate
            if recording.format != "MP3" and len(samples) < recording.frames:
                there = f"{len(samples)} of {recording.frames}"
                raise ValueError(f"only {there} samples can be decoded")
            return samples.T, recording.samplerate

    def _check(self, recording: soundfile.SoundFile) -> None:
        """Raise ValueError if the rate is invalid or the samples take more than max_row_bytes."""
        rate = recording.samplerate
        if not 1 <= rate <= MAX_RATE:
            raise ValueError(f"{rate} samples a second are no rate of a recording")
        ratio = max(1.0, (self._rate or rate) / rate)
        if recording.frames * recording.channels * SAMPLE_BYTES * ratio > self.max_row_bytes:
            limit = f"max_row_bytes ({self.max_row_bytes})"
            raise ValueError(f"{recording.frames} samples take more bytes than {limit}")
