"""Sound at another rate, by FFmpeg, through PyAV."""

from __future__ import annotations

import av
import numpy as np


def resampled(channel: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """One channel (float32) at another number of samples a second."""
    frame = av.AudioFrame.from_ndarray(channel.reshape(1, -1), format="fltp", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=wanted)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([part.to_ndarray()[0] for part in parts])
