"""Images with more than 8 bits per channel, and with other kinds of pixels."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import tifffile
from PIL import Image

from support.inputs.media_files import exif, saved
from support.inputs.photographs import photograph
from support.inputs.read_files import pixels_of, read_image

PHOTOGRAPH = photograph("chelsea")[:60, :80]


def tiff(values: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def ramp(last: int, dtype: str = "uint16") -> np.ndarray:
    """Return a picture whose values increase to `last`."""
    return np.linspace(0, last, 64).reshape(8, 8).astype(dtype)


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("file", ["PNG", "TIFF", "big-endian TIFF"])
def test_image_that_uses_few_bits_of_16_is_not_black(tmp_path: Path, bits: int, file: str) -> None:
    values = ramp((1 << bits) - 1)
    content = {
        "PNG": lambda: saved(Image.fromarray(values), "PNG"),
        "TIFF": lambda: saved(Image.fromarray(values), "TIFF"),
        "big-endian TIFF": lambda: tiff(values, byteorder=">"),
    }[file]()
    outcome = read_image(tmp_path, content, mode="L")
    assert np.array_equal(pixels_of(outcome), values >> (bits - 8))
    assert outcome.warnings == {(0, 0): {"DepthReduced": 0, "RangeAssumed": 0}}


def test_image_with_8_bits_in_16_keeps_its_values(tmp_path: Path) -> None:
    outcome = read_image(tmp_path, tiff(ramp(200)), mode="L")
    assert np.array_equal(pixels_of(outcome), ramp(200))
    assert outcome.warnings == {(0, 0): {"RangeAssumed": 0}}


def test_photograph_with_16_bits_equals_that_with_8_bits(tmp_path: Path) -> None:
    gray = np.asarray(Image.fromarray(PHOTOGRAPH).convert("L"))
    for values in (gray.astype(np.uint16) * 257, gray.astype(np.uint16) << 8):
        outcome = read_image(tmp_path, saved(Image.fromarray(values), "PNG"), mode="L")
        assert np.array_equal(pixels_of(outcome), gray)
        assert outcome.warnings == {(0, 0): {"DepthReduced": 0}}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byteorder": ">"},
        {"compression": "zlib"},
        {"planarconfig": "separate"},
        {"planarconfig": "separate", "byteorder": ">"},
        {"rowsperstrip": 7},
        {"tile": (16, 16)},
    ],
)
@pytest.mark.parametrize("bits", [12, 16])
def test_colours_with_12_and_16_bits(tmp_path: Path, options: dict[str, Any], bits: int) -> None:
    values = PHOTOGRAPH.astype(np.uint16) << (bits - 8)
    stored = values.transpose(2, 0, 1) if "planarconfig" in options else values
    outcome = read_image(tmp_path, tiff(stored, photometric="rgb", **options))
    assert np.array_equal(pixels_of(outcome), PHOTOGRAPH)


def test_separate_compressed_channels_are_read_or_refused(tmp_path: Path) -> None:
    for bits in (12, 16):
        values = (PHOTOGRAPH.astype(np.uint16) << (bits - 8)).transpose(2, 0, 1)
        content = tiff(values, photometric="rgb", planarconfig="separate", compression="zlib")
        outcome = read_image(tmp_path, content)
        if bits == 16:
            assert np.array_equal(pixels_of(outcome), PHOTOGRAPH)
        else:
            assert "high bytes" in outcome.bad[0, 0]


def test_range_states_black_and_white(tmp_path: Path) -> None:
    content = tiff(np.array([[50, 100, 600, 1100, 2000]], np.uint16))
    outcome = read_image(tmp_path, content, mode="L", range=[100, 1100])
    assert pixels_of(outcome).tolist() == [[0, 0, 128, 255, 255]]
    assert outcome.warnings == {(0, 0): {"OutOfRange": 0}}
    within = read_image(tmp_path, content, mode="L", range=[0, 4000])
    assert (pixels_of(within).tolist(), within.warnings) == ([[3, 6, 38, 70, 128]], {})


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        (np.linspace(-1000, 3000, 64).astype(np.int16), [-1000, 3000]),
        (np.linspace(0, 100_000, 64).astype(np.uint32), [0, 100_000]),
        (np.linspace(0, 1, 64).astype(np.float32), [0, 1]),
    ],
)
def test_values_of_unknown_range_need_the_option(
    tmp_path: Path, values: np.ndarray, ends: list[float]
) -> None:
    content = tiff(values.reshape(8, 8))
    for mode in ("L", "I;16"):
        (error,) = read_image(tmp_path, content, mode=mode).bad.values()
        assert "range" in error
        pixels = pixels_of(read_image(tmp_path, content, mode=mode, range=ends))
        white = 255 if mode == "L" else 65535
        assert np.abs(pixels - np.linspace(0, white, 64).reshape(8, 8)).max() <= white / 100


def test_values_that_are_no_numbers_are_black(tmp_path: Path) -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 0.5]], np.float32)
    outcome = read_image(tmp_path, tiff(values), mode="L", range=[0, 1])
    assert pixels_of(outcome).tolist() == [[0, 255, 0, 128]]
    assert outcome.warnings == {(0, 0): {"OutOfRange": 0}}


def test_zero_is_white_if_the_file_says_so(tmp_path: Path) -> None:
    for options in ({}, {"compression": "zlib"}):
        content = tiff(65535 - ramp(65535), photometric="miniswhite", **options)
        assert np.array_equal(pixels_of(read_image(tmp_path, content, mode="L")), ramp(65535) >> 8)
        for ends in (None, [0, 65535]):
            pixels = pixels_of(read_image(tmp_path, content, mode="I;16", range=ends))
            assert np.array_equal(pixels, ramp(65535))


def test_numbers_of_tiff_files_keep_their_sign(tmp_path: Path) -> None:
    for values in (
        np.array([[-100, 0, 100]], np.int8),
        np.array([[0, 1 << 31, (1 << 32) - 1]], np.uint32),
    ):
        (error,) = read_image(tmp_path, tiff(values), mode="L").bad.values()
        assert "range" in error
        ends = [float(values.min()), float(values.max())]
        outcome = read_image(tmp_path, tiff(values), mode="L", range=ends)
        assert (pixels_of(outcome).tolist(), outcome.warnings) == ([[0, 128, 255]], {})


def jpeg2000(values: np.ndarray) -> bytes:
    return encoded_picture(values, "jpeg2000", "rgb48le", "image2pipe")


def avif(values: np.ndarray) -> bytes:
    return encoded_picture(values, "libsvtav1", "yuv420p10le", "avif")


def encoded_picture(values: np.ndarray, codec: str, pixel_format: str, container: str) -> bytes:
    """Return a picture with 16 bits per channel as FFmpeg writes it."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=1)
        stream.height, stream.width = values.shape[:2]
        stream.pix_fmt = pixel_format
        frame = av.VideoFrame.from_ndarray(values, "rgb48le").reformat(format=pixel_format)
        output.mux([*stream.encode(frame), *stream.encode()])
    return buffer.getvalue()


