"""Resamples audio with FFmpeg, through PyAV."""

from __future__ import annotations

import av
import numpy as np


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return one channel (float32) resampled from `rate` to `wanted` samples per second."""
    samples = np.ascontiguousarray(channel).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray()[0] for part in parts])
