"""Reads frames of a video file with PyAV."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import av
import numpy as np

from batchinference.pipeline.media.video_file import open_video
from batchinference.pipeline.runtimes.transformers.value_checks import spread


def frames_of(content: bytes, count: int) -> list[np.ndarray]:
    """Return `count` frames, height x width x RGB, evenly spaced over the video.

    The video is decoded twice, because headers do not reliably state the number of frames, and all
    frames at once would not fit into memory.
    """
    there = sum(1 for _ in _decoded(content))
    if there == 0:
        raise ValueError("the film has no frames")
    chosen = spread(there, count).tolist()
    pixels = {
        number: frame.to_ndarray(format="rgb24")
        for number, frame in enumerate(_decoded(content))
        if number in chosen
    }
    return [pixels[number] for number in chosen]


def _decoded(content: bytes) -> Iterator[av.VideoFrame]:
    with open_video(BytesIO(content)) as container:
        if not container.streams.video:
            raise ValueError("the file has no pictures")
        yield from container.decode(video=0)
