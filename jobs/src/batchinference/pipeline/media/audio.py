"""Decodes and resamples audio, and opens untrusted audio and video files with FFmpeg.

libsndfile decodes the audio formats that it knows, and FFmpeg decodes all others. FFmpeg detects
formats by content, not by file name. For formats that only refer to streams, FFmpeg opens sockets
or other files. So `open_media` allows only formats that contain their samples or frames. A test
fails if other code calls `av.open`."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from batchinference.pipeline.media.truncated_files import truncation_error
from batchinference.pipeline.row_warnings import warn
from batchinference.spec.media import SoundFields
from batchinference.spec.warnings import WarningName

FORMATS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpeg", "mpegvideo"),
    *("m4v", "mpegts", "asf", "flv", "ogg", "mxf"),
)
SOUND_FORMATS = (
    *FORMATS,
    *("aac", "ac3", "aiff", "amr", "ape", "au", "caf", "dts", "eac3", "flac", "loas", "mp3", "tta"),
    *("w64", "wav", "wv", "xwma"),
)
_STATING_FORMATS = ("ape", "tta", "wv")
"""The formats that state the exact number of samples, but not the size of the file."""
_MIN_SAMPLES = 64
"""Shorter audio is padded before it is resampled: FFmpeg returns no samples for short audio."""


def open_media(source: Any, formats: tuple[str, ...] = FORMATS, **options: Any) -> InputContainer:
    """Return an open audio or video file. FFmpeg opens no other file and no socket for it. Raises
    FFmpegError if the file cannot be opened or has another format."""
    restrictions = {"format_whitelist": ",".join(formats), "protocol_whitelist": ""}
    container: InputContainer = av.open(source, "r", options=restrictions, **options)
    return container


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return one channel (float32) resampled from `rate` to `wanted` samples per second."""
    if not channel.size:
        return channel
    missing = math.ceil(_MIN_SAMPLES * max(1, rate / wanted)) - len(channel)
    samples = np.pad(channel, (0, max(0, missing))).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    length = math.ceil(len(channel) * wanted / rate)
    return np.concatenate([part.to_ndarray()[0] for part in parts])[:length]


def decode_audio(content: bytes, options: SoundFields, max_bytes: int) -> tuple[np.ndarray, int]:
    """Return the samples (float32) and the sample rate in Hz. The shape is (samples,) with `mono`,
    else (channels, samples). Raises ValueError or FFmpegError on failure or above `max_bytes`."""
    import soundfile  # imported here because videos do not need it

    from batchinference.pipeline.media.libsndfile import read_sound

    try:
        sound = read_sound(content, options, max_bytes)
    except soundfile.LibsndfileError as error:
        try:
            channels, rate = _read_track(content, options, max_bytes)
        except av.FFmpegError:
            missing = truncation_error(io.BytesIO(content), len(content))
            raise ValueError(str(missing or error.error_string)) from error
    else:
        channels, rate, certain = sound or (*_read_track(content, options, max_bytes), True)
        if not certain:
            channels, rate = _with_ffmpeg_if_longer(content, options, max_bytes, (channels, rate))
    if options.mono:
        channels = channels.mean(axis=0, keepdims=True)
    if options.sample_rate not in (None, rate):
        channels = np.stack([resampled(channel, rate, options.sample_rate) for channel in channels])
        rate = options.sample_rate
    return channels[0] if options.mono else channels, rate


def _with_ffmpeg_if_longer(
    content: bytes, options: SoundFields, max_bytes: int, known: tuple[np.ndarray, int]
) -> tuple[np.ndarray, int]:
    """Return the samples and rate from FFmpeg if it decodes more samples than `known` has, else
    `known`. Raises ValueError if the file has further recordings that neither decoder reads."""
    from batchinference.pipeline.media.libsndfile import CHAINED_FILE, is_chained_mp3

    with suppress(av.FFmpegError, ValueError):
        other = _read_track(content, options, max_bytes)
        if other[0].shape[1] > known[0].shape[1]:
            return other
    if is_chained_mp3(content):
        raise ValueError(CHAINED_FILE)
    return known


def _read_track(content: bytes, options: SoundFields, max_bytes: int) -> tuple[np.ndarray, int]:
    """Return the samples of the first audio track as FFmpeg decodes them (channels x samples,
    float32), and their rate in Hz. Raises FFmpegError or ValueError if it cannot be decoded."""
    from batchinference.pipeline.media.libsndfile import (
        check_size,
        warn_about_range,
        warn_or_fail_at_end,
    )

    with open_media(io.BytesIO(content), SOUND_FORMATS) as container:
        tracks = container.streams.audio
        if not tracks:
            raise ValueError("the file has no sound")
        track, count = tracks[0], 0
        parts = [np.empty((track.channels, 0), np.float32)]
        missing: Exception | None = truncation_error(io.BytesIO(content), len(content))
        try:
            for part in _decoded(container, track):
                count += part.size
                check_size(count, track.rate, options, max_bytes)
                parts.append(part)
        except (av.FFmpegError, OSError) as error:
            missing = missing or error
        samples = np.concatenate(parts, axis=1)
        missing = missing or _missing_samples(container, track, samples.shape[1])
    if missing:
        warn_or_fail_at_end(str(missing), samples, options)
    if len(tracks) > 1:
        warn(WarningName.PAGES_IGNORED, amount=len(tracks) - 1)
    if track.codec_context.name.startswith("pcm_f"):
        warn_about_range(samples)
    return samples, track.rate


def _missing_samples(
    container: InputContainer, track: AudioStream, samples: int
) -> Exception | None:
    """Return an error if a file of _STATING_FORMATS states more samples than were decoded."""
    if container.format.name in _STATING_FORMATS and track.duration and track.time_base:
        stated = round(track.duration * track.time_base * track.rate)
        if samples < stated:
            return EOFError(f"only {samples} of {stated} samples can be decoded")
    return None


def _decoded(container: InputContainer, track: AudioStream) -> Iterator[np.ndarray]:
    """Yield parts of the samples of a track: channels x samples, float32. Damage is an error."""
    converter = av.AudioResampler(format="fltp")
    first = ""
    for packet in container.demux(track):
        for frame in packet.decode():
            if frame.is_corrupt:
                raise OSError("the recording is damaged")
            kind = f"{frame.sample_rate} Hz {frame.layout.name}"
            first = first or kind
            if kind != first:
                raise ValueError(
                    f"the recording changes from {first} to {kind}. Divide it into a file for each"
                )
            for part in converter.resample(frame):
                yield part.to_ndarray()