def heic(values: np.ndarray) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    shape = (values.shape[1], values.shape[0])
    buffer = io.BytesIO()
    pillow_heif.encode("RGB;16", shape, values.tobytes(), buffer)
    return buffer.getvalue()


OPAQUE = np.full((64, 64), 65535, np.uint16)
DEEP: dict[str, Callable[[np.ndarray], bytes]] = {
    "JPEG 2000": jpeg2000,
    "AVIF": avif,
    "HEIC": heic,
    "plain PPM": lambda values: b"P3 64 64 65535\n" + b" ".join(b"%d" % v for v in values.flat),
    "TIFF, premultiplied": lambda values: tiff(
        np.dstack((values, OPAQUE)), photometric="rgb", extrasamples=["assocalpha"]
    ),
    "TIFF, CMYK": lambda values: tiff(
        np.dstack((65535 - values, np.zeros((64, 64), np.uint16))), photometric="separated"
    ),
}
"""Files with more than 8 bits per channel, of which Pillow gives 8."""


@pytest.mark.parametrize("kind", DEEP)
def test_reduced_depth_is_counted_and_fails_options_that_need_it(tmp_path: Path, kind: str) -> None:
    expected = photograph("chelsea")[:64, :64]
    content = DEEP[kind](expected.astype(np.uint16) * 257)
    outcome = read_image(tmp_path, content)
    assert np.abs(pixels_of(outcome).astype(int) - expected).mean() < 8
    assert outcome.warnings == {(0, 0): {"DepthReduced": 0}}
    for option, value in (("range", [0, 1000]), ("mode", "I;16")):
        (error,) = read_image(tmp_path, content, **{option: value}).bad.values()
        assert option in error
        assert "only 8 bits" in error


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "empty"),
        (b"no image", "first bytes"),
        (
            saved(Image.new("RGB", (8, 8)), "PNG").replace(b"IDAT", b"IDAT\xff"),
            "broken data stream",
        ),
        (tiff(np.zeros((4, 4), np.float64)), "sample format"),
    ],
)
def test_unknown_image_is_a_failed_row_with_its_cause(
    tmp_path: Path, content: bytes, cause: str
) -> None:
    (error,) = read_image(tmp_path, content).bad.values()
    assert cause in error
    assert "BytesIO" not in error


