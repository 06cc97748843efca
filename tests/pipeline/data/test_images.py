"""Images, read and written: pixels equal those of Pillow, upright and without transparency."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from PIL.Image import Transpose

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.file_rows import GROUP_FILES
from batchinference.pipeline.input.prefetch import Prefetch
from batchinference.pipeline.media import images
from batchinference.pipeline.media.images import encode
from support.inputs.media_files import exif, png, quarters, saved
from support.inputs.packages import folder_of
from support.inputs.read_files import open_input, pixels_of, read_files, read_image
from support.jobs.command import wait_until

SKIMAGE = folder_of("skimage") / "data"
PHOTOGRAPHS = [
    *(SKIMAGE / name for name in ("chelsea.png", "camera.png", "logo.png", "rocket.jpg")),
    *(SKIMAGE / name for name in ("no_time_for_that_tiny.gif", "multipage.tif", "horse.png")),
    folder_of("sklearn") / "datasets" / "images" / "china.jpg",
]
by_name = pytest.mark.parametrize("path", PHOTOGRAPHS, ids=lambda path: path.name)


def pillow(path: Path, mode: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return the pixels that Pillow alone reads; `size` is height and width."""
    with Image.open(path) as image:
        converted = image.convert(mode)
        if size:
            converted = converted.resize(size[::-1], Image.Resampling.BILINEAR)
        return np.asarray(converted)


def picture(path: Path, colour: tuple[int, int, int] = (200, 10, 10), side: int = 8) -> Path:
    Image.new("RGB", (side, side), colour).save(path)
    return path


@by_name
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_pixels_equal_those_of_pillow(path: Path, mode: str) -> None:
    outcome = read_files("images", path, mode=mode)
    (pixels,) = outcome.column("image")
    expected = pillow(path, mode)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, expected)
    assert outcome.order == [(0, 0)]


@by_name
def test_size_is_height_and_width(path: Path) -> None:
    (pixels,) = read_files("images", path, size=[40, 60]).column("image")
    expected = pillow(path, "RGB", (40, 60))
    assert pixels.shape == (40, 60, 3)
    if path.suffix == ".jpg":  # the JPEG decoder already reduces the resolution
        assert np.abs(pixels.astype(int) - expected).mean() < 2
    else:
        assert np.array_equal(pixels, expected)


@pytest.mark.parametrize(
    ("times", "mean", "limit"),
    [(1.3, 0, 0), (3.9, 0, 0), (4, 1, 20), (7.9, 1, 20), (8, 1, 20), (15.9, 2, 40)],
)
def test_jpeg_is_decoded_smaller_if_it_is_much_larger(
    tmp_path: Path, times: float, mean: float, limit: int
) -> None:
    """Up to 4 times the size, all pixels are decoded. Above that, the differences are small."""
    photograph = Image.open(SKIMAGE / "rocket.jpg").crop((0, 0, 427, 427))
    side = int(64 * times)
    photograph.resize((2 * side, side)).save(tmp_path / "a.jpg", quality=92)
    (pixels,) = read_files("images", tmp_path, size=[48, 64]).column("image")
    difference = np.abs(pixels.astype(int) - pillow(tmp_path / "a.jpg", "RGB", (48, 64)))
    assert difference.mean() <= mean
    assert difference.max() <= limit
    assert difference.any() == (times >= 4)


def test_images_of_several_sizes_keep_them_or_get_one(tmp_path: Path) -> None:
    for side in (8, 12, 16):
        picture(tmp_path / f"{side:02d}.png", side=side)
    images = read_files("images", tmp_path).column("image")
    assert [image.shape for image in images] == [(8, 8, 3), (12, 12, 3), (16, 16, 3)]
    assert read_files("images", tmp_path, size=[16, 32]).column("image").shape == (3, 16, 32, 3)


def test_order_is_kept_over_groups_of_files(tmp_path: Path) -> None:
    count = 2 * GROUP_FILES + 5
    for number in range(count):
        picture(tmp_path / f"{number:03d}.png", (number, 0, 0))
    (tmp_path / "040.png").write_text("nothing")
    outcome = read_files("images", tmp_path, size=[1, 1], includePaths=True)
    expected = [number for number in range(count) if number != 40]
    assert outcome.order == [(number, 0) for number in expected]
    assert outcome.column("image")[:, 0, 0, 0].tolist() == expected
    assert [Path(path).stem for path in outcome.column("path")] == [
        f"{number:03d}" for number in expected
    ]


def test_more_threads_fetch_files_once_the_reader_waits() -> None:
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    both = Barrier(2, timeout=30)

    def fetch(number: int) -> int:
        if number in groups[1]:
            wait_until(lambda: prefetch.threads == 2, "the reader waits")
        if number in groups[3]:
            both.wait()
        return -number

    with Prefetch(fetch, threads=1) as prefetch:
        fetched = prefetch.fetched(groups)
        assert next(fetched) == (0, 0)
        assert prefetch.threads == 1  # the first group was not fetched ahead
        assert [*fetched] == [(number, -number) for number in range(1, 8)]


