"""Checks the values of columns, and converts them to the types that the library takes.

The library would treat text as the address of an image, an audio file or a video, and fetch it. The
functions here refuse text for these inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from PIL import Image

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.imports import FORMATS_EXTRA, missing


def texts(values: Iterable[Any]) -> list[str]:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"expected text, got {type(value).__name__}")
    return list(values)


def images(values: Iterable[Any]) -> list[np.ndarray]:
    """Return arrays of height x width x channels. Raises TypeError for other values."""
    for value in values:
        if not isinstance(value, np.ndarray) or value.ndim != 3:
            raise TypeError(f"expected an image of height x width x channels, got {_what(value)}")
    return list(values)


def pictures(values: Iterable[Any]) -> list[Image.Image]:
    """Return the same as Pillow images in RGB."""
    flat = (image[:, :, 0] if image.shape[2] == 1 else image for image in images(values))
    return [Image.fromarray(image).convert("RGB") for image in flat]


def films(values: Iterable[Any]) -> list[np.ndarray | bytes]:
    """Return arrays of frames x height x width x channels, or the bytes of video files.

    Raises TypeError for other values."""
    for value in values:
        if not isinstance(value, bytes) and (not isinstance(value, np.ndarray) or value.ndim != 4):
            raise TypeError(
                "expected a video as frames x height x width x channels, or the bytes of its file, "
                f"got {_what(value)}"
            )
    return list(values)


def spread(there: int, wanted: int) -> np.ndarray:
    """Return the numbers of `wanted` frames, evenly spaced over the `there` existing frames."""
    return np.linspace(0, there - 1, num=wanted).round().astype(np.int64)


def sounds(values: np.ndarray, rates: np.ndarray | None, wanted: int) -> list[np.ndarray]:
    """Return samples (float32) of one channel, at the rate `wanted` in Hz.

    `values` are samples, or channels x samples, at `rates` in Hz. Without `rates`, they already
    have the rate `wanted`. Raises TypeError for other values.
    """
    result = []
    for row, value in enumerate(values):
        numeric = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
        if not numeric or value.ndim not in (1, 2) or value.size == 0:
            raise TypeError(f"expected sound as samples or channels x samples, got {_what(value)}")
        samples = _floats(value)
        samples = samples.mean(axis=0) if samples.ndim == 2 else samples
        rate = wanted if rates is None else int(rates[row])
        result.append(samples if rate == wanted else _resampled(samples, rate, wanted))
    return result


def _floats(value: np.ndarray) -> np.ndarray:
    """Return numbers between -1 and 1. Integers are treated as PCM."""
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    limits = np.iinfo(value.dtype)
    middle = 0 if value.dtype.kind == "i" else (limits.max + 1) // 2
    return (value.astype(np.float32) - middle) / (limits.max + 1 - middle)


def _resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    try:
        from batchinference.pipeline.media.resampling import resampled
    except ImportError as error:
        what = f"sound of {rate} Hz for a model that hears {wanted} Hz"
        raise ModelLoad(missing(what, "av", FORMATS_EXTRA)) from error
    return resampled(samples, rate, wanted)


def _what(value: Any) -> str:
    return str(value.shape) if isinstance(value, np.ndarray) else type(value).__name__
