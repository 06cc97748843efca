"""Converts images, audio and video to the tensors that the model requires.

Images of small batches are resized and normalized on the GPU of the model. The functions here
refuse texts, because the library would treat a text as an address, and fetch a file from it."""

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
from batchinference.pipeline.runtimes.transformers.loading import (
    ModelLoader,
    check_options,
    feature_extractor_options,
    image_processor_options,
    pop_loading_options,
)
from batchinference.spec.media import FrameFields
from batchinference.spec.models import TransformersModel
from batchinference.spec.warnings import WarningName

MAX_GPU_BYTES = 256 << 20
"""If the images of a batch have more bytes, the CPU prepares them. On a GPU, the library would make
several copies, some of them as float32, in memory that the model needs."""
MIN_RATE = 1000
"""A lower rate is probably in kHz. It is refused if the model has another rate."""
_FRAME_STEP, _FRAME_OVERLAP = 0.010, 0.015
"""Seconds from one frame of a spectrogram to the next, and seconds that two such frames share."""

# Arrow's memory is read-only, and processors do not change the pixels
warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)


def image_arrays(values: Iterable[Any]) -> list[np.ndarray]:
    """Return images (any type, height x width x channels). Raises TypeError for other values."""
    for value in values:
        if not isinstance(value, np.ndarray) or value.ndim != 3:
            raise TypeError(f"expected an image of height x width x channels, got {_form(value)}")
    return list(values)


def check_range(values: Iterable[np.ndarray], processor: Any, options: Mapping[str, Any]) -> None:
    """Raise TypeError for pixels of another scale than 0 to 255, if a processor divides by 255."""
    names = ("do_rescale", "rescale_factor")
    rescales, factor = (options.get(name, getattr(processor, name, None)) for name in names)
    others = (one for one in values if one.dtype != np.uint8 and rescales and factor == 1 / 255)
    for value in others:
        low, high = value.min(initial=0), value.max(initial=0)
        is_float = value.dtype.kind == "f"  # a resize may exceed the range
        is_scaled = is_float and -10 <= low <= high <= 10 and (value % 1).any()
        lowest, highest = (-255, 510) if is_float else (0, 0 if value.dtype == bool else 255)
        if is_scaled or not lowest <= low <= high <= highest:
            raise TypeError(
                f"expected pixels from 0 to 255, got {value.dtype} from {low} to {high}. Set the "
                "model's options.do_rescale to false or rescale_factor, or round a dark image"
            )


def pillow_images(values: Iterable[Any]) -> list[Image.Image]:
    """Return images (height x width x channels, uint8) as Pillow images in RGB. Transparent pixels
    are drawn over white, with a warning. Raises TypeError for another value."""
    converted = []
    for row, image in enumerate(image_arrays(values)):
        if image.dtype != np.uint8:
            raise TypeError(
                f"expected an image of uint8, got {image.dtype}: options.mode: RGB makes the "
                "reader give such images"
            )
        picture = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        with warnings_of_row(row):
            converted.append(in_mode(picture, "RGB", "white"))
    return converted