def test_reader_that_ends_waits_for_no_further_file() -> None:
    fetched = list[int]()

    def fetch(number: int) -> None:
        fetched.append(number)
        if number == 1:
            wait_until(prefetch._ended.is_set, "the reader has ended")

    with Prefetch(fetch, threads=1) as prefetch:
        assert next(prefetch.fetched([[0], [1, 2]])) == (0, None)
        wait_until(lambda: fetched == [0, 1], "the next group is fetched")
    assert fetched == [0, 1]


def test_missing_file_fails_the_job(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    opened = open_input("images", tmp_path)
    (tmp_path / "a.png").unlink()
    with pytest.raises(JobFailure, match=r"a\.png cannot be read: "):
        opened.read()


def test_out_of_memory_in_a_decoder_is_a_failed_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    monkeypatch.setattr(Image, "open", full)
    (error,) = read_files("images", tmp_path).bad.values()
    assert error.startswith("MemoryError: (test_images.py:")


RNG = np.random.default_rng(0)


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1), (4, 5, 3), (4, 5, 4)])
def test_pixels_are_written(shape: tuple[int, ...]) -> None:
    image = pixels(*shape)
    with Image.open(io.BytesIO(encode(image, "png"))) as result:
        assert np.array_equal(np.asarray(result), image.squeeze())
    with Image.open(io.BytesIO(encode(image, "webp"))) as result:
        assert result.format == "WEBP"


def test_encoded_bytes_are_kept_or_converted() -> None:
    png = encode(pixels(8, 8, 4), "png")
    assert encode(png, "png") == png
    with Image.open(io.BytesIO(encode(png, "jpeg"))) as image:
        assert (image.format, image.mode) == ("JPEG", "RGB")


@pytest.mark.parametrize(
    "value", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 7), np.uint8), "text", b"no image"]
)
def test_what_is_no_image_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not an image"):
        encode(value, "png")


PICTURE = Image.fromarray(quarters())
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
WRITERS = {
    "JPEG": {"quality": 95},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "TIFF with LZW": {"compression": "tiff_lzw"},
    "AVIF": {"quality": 95},
    "HEIF": {"quality": 95},
}


def write(folder: Path, writer: str, exif_data: bytes) -> Path:
    file_format = writer.split(maxsplit=1)[0]
    if file_format not in images.FORMATS:
        pytest.skip(f"{file_format} needs an optional library")
    path = folder / "a.any"
    path.write_bytes(saved(PICTURE, file_format, exif=exif_data, **WRITERS[writer]))
    return path


@pytest.mark.parametrize("writer", WRITERS)
def test_orientation_is_applied_or_ignored(tmp_path: Path, writer: str) -> None:
    for orientation, turn in TURNS.items():
        path = write(tmp_path, writer, exif(orientation))
        upright = read_files("images", path)
        stored = read_files("images", path, orientation="ignore")
        for outcome, expected in ((upright, PICTURE.transpose(turn)), (stored, PICTURE)):
            (pixels,) = outcome.column("image")
            assert pixels.shape[:2] == expected.size[::-1], orientation
            assert np.abs(pixels.astype(int) - np.asarray(expected)).mean() < 8, orientation
        assert (upright.warnings, stored.warnings) == ({(0, 0): {"Rotated": 0}}, {})


def test_size_is_that_of_the_upright_image(tmp_path: Path) -> None:
    path = write(tmp_path, "JPEG", exif(6))
    (pixels,) = read_files("images", path, size=[32, 24]).column("image")
    corners = [pixels[y, x].argmax() for y, x in ((2, 2), (2, 21), (29, 21))]
    assert (pixels.shape, corners) == ((32, 24, 3), [2, 0, 1])  # blue, red and green


