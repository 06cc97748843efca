"""Decodes audio files from untrusted sources with soundfile."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from batchinference.pipeline.media.recordings import resampled
from batchinference.spec.read import AudioOptions

MAX_RATE = 1_000_000
"""Maximum sample rate in Hz, also for the option `sample_rate`. Resampling takes memory in
proportion to the rate."""
SAMPLE_BYTES = 4


def decode(content: bytes, options: AudioOptions) -> tuple[np.ndarray, int]:
    """Return the samples (float32) and the sample rate in Hz.

    The shape is (samples,) with `mono`, else (channels, samples). Raises ValueError if the content
    cannot be decoded, or takes more than `max_row_bytes`."""
    try:
        channels, rate = _decoded(content, options)
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error
    if options.mono:
        channels = channels.mean(axis=0, keepdims=True)
    if options.sample_rate not in (None, rate):
        channels = np.stack([resampled(one, rate, options.sample_rate) for one in channels])
        rate = options.sample_rate
    return channels[0] if options.mono else channels, rate


def _decoded(content: bytes, options: AudioOptions) -> tuple[np.ndarray, int]:
    with soundfile.SoundFile(io.BytesIO(content)) as recording:
        _check(recording, options)
        samples = recording.read(dtype="float32", always_2d=True)
        # for MP3 files without an index, `frames` is an estimate
        if recording.format != "MP3" and len(samples) < recording.frames:
            there = f"{len(samples)} of {recording.frames}"
            raise ValueError(f"only {there} samples can be decoded")
        return samples.T, recording.samplerate


def _check(recording: soundfile.SoundFile, options: AudioOptions) -> None:
    rate = recording.samplerate
    if not 1 <= rate <= MAX_RATE:
        raise ValueError(f"{rate} samples a second are no rate of a recording")
    ratio = max(1.0, (options.sample_rate or rate) / rate)
    if recording.frames * recording.channels * SAMPLE_BYTES * ratio > options.row_bytes:
        limit = f"max_row_bytes ({options.row_bytes})"
        raise ValueError(f"{recording.frames} samples take more bytes than {limit}")
