"""Converts images, audio and video to the tensors that the model requires.

Small images are resized and normalized on the GPU of the model. The library would treat a text in
place of an image, an audio file or a video as an address, and fetch it. The functions here refuse
text for these inputs.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from PIL.Image import Resampling

from batchinference.pipeline.errors import FORMATS_EXTRA, ModelLoad, missing_package
from batchinference.pipeline.media.pixels import in_mode
from batchinference.pipeline.row_warnings import warn, warnings_of_row
from batchinference.pipeline.runtimes.device import to_device
from batchinference.pipeline.runtimes.model_io import Batch
from batchinference.pipeline.runtimes.transformers.loading import Source
from batchinference.pipeline.runtimes.transformers.options import (
    check_options,
    feature_extractor_options,
    image_processor_options,
    take_loading,
)
from batchinference.spec.media import FrameFields
from batchinference.spec.models import TransformersModel
from batchinference.spec.warnings import WarningName

_MAX_BYTES_ON_GPU = 256 << 20
"""Images of a batch with more bytes are prepared on the CPU. On a GPU, the library copies them
several times, also as float32, and the memory is needed by the model."""

_FRAME, _OVERHANG = 0.010, 0.015
"""Seconds from one frame of a spectrogram to the next, and by which a frame is longer."""

# Arrow's memory is read-only, and processors do not change the pixels
warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)


def images(values: Iterable[Any]) -> list[np.ndarray]:
    """Return arrays of height x width x channels. Raises TypeError for other values."""
    for value in values:
        if not isinstance(value, np.ndarray) or value.ndim != 3:
            raise TypeError(f"expected an image of height x width x channels, got {_what(value)}")
    return list(values)


def pillow_images(values: Iterable[Any]) -> list[Image.Image]:
    """Return arrays of height x width x channels as Pillow images in RGB. Transparent pixels are
    drawn over white, with a warning. Raises TypeError for other values than uint8."""
    converted = []
    for row, image in enumerate(images(values)):
        if image.dtype != np.uint8:
            raise TypeError(
                f"expected an image of uint8, got {image.dtype}: options.mode: RGB makes the "
                "reader give such images"
            )
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        with warnings_of_row(row):
            converted.append(in_mode(picture, "RGB", "white"))
    return converted


def videos(values: Iterable[Any]) -> list[np.ndarray | bytes]:
    """Return arrays of frames x height x width x channels, or the bytes of video files.

    Raises TypeError for other values."""
    for value in values:
        if not isinstance(value, bytes) and (not isinstance(value, np.ndarray) or value.ndim != 4):
            raise TypeError(
                "expected a video as frames x height x width x channels, or the bytes of its file, "
                f"got {_what(value)}"
            )
    return list(values)


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Return the indexes of `count` frames, evenly spaced over `total` frames (int64)."""
    return np.linspace(0, total - 1, num=count).round().astype(np.int64)


def audio_samples(values: np.ndarray, rates: np.ndarray | None, wanted: int) -> list[np.ndarray]:
    """Return samples (float32) of one channel, at the rate `wanted` in Hz.

    `values` are samples, or channels x samples, at `rates` in Hz. Without `rates`, they already
    have the rate `wanted`. Raises TypeError for other values.
    """
    result = []
    for row, value in enumerate(values):
        numeric = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
        if not numeric or value.ndim not in (1, 2) or value.size == 0:
            raise TypeError(f"expected audio as samples or channels x samples, got {_what(value)}")
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
        from batchinference.pipeline.media.recordings import resampled
    except ImportError as error:
        what = f"audio of {rate} Hz for a model that expects {wanted} Hz"
        raise ModelLoad(missing_package(what, "av", FORMATS_EXTRA)) from error
    return resampled(samples, rate, wanted)


def warn_of_cut_audio(
    values: Iterable[np.ndarray], extractor: Any, options: Mapping[str, Any]
) -> None:
    """Report a warning for each recording of which the model gets only a part. `options` are those
    of the calls of the extractor."""
    longest = _longest(extractor, options)
    for row, value in enumerate(values if longest is not None else ()):
        if longest is not None and len(value) > longest:
            seconds = math.ceil((len(value) - longest) / extractor.sampling_rate)
            warn(WarningName.AUDIO_CUT, row=row, amount=seconds)


def _longest(extractor: Any, options: Mapping[str, Any]) -> int | None:
    """Return the number of samples to which an extractor cuts recordings; None if it does not."""
    chosen = options.get("max_length")
    for name in ("nb_max_samples", "n_samples"):
        if (samples := getattr(extractor, name, None)) is not None:
            return int(chosen or samples)
    counts_frames = hasattr(extractor, "num_mel_bins")
    own = getattr(extractor, "max_length", None) if counts_frames else None
    length = chosen if options.get("truncation") else own
    if not length:
        return None
    multiple = options.get("pad_to_multiple_of") or 1
    length = math.ceil(length / multiple) * multiple
    seconds = length * _FRAME + _OVERHANG
    return int(extractor.sampling_rate * seconds) if counts_frames else length


def crop_alike(extractor: Any) -> None:
    """Make an extractor that crops recordings at a random place always crop a recording in the same
    way, so that its result is the same in each batch and each run."""
    if getattr(extractor, "truncation", None) not in ("rand_trunc", "fusion"):
        return
    kind: Any = type(extractor)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        state = np.random.get_state()
        np.random.seed(0)
        try:
            return kind.__call__(self, *arguments, **options)
        finally:
            np.random.set_state(state)

    extractor.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _what(value: Any) -> str:
    return str(value.shape) if isinstance(value, np.ndarray) else type(value).__name__


