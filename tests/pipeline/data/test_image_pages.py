"""Pages of scans and frames of animations, and images whose end is missing."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from batchinference.pipeline.media import images
from support.inputs.media_files import exif, saved
from support.inputs.photographs import photograph
from support.inputs.read_files import Outcome, open_input, read_image
from support.inputs.read_files import read_image as read

COLOURS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}
WRITERS: dict[str, dict[str, Any]] = {
    "TIFF": {},
    "TIFF with LZW": {"compression": "tiff_lzw"},
    "GIF": {},
    "PNG": {},
    "WEBP": {"lossless": True},
    "AVIF": {},
    "MPO": {},
    "HEIF": {},
}

PAGE, SMALLER, MASK = 0, 1, 4
"""Types of images in TIFF files."""


def pages(writer: str = "TIFF", *others: Image.Image) -> bytes:
    """Return a file of three pages in several colours, and of other pages."""
    file_format = writer.split(maxsplit=1)[0]
    if file_format not in (*images.FORMATS, "MPO"):
        pytest.skip(f"{file_format} needs an optional library")
    first, *rest = (Image.new("RGB", (40, 30), colour) for colour in COLOURS)
    return saved(
        first, file_format, save_all=True, append_images=[*rest, *others], **WRITERS[writer]
    )


def colours(outcome: Outcome) -> list[str]:
    """Return the names of the nearest colours of the pages."""
    return [
        min(COLOURS, key=lambda name: np.abs(page[0, 0].astype(int) - COLOURS[name]).sum())
        for page in outcome.column("image")
    ]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("size", [None, [8, 9]])
def test_each_page_is_a_row_or_counted(tmp_path: Path, writer: str, size: list[int] | None) -> None:
    outcome = read_image(tmp_path, pages(writer), pages="all", size=size)
    assert colours(outcome) == list(COLOURS)
    assert outcome.column("page_index").tolist() == [0, 1, 2]
    assert outcome.column("image")[0].shape == (*(size or (30, 40)), 3)
    assert (outcome.order, outcome.ends) == ([(0, 0), (0, 1), (0, 2)], {0: 3})
    assert (outcome.bad, outcome.warnings) == ({}, {})
    first = read_image(tmp_path, pages(writer), size=size)
    assert (colours(first), first.order) == (["red"], [(0, 0)])
    assert first.warnings == {(0, 0): {"PagesIgnored": 2}}


def test_rows_of_several_files_are_pages(tmp_path: Path) -> None:
    for name in ("a", "c"):
        (tmp_path / f"{name}.tif").write_bytes(pages())
    (tmp_path / "b.tif").write_bytes(b"no image")
    opened = open_input("images", tmp_path, pages="all", includePaths=True)
    assert opened.given.columns() == ["image", "page_index", "path"]
    count = opened.given.count()
    assert count is not None
    assert (count.rows, count.estimated) == (7, True)
    outcome = opened.read()
    assert outcome.order == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (2, 2)]
    assert list(outcome.bad) == [(1, 0)]


def test_page_that_cannot_be_decoded_fails_its_row(tmp_path: Path) -> None:
    content = pages("TIFF", Image.new("RGB", (60, 50)), Image.new("F", (4, 4)))
    outcome = read_image(tmp_path, content, pages="all", maxPixels=1500)
    assert colours(outcome) == list(COLOURS)
    assert "60 x 50" in outcome.bad[0, 3]
    assert "range" in outcome.bad[0, 4]
    accepting = read_image(tmp_path, content, pages="all", maxPixels=1500, truncated="accept")
    assert accepting.bad == outcome.bad  # these pages are not damaged


def test_frames_of_animations_are_drawn_over_earlier_ones(tmp_path: Path) -> None:
    first, second = (Image.new("RGBA", (20, 20), (0, 0, 0, 0)) for _ in range(2))
    first.paste((255, 0, 0, 255), (0, 0, 10, 10))
    second.paste((0, 255, 0, 255), (10, 10, 20, 20))
    for disposal, corner in ((1, [255, 0, 0]), (2, [255, 255, 255])):
        content = saved(first, "GIF", save_all=True, append_images=[second], disposal=disposal)
        outcome = read_image(tmp_path, content, pages="all")
        _, frame = outcome.column("image")
        assert frame[0, 0].tolist() == corner
        assert frame[15, 15].tolist() == [0, 255, 0]
        assert outcome.warnings == {(0, page): {"Composited": 0} for page in (0, 1)}


def pyramid(*types: int) -> bytes:
    """Return a TIFF file whose images have these types, and are brighter and brighter."""
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        for number, kind in enumerate(types):
            if kind == MASK:
                writer.write(np.zeros((32, 32), bool), photometric="miniswhite", subfiletype=kind)
                continue
            values = np.full((32, 32, 3), 50 * number, np.uint8)
            writer.write(values, photometric="rgb", subfiletype=kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("types", "first", "others"), [((PAGE, SMALLER, PAGE, MASK), 0, 1), ((SMALLER, PAGE), 50, 0)]
)
def test_smaller_versions_and_masks_are_no_pages(
    tmp_path: Path, types: tuple[int, ...], first: int, others: int
) -> None:
    outcome = read_image(tmp_path, pyramid(*types))
    assert outcome.column("image")[0][0, 0, 0] == first
    assert outcome.warnings == ({(0, 0): {"PagesIgnored": others}} if others else {})
    assert len(read_image(tmp_path, pyramid(*types), pages="all").order) == 1 + others


def test_thumbnail_is_not_read_instead_of_its_photograph(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(np.zeros((8, 8), np.uint8), subfiletype=SMALLER, subifds=1)
        writer.write(np.ones((64, 64), np.uint8))
    for kept in ("first", "all"):
        (error,) = read_image(tmp_path, buffer.getvalue(), pages=kept).bad.values()
        assert "thumbnail" in error


@pytest.mark.parametrize("kept", ["first", "all"])
@pytest.mark.parametrize(
    "image",
    [b"P4 9 1\n12", b"P5\n# P5 1 1\n2 1 255\n12", b"P5 2 1 4095\n1234", b"P6 2 1 255\n123456"],
)
def test_further_images_of_ppm_files_are_counted(tmp_path: Path, image: bytes, kept: str) -> None:
    outcome = read_image(tmp_path, image * 3, pages=kept)
    assert outcome.warnings[0, 0]["PagesIgnored"] == 2
    for complete in (image, image + b"P5 is no image"):
        assert "PagesIgnored" not in str(read_image(tmp_path, complete, pages=kept).warnings)


def test_previews_in_mpo_files_are_no_pages(tmp_path: Path) -> None:
    content = bytearray(pages("MPO"))
    index = content.find(b"MPF\0")
    first = content.rfind(struct.pack("<L", 0x030000), index, index + 90)
    struct.pack_into("<L", content, first + 16, 0x010002)  # the second image is a thumbnail
    outcome = read_image(tmp_path, bytes(content))
    assert outcome.warnings == {(0, 0): {"PagesIgnored": 1}}
    assert colours(read_image(tmp_path, bytes(content), pages="all")) == ["red", "blue"]


def test_damaged_list_of_pages_fails_the_rest(tmp_path: Path) -> None:
    content = pages()
    cut = content[: len(content) * 2 // 3]
    assert colours(read_image(tmp_path, cut)) == ["red"]
    outcome = read_image(tmp_path, cut, pages="all")
    assert (colours(outcome), list(outcome.bad)) == (["red", "lime"], [(0, 2)])
    accepted = read_image(tmp_path, cut, pages="all", truncated="accept")
    assert (colours(accepted), accepted.bad) == (["red", "lime"], {})
    assert accepted.warnings == {(0, 1): {"Truncated": 0}}


@pytest.mark.parametrize("writer", ["GIF", "PNG"])
def test_missing_frames_of_a_cut_animation_are_counted(tmp_path: Path, writer: str) -> None:
    content = pages(writer)
    cut = content[: len(content) * 2 // 3]
    outcome = read_image(tmp_path, cut, pages="all")
    assert list(outcome.bad) == [(0, len(outcome.order))]
    accepted = read_image(tmp_path, cut, pages="all", truncated="accept")
    assert (accepted.order, accepted.bad) == (outcome.order, {})
    assert [*accepted.warnings.values()] == [{"Truncated": 0}]


def test_many_pages_are_read_in_chunks(tmp_path: Path) -> None:
    outcome = read_image(tmp_path, pages(), pages="all", sizes={"chunk_bytes": 5000})
    assert [batch.table.num_rows for batch in outcome.batches if batch.table.num_rows] == [2, 1]


PICTURE = Image.fromarray(photograph("chelsea")).resize((200, 150))
CUT_WRITERS: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "JPEG": (PICTURE, {"quality": 90}),
    "JPEG, progressive": (PICTURE, {"progressive": True}),
    "JPEG, gray": (PICTURE.convert("L"), {}),
    "JPEG, CMYK": (PICTURE.convert("CMYK"), {}),
    "PNG": (PICTURE, {}),
    "PNG, transparent": (PICTURE.convert("RGBA").rotate(20), {}),
    "WEBP": (PICTURE, {}),
    "WEBP, lossless": (PICTURE, {"lossless": True}),
    "WEBP, transparent": (PICTURE.convert("RGBA").rotate(20), {}),
    "GIF": (PICTURE, {"interlace": 0}),
    "TIFF": (PICTURE, {}),
    "BMP": (PICTURE, {}),
    "PPM": (PICTURE, {}),
    "JPEG2000": (PICTURE, {}),
    "AVIF": (PICTURE, {}),
    "HEIF": (PICTURE, {}),
}
BLURRED = ("JPEG, progressive", "JPEG2000")
"""Images that show all of the picture, with less detail, if only the first half is there."""


def written(writer: str) -> bytes:
    file_format = writer.split(",", maxsplit=1)[0]
    if file_format not in images.FORMATS:
        pytest.skip(f"{file_format} needs an optional library")
    image, options = CUT_WRITERS[writer]
    return saved(image, file_format, **options)


def pixels(outcome: Outcome) -> np.ndarray:
    (column,) = outcome.column("image")
    return np.asarray(column, int)


@pytest.mark.parametrize("writer", CUT_WRITERS)
@pytest.mark.parametrize("size", [None, [75, 100]])
def test_half_image_fails_or_is_read(tmp_path: Path, writer: str, size: list[int] | None) -> None:
    content = written(writer)
    half = content[: len(content) // 2]
    assert list(read(tmp_path, half, size=size).bad) == [(0, 0)]
    accepted = read(tmp_path, half, size=size, truncated="accept")
    assert accepted.bad == {}
    assert "Truncated" in accepted.warnings[0, 0]
    image, result = pixels(read(tmp_path, content, size=size)), pixels(accepted)
    assert result.shape == image.shape
    rows = image.shape[0] if writer in BLURRED else image.shape[0] // 4
    begin = 3 * image.shape[0] // 4 if writer == "BMP" else 0  # it begins at the bottom
    difference = np.abs(result - image)[begin : begin + rows]
    assert difference.mean() < 12


@pytest.mark.parametrize("missing", [1, 2])
@pytest.mark.parametrize("colour", ["photograph", "one colour"])
def test_jpeg_without_its_last_bytes_is_complete(tmp_path: Path, missing: int, colour: str) -> None:
    picture = PICTURE if colour == "photograph" else Image.new("RGB", (600, 400), (200, 10, 10))
    content = saved(picture, "JPEG")
    outcome = read(tmp_path, content[:-missing], truncated="accept")
    assert np.array_equal(pixels(outcome), pixels(read(tmp_path, content)))
    assert outcome.warnings == {(0, 0): {"Truncated": 0}}


@pytest.mark.parametrize(
    "content",
    [b"", b"no image", b"\xff\xd8\xff\xd9",
     saved(PICTURE, "JPEG")[:300], saved(PICTURE, "PNG")[:60],
     b"RIFF\xff\xff\xff\x7fWEBPVP8 " + b"\xff" * 100,
     b"\0\0\0\x01ftypheic\x7f" + b"\xff" * 7 + b"\0" * 60],
    ids=["empty", "text", "no pixels", "only headers", "no data", "huge WebP", "huge HEIC"],
)  # fmt: skip
def test_file_without_pixels_is_a_failed_row(tmp_path: Path, content: bytes) -> None:
    assert list(read(tmp_path, content, truncated="accept").bad) == [(0, 0)]


def test_complete_images_have_no_warning(tmp_path: Path) -> None:
    for writer in ("JPEG", "PNG", "WEBP", "GIF", "TIFF"):
        assert read(tmp_path, written(writer), truncated="accept").warnings == {}, writer


def test_black_pixels_before_the_damage_are_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0).integers(0, 2, (300, 200), dtype=np.uint8)
    random[:150] = 0
    content = saved(Image.fromarray(random * 255), "BMP")
    assert read(tmp_path, content[: len(content) - 20_000], truncated="accept").bad == {}


def test_cut_tiff_file_is_upright(tmp_path: Path) -> None:
    content = saved(PICTURE, "TIFF", exif=exif(6))
    for orientation, shape in (("apply", (200, 150, 3)), ("ignore", (150, 200, 3))):
        outcome = read(
            tmp_path, content[: len(content) * 3 // 4], truncated="accept", orientation=orientation
        )
        assert pixels(outcome).shape == shape


def test_animation_that_is_cut_in_its_first_frame(tmp_path: Path) -> None:
    frames = [PICTURE.rotate(90), PICTURE.rotate(180)]
    content = saved(PICTURE, "WEBP", save_all=True, append_images=frames, lossless=True)
    outcome = read(tmp_path, content[: len(content) // 6], truncated="accept")
    assert np.abs(pixels(outcome) - np.asarray(PICTURE))[:30].mean() < 12


def test_limit_of_pixels_applies_to_cut_images(tmp_path: Path) -> None:
    half = written("JPEG")[:3000]
    (error,) = read(tmp_path, half, truncated="accept", maxPixels=1000).bad.values()
    assert "maxPixels" in error


def test_channels_of_unknown_meaning_are_counted(tmp_path: Path) -> None:
    for photometric, channels in (("minisblack", 2), ("rgb", 4)):
        file, pixels = io.BytesIO(), np.full((2, 2, channels), 9, np.uint8)
        tifffile.imwrite(file, pixels, photometric=photometric, extrasamples=["unspecified"])
        outcome = read_image(tmp_path, file.getvalue())
        assert outcome.warnings == {(0, 0): {"PagesIgnored": 1}}
