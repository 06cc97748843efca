"""Opens videos and decodes audio from untrusted sources.

PyAV opens videos and resamples audio with FFmpeg. soundfile decodes audio.
FFmpeg detects formats by content, not by file name. Some formats only refer to streams: to read
them, FFmpeg would open sockets or other files. Therefore only formats that contain the frames are
opened. A test fails if other code calls `av.open`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import av
import numpy as np
from av.container import InputContainer

from batchinference.spec.read import AudioOptions

if TYPE_CHECKING:
    from soundfile import SoundFile


FORMATS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpeg", "mpegvideo"),
    *("m4v", "mpegts", "asf", "flv", "ogg", "mxf"),
)
_RESTRICTIONS = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}
MAX_RATE = 1_000_000
"""Maximum sample rate in Hz, also for the option `sample_rate`. Resampling takes memory in
proportion to the rate."""
SAMPLE_BYTES = 4


def open_video(source: Any, **options: Any) -> InputContainer:
    """Return an open video. FFmpeg opens no other file and no socket for it. Raises FFmpegError if
    the video cannot be opened."""
    film: InputContainer = av.open(source, "r", options=_RESTRICTIONS, **options)
    return film


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return one channel (float32) resampled from `rate` to `wanted` samples per second."""
    samples = np.ascontiguousarray(channel).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray()[0] for part in parts])


def decode_audio(content: bytes, options: AudioOptions) -> tuple[np.ndarray, int]:
    """Return the samples (float32) and the sample rate in Hz.

    The shape is (samples,) with `mono`, else (channels, samples). Raises ValueError if the content
    cannot be decoded, or takes more than `max_row_bytes`."""
    import soundfile  # videos do not need it

    try:
        channels, rate = _decoded(content, options)
    except soundfile.LibsndfileError as error:
        raise ValueError(error.error_string) from error
    if options.mono:
        channels = channels.mean(axis=0, keepdims=True)
    if options.sample_rate not in (None, rate):
        channels = np.stack([resampled(channel, rate, options.sample_rate) for channel in channels])
        rate = options.sample_rate
    return channels[0] if options.mono else channels, rate


def _decoded(content: bytes, options: AudioOptions) -> tuple[np.ndarray, int]:
    import soundfile

    with soundfile.SoundFile(io.BytesIO(content)) as recording:
        _check(recording, options)
        samples = recording.read(dtype="float32", always_2d=True)
        # for MP3 files without an index, `frames` is an estimate
        if recording.format != "MP3" and len(samples) < recording.frames:
            decoded = f"{len(samples)} of {recording.frames}"
            raise ValueError(f"only {decoded} samples can be decoded")
        return samples.T, recording.samplerate


def _check(recording: SoundFile, options: AudioOptions) -> None:
    rate = recording.samplerate
    if not 1 <= rate <= MAX_RATE:
        raise ValueError(f"{rate} samples a second are no rate of a recording")
    ratio = max(1.0, (options.sample_rate or rate) / rate)
    if recording.frames * recording.channels * SAMPLE_BYTES * ratio > options.row_bytes:
        limit = f"max_row_bytes ({options.row_bytes})"
        raise ValueError(f"{recording.frames} samples take more bytes than {limit}")