@pytest.mark.parametrize("writer", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize(
    "tags",
    [
        b"no tags",
        b"II*\0\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x01\0\0\0zz\0\0\0\0\0\0",
        b"II*\0\x08\0\0\0\xff\xff\x12\x01\x03\0\x01\0\0\0\x09\0\0\0",
    ],
)
def test_invalid_exif_fails_no_row(tmp_path: Path, writer: str, tags: bytes) -> None:
    outcome = read_files("images", write(tmp_path, writer, b"Exif\0\0" + tags))
    assert outcome.column("image")[0].shape == quarters().shape
    assert (outcome.bad, outcome.warnings) == ({}, {})


def test_xmp_states_an_orientation(tmp_path: Path) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"></x:xmpmeta>'
    (tmp_path / "a.jpg").write_bytes(saved(PICTURE, "JPEG", xmp=xmp))
    outcome = read_files("images", tmp_path)
    assert outcome.column("image")[0].shape == (64, 48, 3)
    assert outcome.warnings == {(0, 0): {"Rotated": 0}}


def test_image_that_is_written_in_another_format_is_upright() -> None:
    content = saved(PICTURE, "PNG", exif=exif(6))
    with images.open_image(images.encode(content, "jpeg")) as image:
        assert image.size == (48, 64)


GRAY, RGB, PALETTE, GRAY_ALPHA, RGB_ALPHA = 0, 2, 3, 4, 6


def layered(hidden: tuple[int, int, int]) -> Image.Image:
    """Return a transparent picture with one visible pixel."""
    image = Image.new("RGBA", (8, 8), (*hidden, 0))
    image.putpixel((4, 4), (0, 0, 255, 255))
    return image


@pytest.mark.parametrize(
    ("background", "colour"),
    [("white", 255), ("black", 0), ("gray", 128), ("#336699", (51, 102, 153)), ("#369", None)],
)
def test_background_is_the_colour_behind(tmp_path: Path, background: str, colour: object) -> None:
    expected = np.broadcast_to((51, 102, 153) if colour is None else colour, 3)
    outcome = read_image(tmp_path, saved(layered((1, 2, 3)), "PNG"), background=background)
    assert pixels_of(outcome)[0, 0].tolist() == expected.tolist()


def test_half_transparent_pixels_equal_those_of_pillow(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 256, (16, 16, 4), dtype=np.uint8)
    layer = Image.fromarray(random)
    ground = Image.new("RGBA", layer.size, "#102030")
    expected = Image.alpha_composite(ground, layer)
    for mode in ("RGB", "L"):
        outcome = read_image(tmp_path, saved(layer, "PNG"), background="#102030", mode=mode)
        assert np.array_equal(pixels_of(outcome), np.asarray(expected.convert(mode)))


@pytest.mark.parametrize(
    ("content", "second"),
    [
        (png(2, 8, RGB, bytes([1, 2, 3, 4, 5, 6]), struct.pack(">3H", 1, 2, 3)), [4, 5, 6]),
        (png(2, 8, GRAY, bytes([7, 9]), struct.pack(">H", 7)), [9] * 3),
        (png(2, 4, GRAY, b"\x3f", struct.pack(">H", 3)), [255] * 3),
        (png(2, 2, GRAY, bytes([0b0110_0000]), struct.pack(">H", 1)), [170] * 3),
        (png(2, 1, GRAY, bytes([0b0100_0000]), struct.pack(">H", 0)), [255] * 3),
        (png(2, 16, GRAY, struct.pack(">2H", 40000, 65535), struct.pack(">H", 40000)), [255] * 3),
        (
            png(2, 16, RGB, struct.pack(">6H", 65535, 513, 9, 65535, 514, 9),
                struct.pack(">3H", 65535, 513, 9)),
            [255, 2, 0],
        ),
        (png(2, 8, GRAY_ALPHA, bytes([200, 0, 100, 255])), [100] * 3),
        (png(2, 16, GRAY_ALPHA, struct.pack(">4H", 9, 0, 65535, 65535)), [255] * 3),
        (png(2, 16, RGB_ALPHA, struct.pack(">8H", 9, 9, 9, 0, 65535, 0, 0, 65535)), [255, 0, 0]),
    ],
    ids=["RGB", "gray", "4 bits", "2 bits", "1 bit", "16 bits", "48 bits", "LA", "LA 32", "RGBA"],
)  # fmt: skip
def test_every_kind_of_transparency_in_png_files(
    tmp_path: Path, content: bytes, second: list[int]
) -> None:
    outcome = read_image(tmp_path, content, background="#00ff7f")
    assert pixels_of(outcome)[0].tolist() == [[0, 255, 127], second]
    assert "Composited" in outcome.warnings[0, 0]


def test_gray_that_is_multiplied_by_its_opacity(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    values = np.array([[[64, 128], [200, 255]]], np.uint8)
    tifffile.imwrite(buffer, values, photometric="minisblack", extrasamples=["assocalpha"])
    outcome = read_image(tmp_path, buffer.getvalue(), background="black", mode="L")
    assert pixels_of(outcome).tolist() == [[64, 200]]


@pytest.mark.parametrize("given", ["pixels", "bytes"])
def test_image_that_is_written_as_jpeg_is_drawn_over_white(given: str) -> None:
    layer = layered((240, 30, 10))
    value = np.asarray(layer) if given == "pixels" else saved(layer, "PNG")
    with Image.open(io.BytesIO(images.encode(value, "jpeg"))) as image:
        assert min(image.getpixel((0, 0))) > 250