def test_depth_of_a_cut_image_is_reduced(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 65536, (200, 200, 3), np.uint16)
    content = tiff(random, photometric="rgb")
    cut = content[: len(content) * 3 // 4]
    outcome = read_image(tmp_path, cut, truncated="accept")
    assert outcome.warnings == {(0, 0): {"DepthReduced": 0, "Truncated": 0}}
    (error,) = read_image(tmp_path, cut, truncated="accept", range=[0, 1000]).bad.values()
    assert "only 8 bits" in error


def test_16_bits_for_all_channels_are_not_deep(tmp_path: Path) -> None:
    header = struct.pack("<IiiHHIIiiII3I", 40, 2, 1, 1, 16, 3, 4, 0, 0, 0, 0, 0xF800, 0x7E0, 0x1F)
    offset = 14 + len(header)
    pixels = struct.pack("<2H", 0xF800, 0x1F)
    content = struct.pack("<2sIHHI", b"BM", offset + 4, 0, 0, offset) + header + pixels
    outcome = read_image(tmp_path, content)
    assert (pixels_of(outcome).tolist(), outcome.warnings) == ([[[255, 0, 0], [0, 0, 255]]], {})


@pytest.mark.parametrize("magic", [b"P5", b"P6"])
def test_ppm_files_state_the_value_of_white(tmp_path: Path, magic: bytes) -> None:
    header = b"%s\n%d 1\n4095\n" % (magic, 1 if magic == b"P6" else 3)
    content = header + np.array([0, 2048, 4095], ">u2").tobytes()
    outcome = read_image(tmp_path, content, mode="RGB" if magic == b"P6" else "L")
    assert pixels_of(outcome).ravel().tolist() == [0, 128, 255]
    assert outcome.warnings == {(0, 0): {"DepthReduced": 0}}
    stated = read_image(tmp_path, content, mode="RGB" if magic == b"P6" else "L", range=[0, 2048])
    assert pixels_of(stated).ravel().tolist() == [0, 255, 255]


def test_mode_of_16_bits_keeps_the_values(tmp_path: Path) -> None:
    for last in (4095, 65535):
        outcome = read_image(tmp_path, tiff(ramp(last)), mode="I;16")
        assert pixels_of(outcome).dtype == np.uint16
        assert np.array_equal(pixels_of(outcome), ramp(last))
        assert outcome.warnings == {}
    scaled = pixels_of(read_image(tmp_path, tiff(ramp(4095)), mode="I;16", range=[0, 4095]))
    assert np.abs(scaled.astype(int) - ramp(65535)).max() <= 16


def test_mode_of_16_bits_converts_other_images(tmp_path: Path) -> None:
    gray = Image.fromarray(PHOTOGRAPH).convert("L")
    expected = np.asarray(gray).astype(np.uint16) * 257
    for image in (Image.fromarray(PHOTOGRAPH), gray):
        assert np.array_equal(
            pixels_of(read_image(tmp_path, saved(image, "PNG"), mode="I;16")), expected
        )
    turned = saved(Image.fromarray(ramp(4095)), "PNG", exif=exif(6))
    (small,) = read_image(tmp_path, turned, mode="I;16", size=[4, 2]).column("image")
    assert (small.shape, small.dtype) == ((4, 2), np.uint16)
    assert small[0, 0] > small[0, 1]  # upright, the values increase from right to left
    colours = tiff(PHOTOGRAPH.astype(np.uint16) * 257, photometric="rgb")
    pixels = pixels_of(read_image(tmp_path, colours, mode="I;16"))
    assert np.abs(pixels.astype(int) - expected).max() <= 257


@pytest.mark.parametrize(
    ("image", "file_format", "expected"),
    [
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "JPEG", (255, 0, 0)),
        (Image.new("CMYK", (2, 2), (0, 255, 255, 0)), "TIFF", (255, 0, 0)),
        (Image.new("YCbCr", (2, 2), (76, 85, 255)), "TIFF", (254, 0, 0)),
        (Image.new("LAB", (2, 2), (136, 208, 195)), "TIFF", (255, 0, 0)),
        (Image.new("1", (2, 2), 1), "PNG", (255, 255, 255)),
        (Image.new("1", (2, 2), 1), "TIFF", (255, 255, 255)),
    ],
)
def test_other_colour_models_become_rgb(
    tmp_path: Path, image: Image.Image, file_format: str, expected: tuple[int, ...]
) -> None:
    pixels = pixels_of(read_image(tmp_path, saved(image, file_format)))
    assert np.abs(pixels[0, 0].astype(int) - expected).max() <= 12
