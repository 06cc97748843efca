"""Audio and video for transformers models, and images for pipelines."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch
import transformers
from PIL.Image import Resampling

from batchinference.pipeline.row_warnings import collect_warnings
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.transformers import media_inputs
from batchinference.pipeline.runtimes.transformers.loading import ModelLoader
from batchinference.pipeline.runtimes.transformers.media_inputs import (
    ImageInput,
    audio_samples,
    check_range,
    pillow_images,
    preparing_device,
)
from plugins.messages import Messages
from support.inputs.photographs import photograph
from support.models.replicas import model_of
from support.models.run_transformers import alike, loaded, objects, run
from support.outputs.row_warnings import plain, run_with_warnings

Tiny = Callable[[str], str]
RATE = 16000
VIDEO = "video-classification"


def tone(seconds: float, rate: int, pitch: float = 440) -> np.ndarray:
    times = np.arange(round(seconds * rate)) / rate
    return np.sin(2 * np.pi * pitch * times, dtype=np.float32) * np.float32(0.5)


def film(frames: int) -> np.ndarray:
    """Return the frames of a photograph that becomes brighter: frames x height x width x 3."""
    image = photograph("chelsea")[:48:2, :64:2].astype(np.float32)
    return np.stack([(image * (at + 1) / frames).astype(np.uint8) for at in range(frames)])


def encoded(frames: np.ndarray) -> bytes:
    """Return the content of a losslessly encoded video file."""
    buffer = BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=Fraction(10))
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "bgr0"
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def test_video_is_classified_by_evenly_spaced_frames(tiny: Tiny) -> None:
    source = tiny("video_classifier")
    films = [film(4), film(7), film(16)]
    actual = run(loaded(VIDEO, source, ["video"], topK=3), {"video": films})
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    model = transformers.AutoModelForVideoClassification.from_pretrained(source).eval()
    for result, frames in zip(actual, films, strict=True):
        chosen = [0, *{4: (1, 2), 7: (2, 4), 16: (5, 10)}[len(frames)], len(frames) - 1]
        pixels = processor([list(frames[chosen])], return_tensors="pt")
        with torch.inference_mode():
            scores = model(**pixels).logits.softmax(dim=-1)[0]
        best = scores.argsort(descending=True).tolist()
        expected = [{"label": model.config.id2label[at], "score": float(scores[at])} for at in best]
        assert alike(result, expected)
    assert len({result[0]["score"] for result in actual}) == 3


def test_num_frames_is_an_option_and_files_are_decoded(tiny: Tiny) -> None:
    source, frames = tiny("video_classifier"), film(9)
    runtime = loaded(VIDEO, source, ["video"])
    plain = run(runtime, {"video": [frames]})
    assert alike(run(runtime, {"video": [encoded(frames)]}), plain)
    counted = loaded(VIDEO, source, ["video"], options={"num_frames": 4, "backend": "pil"})
    assert alike(run(counted, {"video": [frames]}), plain, tolerance=0.01)


def test_other_values_than_video_are_rejected(tiny: Tiny) -> None:
    runtime = loaded(VIDEO, tiny("video_classifier"), ["video"])
    for value in (b"no film", b"", None, "film.mp4", np.zeros((4, 4, 3))):
        with pytest.raises((TypeError, ValueError, av.FFmpegError)):
            runtime({"video": objects([value])})


def test_audio_at_another_rate_is_resampled() -> None:
    middle = slice(1000, 7000)
    for rate in (8000, 22050, 44100):
        values = objects([tone(0.5, rate), tone(0.25, RATE)])
        low, same = audio_samples(values, np.array([rate, RATE]), RATE)
        assert np.array_equal(same, values[1]), rate
        assert abs(len(low) - RATE // 2) < 100, rate
        assert np.abs(low[middle] - tone(0.5, RATE)[middle]).max() < 0.02, rate


def test_channels_are_mixed_and_pcm_is_scaled() -> None:
    values = [
        np.array([[0.5, 0.5], [-0.5, 1.0]], np.float64),
        np.array([-32768, 0, 16384], np.int16),
        np.array([0, 128, 192], np.uint8),
    ]
    result = audio_samples(objects(values), None, RATE)
    assert [sound.tolist() for sound in result] == [[0.0, 0.75], [-1.0, 0.0, 0.5], [-1.0, 0.0, 0.5]]
    assert all(sound.dtype == np.float32 for sound in result)


def test_sampling_rate_comes_from_a_column(tiny: Tiny) -> None:
    source = tiny("audio_classifier")
    plain = run(loaded("audio-classification", source, ["audio"]), {"audio": [tone(0.2, RATE)]})
    rated = loaded("audio-classification", source, ["audio", "sampling_rate"])
    assert alike(run(rated, {"audio": [tone(0.2, RATE)], "sampling_rate": [RATE]}), plain)
    other = run(rated, {"audio": [tone(0.2, 2 * RATE)], "sampling_rate": [2 * RATE]})
    assert alike(other, plain, tolerance=0.05)
    with pytest.raises(TypeError, match="16000 Hz, got 96"):
        run(rated, {"audio": [tone(0.2, RATE)], "sampling_rate": [96]})


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ("audio-classification", "audio_classifier"),
        ("automatic-speech-recognition", "speech_recognizer"),
    ],
)
def test_other_values_than_audio_are_rejected(
    tiny: Tiny, task: str, model: str, messages: Messages
) -> None:
    runtime = loaded(task, tiny(model), ["audio"])
    arrays = [np.zeros(0, np.float32), np.zeros((1, 2, 3)), np.zeros((9, 2)), np.array(["a"])]
    for value in (None, "speech.wav", b"RIFF", *arrays):
        with messages.raises(TypeError):
            runtime({"audio": objects([value])})


def test_images_of_one_or_four_channels_become_rgb() -> None:
    image = photograph("astronaut")[:8, :8]
    gray = image.mean(axis=2, keepdims=True).astype(np.uint8)
    opaque = np.concatenate([image, np.full((8, 8, 1), 255, np.uint8)], axis=2)
    expected = [image, np.repeat(gray, 3, axis=2), image]
    for result, wanted in zip(pillow_images(objects([image, gray, opaque])), expected, strict=True):
        assert np.array_equal(np.asarray(result), wanted)


def test_transparent_pixels_are_drawn_over_white_with_a_warning() -> None:
    opaque = np.full((2, 2, 4), 255, np.uint8)
    hidden = np.array([[[255, 0, 0, 0], [9, 8, 7, 255]]], np.uint8)
    gray = np.array([[[9, 0], [8, 255]]], np.uint8)
    with collect_warnings() as warnings:
        _, *result = map(np.asarray, pillow_images(objects([opaque, hidden, gray])))
    assert [pixels.tolist() for pixels in result] == [
        [[[255] * 3, [9, 8, 7]]],
        [[[255] * 3, [8] * 3]],
    ]
    assert plain(warnings) == [(1, "Composited", 0), (2, "Composited", 0)]


def test_transparent_image_of_a_prompt_warns_about_its_row(tiny: Tiny) -> None:
    runtime = loaded(
        "image-text-to-text", tiny("captioner"), ["image"], images=["image"],
        sampling={"max_new_tokens": 2},
    )  # fmt: skip
    images = objects([np.full((32, 32, 4), alpha, np.uint8) for alpha in (255, 0)])
    _, warnings = run_with_warnings(runtime, {"image": images})
    assert [one for one in warnings if one[1] != "AnswerCut"] == [(1, "Composited", 0)]


def test_dark_pixels_are_of_another_scale_only_with_fractions() -> None:
    processor = SimpleNamespace(do_rescale=True, rescale_factor=1 / 255)
    dark = np.float32([[[0, 1, 9]]])
    for pixels in (dark > 9, dark % 2, dark * 28, dark * 20 - 0.5, dark.astype(np.int64)):
        check_range([pixels], processor, {})
    integers = (dark.astype(np.int64) - 1, dark.astype(np.uint16) * 50)
    for pixels in (dark / 9, dark / 9 - 1, -dark / 4 - 0.1, dark - 0.001, dark > 0, *integers):
        with pytest.raises(TypeError, match="round a dark"):
            check_range([pixels], processor, {})


def test_pixels_that_would_be_divided_twice_are_refused(vit: str) -> None:
    image, task = photograph("astronaut")[:32, :32], "image-feature-extraction"
    *expected, same = run(loaded(task, vit, ["image"]), {"image": [image, image - 0.01]})
    assert alike([same], expected, 0.01)
    for pixels, options in (
        (image / 255, {"do_rescale": False}),
        (image.astype(np.uint16) * 257, {"rescale_factor": 1 / 65535}),
        (image / 127.5 - 1, None),
        (image > 127, None),
    ):
        with pytest.raises(TypeError, match=r"expected pixels from 0 to 255, .*do_rescale"):
            run(loaded(task, vit, ["image"]), {"image": [pixels]})
        if options is not None:
            runtime = loaded(task, vit, ["image"], options=options)
            assert alike(run(runtime, {"image": [pixels]}), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int32, bool])
def test_pixels_of_another_type_are_not_clipped(dtype: Any) -> None:
    for channels in (1, 3):
        with pytest.raises(TypeError, match=r"uint8.*mode: RGB"):
            pillow_images([np.ones((2, 2, channels), dtype)])


def test_audio_that_options_cut_is_counted(tiny: Tiny) -> None:
    columns = {"audio": [tone(1.0, RATE), tone(3.5, RATE)]}
    for options, cut in (
        ({}, []),
        ({"max_length": RATE}, []),
        ({"truncation": True, "max_length": RATE}, [(1, "AudioCut", 3)]),
        ({"truncation": True, "max_length": RATE, "pad_to_multiple_of": 2 * RATE},
         [(1, "AudioCut", 2)]),
    ):  # fmt: skip
        runtime = loaded(
            "audio-classification", tiny("audio_classifier"), ["audio"], options=options
        )
        assert run_with_warnings(runtime, columns)[1] == cut, options


def test_pipeline_rejects_other_values_than_images(tiny: Tiny, messages: Messages) -> None:
    runtime = loaded("object-detection", tiny("object_detector"), ["image"])
    for value in ("/etc/hostname", "http://localhost:1/a.png", b"\x89PNG", None):
        with messages.raises(TypeError):
            runtime({"image": objects([value])})


class TestDevices:
    """A `meta` device takes the place of a GPU: its tensors have a shape, and no values."""

    SIZES = (
        np.zeros((2, 40, 50, 3), np.uint8),
        objects([np.zeros((40, 50, 3), np.uint8), np.zeros((60, 50, 3), np.uint8)]),
    )

    def devices(self, source: str, *max_gpu_bytes: int) -> set[str]:
        """Return the devices that prepare images for a model on a `meta` device."""
        fields = {"task": "image-feature-extraction", "source": source}
        model: Any = model_of("transformers", ("image",), **fields)
        prepare = ImageInput(ModelLoader(model, Device()), model, *max_gpu_bytes)
        prepare._device = torch.device("meta")
        batches = [prepare({"image": images}, None) for images in self.SIZES]
        pixel_values = [prepared["pixel_values"] for ((_, prepared),) in batches]
        assert [len(pixels) for pixels in pixel_values] == [2, 2]
        return {pixels.device.type for pixels in pixel_values}

    def test_images_are_prepared_on_the_device_of_the_model(self, vit: str) -> None:
        assert self.devices(vit) == {"meta"}

    def test_large_images_are_prepared_on_the_cpu(self, vit: str) -> None:
        assert self.devices(vit, 2 * 40 * 50 * 3 - 1) == {"cpu"}

    def test_cpu_prepares_what_fails_on_the_device(
        self, vit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(media_inputs, "on_device", fail)
        assert self.devices(vit) == {"cpu"}

    def test_only_gpus_prepare_and_only_as_the_cpu_would(self) -> None:
        cases: dict[str, tuple[str, Any, dict[str, Any], str | None]] = {
            "a GPU": ("cuda:0", Resampling.BICUBIC, {}, "cuda:0"),
            "the CPU": ("cpu", Resampling.BICUBIC, {}, None),
            "another device": ("xpu:0", Resampling.BICUBIC, {}, None),
            "the CPU is chosen": ("cuda:0", Resampling.BICUBIC, {"device": "cpu"}, None),
            "a GPU is chosen": ("cpu", Resampling.BICUBIC, {"device": "cuda:1"}, "cuda:1"),
            "a method that GPUs lack": ("cuda:0", Resampling.LANCZOS, {}, None),
            "a chosen method": ("cuda:0", Resampling.LANCZOS, {"resample": 2}, "cuda:0"),
            "a chosen method that GPUs lack": ("cuda:0", None, {"resample": 1}, None),
        }
        for case, (model, resample, options, expected) in cases.items():
            processor = SimpleNamespace(backend="torchvision", resample=resample)
            device = preparing_device(processor, options, torch.device(model))
            assert device == (expected and torch.device(expected)), case
            assert "device" not in options, case
        pillow = SimpleNamespace(backend="pil")
        assert preparing_device(pillow, {"device": "cuda"}, torch.device("cuda")) is None


def test_texts_without_tokens_become_integers(bert: str) -> None:
    """Some tokenizers have no special tokens, so that an empty text has no tokens."""
    options = {"add_special_tokens": False}
    prepare = loaded("feature-extraction", bert, ["text"], options=options)._prepare
    ((_, tokens),) = prepare({"text": objects(["", ""])}, None)
    assert {(tuple(t.shape), t.dtype) for t in tokens.values()} == {((2, 0), torch.int64)}
