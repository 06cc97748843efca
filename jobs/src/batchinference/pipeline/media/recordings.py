"""Opens videos from untrusted sources and resamples audio, both with FFmpeg through PyAV.

FFmpeg detects formats by content, not by file name. Some formats only refer to streams: to read
them, FFmpeg would open sockets or other files. Therefore only formats that contain the frames are
opened. A test fails if other code calls `av.open`.
"""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.container import InputContainer

FORMATS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpeg", "mpegvideo"),
    *("m4v", "mpegts", "asf", "flv", "ogg", "mxf"),
)
_NOTHING_ELSE = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}


def open_video(source: Any, **options: Any) -> InputContainer:
    """Return an open video. FFmpeg opens no other file and no socket for it. Raises FFmpegError if
    the video cannot be opened."""
    film: InputContainer = av.open(source, "r", options=_NOTHING_ELSE, **options)
    return film


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return one channel (float32) resampled from `rate` to `wanted` samples per second."""
    samples = np.ascontiguousarray(channel).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray()[0] for part in parts])