def frames_of(content: bytes, count: int) -> list[np.ndarray]:
    """Return `count` frames, height x width x RGB, evenly spaced over the video, and upright.

    The video is decoded twice, because headers do not reliably state the number of frames, and all
    frames at once would not fit into memory.
    """
    from batchinference.pipeline.media.films import FrameConverter

    convert = FrameConverter(FrameFields())
    total = sum(1 for _ in _decoded(content))
    if total == 0:
        raise ValueError("the video has no frames")
    chosen = evenly_spaced(total, count).tolist()
    pixels = {
        number: convert(frame) for number, frame in enumerate(_decoded(content)) if number in chosen
    }
    return [pixels[number] for number in chosen]


def _decoded(content: bytes) -> Iterator[Any]:
    from batchinference.pipeline.media.recordings import open_video

    with open_video(BytesIO(content)) as container:
        if not container.streams.video:
            raise ValueError("the file has no video")
        yield from container.decode(video=0)


class ImageInput:
    """Converts images (height x width x channels, uint8).

    On a GPU, this takes a fraction of the time for which the model would otherwise wait. The CPU
    prepares what the GPU cannot: large images, images that are bad rows, and images that are
    reduced by a factor that PyTorch does not support on GPUs.
    """

    def __init__(self, source: Source, model: TransformersModel) -> None:
        self._options = {"input_data_format": "channels_last", **model.options}
        self._processor = image_processor(source, self._options)
        self._device = preparing_device(self._processor, self._options, source.device)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        values = images(inputs["image"])
        prepared = self._prepared_on_device(inputs["image"])
        if prepared is None:
            prepared = self._prepared(values)
        yield np.arange(len(values)), prepared

    def _prepared_on_device(self, values: np.ndarray) -> Any:
        """Return the images, prepared on the device, or None if this is not possible."""
        if self._device is None or sum(value.nbytes for value in values) > _MAX_BYTES_ON_GPU:
            return None
        with suppress(Exception):  # the CPU raises it again if it is about a row
            return self._prepared(on_device(values, self._device))
        return None

    def _prepared(self, values: list[Any]) -> Any:
        return self._processor(images=values, return_tensors="pt", **self._options)


def preparing_device(
    processor: Any, options: dict[str, Any], model: torch.device
) -> torch.device | None:
    """Return the device that prepares images for a model, or None for the CPU. Removes the option
    `device`, which takes precedence over the device of the model."""
    chosen = options.pop("device", None)
    resample = options.get("resample", getattr(processor, "resample", None))
    # the library replaces LANCZOS on GPUs with another method
    if getattr(processor, "backend", None) != "torchvision" or resample == Resampling.LANCZOS:
        return None
    device = model if chosen is None else torch.device(chosen)
    return device if device.type == "cuda" else None


def on_device(values: np.ndarray, device: torch.device) -> list[torch.Tensor]:
    """Return images as tensors on a device. They are copied before the library changes the order of
    the axes, which takes longer on the CPU. An array of all images is copied at once."""
    if values.dtype != object:
        return list(to_device(values, device))
    return [to_device(value, device) for value in values]


class AudioInput:
    """Converts audio, with or without its sampling rate in Hz."""

    def __init__(self, source: Source, model: TransformersModel) -> None:
        self._extractor = source.processor(transformers.AutoFeatureExtractor)
        check_options(model.options, feature_extractor_options(self._extractor))
        crop_alike(self._extractor)
        padding = inspect.signature(type(self._extractor).__call__).parameters.get("padding")
        # some extractors already pad by default, to a length that their model requires
        pads = padding is not None and padding.default is False
        self._options = {**({"padding": True} if pads else {}), **model.options}
        masks = getattr(self._extractor, "return_attention_mask", False)
        self._hears_padding = pads and not self._options.get("return_attention_mask", masks)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        rate = self._extractor.sampling_rate
        values = audio_samples(inputs["audio"], inputs.get("sampling_rate"), rate)
        warn_of_cut_audio(values, self._extractor, self._options)
        for rows in self._groups(values):
            group = [values[row] for row in rows]
            yield (
                rows,
                self._extractor(group, sampling_rate=rate, return_tensors="pt", **self._options),
            )

    def _groups(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Return the rows that are computed together: those of the same length, if the model would
        take the padding of a shorter recording for sound."""
        lengths = np.array([len(value) if self._hears_padding else 0 for value in values])
        return [np.flatnonzero(lengths == length) for length in np.unique(lengths)]


class VideoInput:
    """Converts video. The model receives the number of frames that it was made for, evenly spaced
    over the video."""

    def __init__(self, source: Source, model: TransformersModel, config: Any) -> None:
        self._options = {"input_data_format": "channels_last", **model.options}
        count = self._options.pop("num_frames", None) or getattr(config, "num_frames", None)
        if count is None:
            raise ModelLoad(
                f"options: '{model.source}' does not state its number of frames. Set num_frames"
            )
        self._count = int(count)
        self._processor = image_processor(source, self._options)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        values = [self._frames(video) for video in videos(inputs["video"])]
        yield (
            np.arange(len(values)),
            self._processor(values, return_tensors="pt", **self._options),
        )

    def _frames(self, video: np.ndarray | bytes) -> list[np.ndarray]:
        if isinstance(video, bytes):
            return frames_of(video, self._count)
        return list(video[evenly_spaced(len(video), self._count)])


def image_processor(source: Source, options: dict[str, Any]) -> Any:
    """Return the image processor, in the implementation that the options select.

    Raises ModelLoad for an option that the processor does not know."""
    processor = source.processor(transformers.AutoImageProcessor, **take_loading(options))
    check_options(options, image_processor_options(processor))
    return processor
