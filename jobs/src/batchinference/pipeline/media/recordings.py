"""Opens videos and decodes audio from untrusted sources.

libsndfile decodes the formats of audio that it knows. FFmpeg decodes other audio and videos, and
resamples audio. FFmpeg detects formats by content, not by file name. Some formats only refer to
streams: to read them, FFmpeg would open sockets or other files. Therefore only formats that contain
the frames are opened. A test fails if other code calls `av.open`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import InputContainer

from batchinference.pipeline.media.cut_files import missing_end
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


def open_video(source: Any, formats: tuple[str, ...] = FORMATS, **options: Any) -> InputContainer:
    """Return an open video. FFmpeg opens no other file and no socket for it. Raises FFmpegError if
    the video cannot be opened."""
    restrictions = {"format_whitelist": ",".join(formats), "protocol_whitelist": ""}
    film: InputContainer = av.open(source, "r", options=restrictions, **options)
    return film


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return one channel (float32) resampled from `rate` to `wanted` samples per second."""
    samples = np.ascontiguousarray(channel).reshape(1, -1)
    if not samples.size:
        return samples[0]
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([samples[0, :0], *(part.to_ndarray()[0] for part in parts)])


def decode_audio(content: bytes, options: SoundFields, max_bytes: int) -> tuple[np.ndarray, int]:
    """Return the samples (float32) and the sample rate in Hz.

    The shape is (samples,) with `mono`, else (channels, samples). Raises ValueError if the content
    cannot be decoded, or takes more than `max_bytes`."""
    import soundfile  # videos do not need it

    from batchinference.pipeline.media.sound_files import read_sound

    try:
        channels, rate = read_sound(content, options, max_bytes)
    except soundfile.LibsndfileError as error:
        try:
            channels, rate = _read_track(content, options, max_bytes)
        except av.FFmpegError:
            missing = missing_end(io.BytesIO(content), len(content))
            raise missing or ValueError(error.error_string) from error
    if options.mono:
        channels = channels.mean(axis=0, keepdims=True)
    if options.sample_rate not in (None, rate):
        channels = np.stack([resampled(channel, rate, options.sample_rate) for channel in channels])
        rate = options.sample_rate
    return channels[0] if options.mono else channels, rate


def _read_track(content: bytes, options: SoundFields, max_bytes: int) -> tuple[np.ndarray, int]:
    """Return the samples of the first audio track (channels x samples, float32), and their rate in
    Hz. Raises FFmpegError if the file cannot be opened."""
    from batchinference.pipeline.media.sound_files import check_end, check_size, check_values

    with open_video(io.BytesIO(content), SOUND_FORMATS) as container:
        tracks = container.streams.audio
        if not tracks:
            raise ValueError("the file has no sound")
        track, count = tracks[0], 0
        parts = [np.empty((track.channels, 0), np.float32)]
        missing = missing_end(io.BytesIO(content), len(content))
        try:
            for part in _decoded(container, track):
                count += part.size
                check_size(count, track.rate, options, max_bytes)
                parts.append(part)
        except av.FFmpegError as error:
            missing = missing or error
    samples = np.concatenate(parts, axis=1)
    if missing:
        check_end(str(missing), samples, options)
    if len(tracks) > 1:
        warn(WarningName.PAGES_IGNORED, amount=len(tracks) - 1)
    if track.codec_context.name.startswith("pcm_f"):
        check_values(samples)
    return samples, track.rate


def _decoded(container: InputContainer, track: AudioStream) -> Iterator[np.ndarray]:
    """Yield the samples of a track in parts: channels x samples, float32. Raises FFmpegError."""
    converter = av.AudioResampler(format="fltp")
    for packet in container.demux(track):
        for frame in packet.decode():
            if frame.is_corrupt:
                raise av.InvalidDataError(0, "the recording is damaged")
            for part in converter.resample(frame):
                yield part.to_ndarray()