def check_videos(values: Iterable[Any]) -> list[np.ndarray | bytes]:
    """Return videos as a list. A video is an array (any type, frames x height x width x channels),
    or the bytes of a video file. Raises TypeError for another value."""
    for value in values:
        if not isinstance(value, bytes) and (not isinstance(value, np.ndarray) or value.ndim != 4):
            raise TypeError(
                "expected a video as frames x height x width x channels, or the bytes of its file, "
                f"got {_form(value)}"
            )
    return list(values)


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Return the indexes of `count` frames, evenly spaced over `total` frames (int64)."""
    return np.linspace(0, total - 1, num=count).round().astype(np.int64)


def audio_samples(values: np.ndarray, rates: np.ndarray | None, wanted: int) -> list[np.ndarray]:
    """Return recordings as samples (float32) of one channel, at the rate `wanted` in Hz. `values`
    are the recordings: samples, or channels x samples. `rates` are their rates in Hz; None if all
    have the rate `wanted`. Raises TypeError for a value that is no recording, or a rate in kHz."""
    result = []
    for row, value in enumerate(values):
        numeric = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"
        if not numeric or value.ndim not in (1, 2) or not 0 < len(value) <= value.shape[-1]:
            raise TypeError(f"expected audio as samples or channels x samples, got {_form(value)}")
        samples = _floats(value)
        samples = samples.mean(axis=0) if samples.ndim == 2 else samples
        rate = wanted if rates is None else int(rates[row])
        if rate < MIN_RATE and rate != wanted:
            raise TypeError(f"expected a rate in Hz for a model of {wanted} Hz, got {rate}")
        result.append(samples if rate == wanted else _resampled(samples, rate, wanted))
    return result


def _floats(value: np.ndarray) -> np.ndarray:
    """Return samples as float32. Integers are PCM, and scaled to numbers between -1 and 1."""
    if value.dtype.kind == "f":
        return value.astype(np.float32)
    limits = np.iinfo(value.dtype)
    middle = 0 if value.dtype.kind == "i" else (limits.max + 1) // 2
    return (value.astype(np.float32) - middle) / (limits.max + 1 - middle)


def _resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    try:
        from batchinference.pipeline.media.audio import resampled
    except ImportError as error:
        what = f"audio of {rate} Hz for a model that expects {wanted} Hz"
        raise ModelLoad(missing_package(what, "av", FORMATS_EXTRA)) from error
    return resampled(samples, rate, wanted)


def warn_of_cut_audio(
    values: Iterable[np.ndarray], extractor: Any, options: Mapping[str, Any]
) -> None:
    """Report a warning for each recording that an extractor cuts if called with `options`."""
    longest = _max_samples(extractor, options)
    for row, value in enumerate(values if longest is not None else ()):
        if longest is not None and len(value) > longest:
            seconds = math.ceil((len(value) - longest) / extractor.sampling_rate)
            warn(WarningName.AUDIO_CUT, row=row, amount=seconds)


def _max_samples(extractor: Any, options: Mapping[str, Any]) -> int | None:
    """Return the number of samples to which an extractor cuts recordings; None if it cuts none."""
    max_length = options.get("max_length")
    for name in ("nb_max_samples", "n_samples"):
        if (samples := getattr(extractor, name, None)) is not None:
            return int(max_length or samples)
    counts_frames = hasattr(extractor, "num_mel_bins")
    own = getattr(extractor, "max_length", None) if counts_frames else None
    length = max_length if options.get("truncation") else own
    if not length:
        return None
    multiple = options.get("pad_to_multiple_of") or 1
    length = math.ceil(length / multiple) * multiple
    seconds = length * _FRAME_STEP + _FRAME_OVERLAP
    return int(extractor.sampling_rate * seconds) if counts_frames else length


def crop_reproducibly(extractor: Any) -> None:
    """Make an extractor that crops recordings at random use the same random numbers in each call.
    Then the results of a batch do not depend on the run or on earlier batches."""
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


def _form(value: Any) -> str:
    return str(value.shape) if isinstance(value, np.ndarray) else type(value).__name__


def frames_of(content: bytes, count: int) -> list[np.ndarray]:
    """Return `count` upright frames (uint8, height x width x RGB) of a video file, evenly spaced.
    The first decoding counts the frames, because headers are not reliable. The second one converts
    the chosen frames, because all frames at once would not fit into memory."""
    from batchinference.pipeline.media.videos import FrameConverter

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
    from batchinference.pipeline.media.audio import open_media

    with open_media(BytesIO(content)) as container:
        if not container.streams.video:
            raise ValueError("the file has no video")
        yield from container.decode(video=0)


class ImageInput:
    """Converts images (height x width x channels). If `preparing_device` returns a GPU, the GPU
    converts them, because it is much faster than the CPU. The CPU converts a batch if its images
    have more than `max_gpu_bytes`. It also does so if the GPU fails, for example for a bad row."""

    def __init__(
        self, loader: ModelLoader, model: TransformersModel, max_gpu_bytes: int = MAX_GPU_BYTES
    ) -> None:
        self._max_gpu_bytes = max_gpu_bytes
        self._options = {"input_data_format": "channels_last", **model.options}
        self._processor = image_processor(loader, self._options)
        self._device = preparing_device(self._processor, self._options, loader.device)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        values = image_arrays(inputs["image"])
        check_range(values, self._processor, self._options)
        prepared = self._prepared_on_device(inputs["image"])
        if prepared is None:
            prepared = self._prepared(values)
        yield np.arange(len(values)), prepared

    def _prepared_on_device(self, values: np.ndarray) -> Any:
        """Return the images, prepared on the GPU; None if the CPU must prepare them."""
        if self._device is None or sum(value.nbytes for value in values) > self._max_gpu_bytes:
            return None
        with suppress(Exception):  # on the CPU, errors about rows are raised again
            return self._prepared(on_device(values, self._device))
        return None

    def _prepared(self, values: list[Any]) -> Any:
        return self._processor(images=values, return_tensors="pt", **self._options)


def preparing_device(
    processor: Any, options: dict[str, Any], model: torch.device
) -> torch.device | None:
    """Return the device that prepares images for a model, or None for the CPU. Removes the option
    `device`, which takes precedence over the device of the model."""
    option = options.pop("device", None)
    resample = options.get("resample", getattr(processor, "resample", None))
    # the library replaces LANCZOS on GPUs with another method
    if getattr(processor, "backend", None) != "torchvision" or resample == Resampling.LANCZOS:
        return None
    device = model if option is None else torch.device(option)
    return device if device.type == "cuda" else None


def on_device(values: np.ndarray, device: torch.device) -> list[torch.Tensor]:
    """Return images as tensors of their type on a device. The library reorders axes faster on a GPU
    than on the CPU. Images of one size are copied at once, as one array."""
    if values.dtype != object:
        return list(to_device(values, device))
    return [to_device(value, device) for value in values]


class AudioInput:
    """Converts audio, with or without its sampling rate in Hz."""

    def __init__(self, loader: ModelLoader, model: TransformersModel) -> None:
        self._extractor = loader.load_processor(transformers.AutoFeatureExtractor)
        check_options(model.options, feature_extractor_options(self._extractor))
        crop_reproducibly(self._extractor)
        padding = inspect.signature(type(self._extractor).__call__).parameters.get("padding")
        # some extractors already pad by default, to a length that their model requires
        pads = padding is not None and padding.default is False
        self._options = {**({"padding": True} if pads else {}), **model.options}
        masks = getattr(self._extractor, "return_attention_mask", False)
        self._padding_is_sound = pads and not self._options.get("return_attention_mask", masks)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        rate = self._extractor.sampling_rate
        values = audio_samples(inputs["audio"], inputs.get("sampling_rate"), rate)
        warn_of_cut_audio(values, self._extractor, self._options)
        for rows in self._groups(values):
            part = [values[row] for row in rows]
            result = self._extractor(part, sampling_rate=rate, return_tensors="pt", **self._options)
            yield rows, result

    def _groups(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Return groups of rows that are computed together. If the model would take padding for
        sound, the recordings of a group have the same length."""
        lengths = np.array([len(value) if self._padding_is_sound else 0 for value in values])
        return [np.flatnonzero(lengths == length) for length in np.unique(lengths)]


