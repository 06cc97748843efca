"""Converts images, audio and video to the tensors that the model requires."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import transformers

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.transformers.loading import Source, take_loading
from batchinference.pipeline.runtimes.transformers.options import (
    check_options,
    of_feature_extractor,
    of_image_processor,
)
from batchinference.pipeline.runtimes.transformers.value_checks import (
    films,
    images,
    sounds,
    spread,
)
from batchinference.spec.models import TransformersModel


class ImageInput:
    """Converts images (height x width x channels, uint8)."""

    def __init__(self, source: Source, model: TransformersModel) -> None:
        self._options = {"input_data_format": "channels_last", **model.options}
        self._processor = image_processor(source, self._options)

    def __call__(self, inputs: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        values = images(inputs["image"])
        yield (
            np.arange(len(values)),
            self._processor(images=values, return_tensors="pt", **self._options),
        )


class AudioInput:
    """Converts audio, with or without its sampling rate in Hz."""

    def __init__(self, source: Source, model: TransformersModel) -> None:
        self._extractor = source.processor(transformers.AutoFeatureExtractor)
        check_options(model.options, of_feature_extractor(self._extractor))
        padding = inspect.signature(type(self._extractor).__call__).parameters.get("padding")
        # some extractors already pad by default, to a length that their model requires
        pad = padding is not None and padding.default is False
        self._options = {**({"padding": True} if pad else {}), **model.options}

    def __call__(self, inputs: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        rate = self._extractor.sampling_rate
        values = sounds(inputs["audio"], inputs.get("sampling_rate"), rate)
        yield (
            np.arange(len(values)),
            self._extractor(values, sampling_rate=rate, return_tensors="pt", **self._options),
        )


class VideoInput:
    """Converts video. The model receives the number of frames that it was made for, evenly spaced
    over the video."""

    def __init__(self, source: Source, model: TransformersModel, config: Any) -> None:
        self._options = {"input_data_format": "channels_last", **model.options}
        count = self._options.pop("num_frames", None) or getattr(config, "num_frames", None)
        if count is None:
            raise ModelLoad(f"'{model.source}' does not say how many frames: options.num_frames")
        self._count = int(count)
        self._processor = image_processor(source, self._options)

    def __call__(self, inputs: dict[str, np.ndarray]) -> Iterator[tuple[np.ndarray, Any]]:
        values = [self._frames(film) for film in films(inputs["video"])]
        yield (
            np.arange(len(values)),
            self._processor(values, return_tensors="pt", **self._options),
        )

    def _frames(self, film: np.ndarray | bytes) -> list[np.ndarray]:
        if isinstance(film, bytes):
            from batchinference.pipeline.runtimes.transformers.video_frames import frames_of

            return frames_of(film, self._count)
        return list(film[spread(len(film), self._count)])


def image_processor(source: Source, options: dict[str, Any]) -> Any:
    """Return the image processor, in the implementation that the options select.

    Raises ModelLoad for an option that the processor does not know."""
    processor = source.processor(transformers.AutoImageProcessor, **take_loading(options))
    check_options(options, of_image_processor(processor))
    return processor
