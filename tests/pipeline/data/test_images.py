"""Image input: pixels equal those of Pillow."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.file_rows import GROUP_FILES
from batchinference.pipeline.input.prefetch import Prefetch
from support.inputs.packages import folder_of
from support.inputs.read_files import open_input, read_files
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
    assert pixels.shape == expected.shape
    assert np.array_equal(pixels, expected)
    assert outcome.places == [(0, 0)]


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
    ("times", "mean", "most"),
    [(1.3, 0, 0), (3.9, 0, 0), (4, 1, 20), (7.9, 1, 20), (8, 1, 20), (15.9, 2, 40)],
)
def test_jpeg_is_decoded_smaller_if_it_is_much_larger(
    tmp_path: Path, times: float, mean: float, most: int
) -> None:
    """Up to 4 times the size, all pixels are decoded. Above that, the differences are small."""
    photograph = Image.open(SKIMAGE / "rocket.jpg").crop((0, 0, 427, 427))
    side = int(64 * times)
    photograph.resize((2 * side, side)).save(tmp_path / "a.jpg", quality=92)
    (pixels,) = read_files("images", tmp_path, size=[48, 64]).column("image")
    difference = np.abs(pixels.astype(int) - pillow(tmp_path / "a.jpg", "RGB", (48, 64)))
    assert difference.mean() <= mean
    assert difference.max() <= most
    assert difference.any() == (times >= 4)


def test_images_of_several_sizes_keep_them_or_get_one(tmp_path: Path) -> None:
    for side in (8, 12, 16):
        picture(tmp_path / f"{side:02d}.png", side=side)
    images = read_files("images", tmp_path).column("image")
    assert [image.shape for image in images] == [(8, 8, 3), (12, 12, 3), (16, 16, 3)]
    assert read_files("images", tmp_path, size=[16, 32]).column("image").shape == (3, 16, 32, 3)


@pytest.mark.parametrize("size", [None, [8, 8]])
def test_undecodable_files_are_failed_rows(tmp_path: Path, size: list[int] | None) -> None:
    whole = (SKIMAGE / "rocket.jpg").read_bytes()
    png = (SKIMAGE / "chelsea.png").read_bytes()
    bad = {
        "b.jpg": whole[: len(whole) // 2],
        "c.png": b"",
        "e.png": b"no image",
        "f.png": png[:1000],
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    only_bad = read_files("images", tmp_path, size=size)
    assert (only_bad.good, len(only_bad.bad)) == ([], 4)
    picture(tmp_path / "a.png", (255, 0, 0))
    picture(tmp_path / "d.jpg", (0, 255, 0))
    outcome = read_files("images", tmp_path, size=size)
    assert outcome.places == [(0, 0), (3, 0)]
    red, green = (tuple(image[4, 4] > 128) for image in outcome.column("image"))
    assert (red, green) == ((True, False, False), (False, True, False))
    assert set(outcome.bad) == {(1, 0), (2, 0), (4, 0), (5, 0)}
    assert "truncated" in outcome.bad[1, 0]
    assert "UnidentifiedImageError" in outcome.bad[4, 0]


def test_order_is_kept_over_groups_of_files(tmp_path: Path) -> None:
    count = 2 * GROUP_FILES + 5
    for number in range(count):
        picture(tmp_path / f"{number:03d}.png", (number, 0, 0))
    (tmp_path / "040.png").write_text("nothing")
    outcome = read_files("images", tmp_path, size=[1, 1], includePaths=True)
    expected = [number for number in range(count) if number != 40]
    assert outcome.places == [(number, 0) for number in expected]
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