class VideoInput:
    """Converts videos. The model gets as many frames as it requires, evenly spaced over a video."""

    def __init__(self, loader: ModelLoader, model: TransformersModel, config: Any) -> None:
        self._options = {"input_data_format": "channels_last", **model.options}
        count = self._options.pop("num_frames", None) or getattr(config, "num_frames", None)
        if count is None:
            raise ModelLoad(
                f"options: '{model.source}' does not state its number of frames. Set num_frames"
            )
        self._count = int(count)
        self._processor = image_processor(loader, self._options)

    def __call__(self, inputs: Batch, _: object) -> Iterator[tuple[np.ndarray, Any]]:
        values = [self._frames(video) for video in check_videos(inputs["video"])]
        tensors = self._processor(values, return_tensors="pt", **self._options)
        yield np.arange(len(values)), tensors

    def _frames(self, video: np.ndarray | bytes) -> list[np.ndarray]:
        if isinstance(video, bytes):
            return frames_of(video, self._count)
        check_range([video], self._processor, self._options)
        return list(video[evenly_spaced(len(video), self._count)])


def image_processor(loader: ModelLoader, options: dict[str, Any]) -> Any:
    """Return the image processor of a model. Removes the options that select the implementation of
    the processor. Raises ModelLoad if the processor does not have one of the remaining options."""
    processor = loader.load_processor(
        transformers.AutoImageProcessor, **pop_loading_options(options)
    )
    check_options(options, image_processor_options(processor))
    return processor
