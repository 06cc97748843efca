"""Frames of videos: orientation, transparency, depth, colours, tracks, and missing ends."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace

from batchinference.pipeline.media.truncated_files import stated_size, truncation_error
from plugins.messages import Messages
from support.inputs.media_files import HEIGHT, WIDTH, quarters, turn_film, write_film
from support.inputs.read_files import Outcome, read_files

MATRICES: dict[str, tuple[tuple[int, int, int, int], Any]] = {
    "clockwise": ((0, 1, -1, 0), lambda pixels: np.rot90(pixels, -1)),
    "half turn": ((-1, 0, 0, -1), lambda pixels: np.rot90(pixels, 2)),
    "counterclockwise": ((0, -1, 1, 0), np.rot90),
    "mirrored": ((-1, 0, 0, 1), lambda pixels: pixels[:, ::-1]),
    "upside down": ((1, 0, 0, -1), lambda pixels: pixels[::-1]),
    "transposed": ((0, 1, 1, 0), lambda pixels: pixels.swapaxes(0, 1)),
    "transversed": ((0, -1, -1, 0), lambda pixels: np.rot90(pixels, 2).swapaxes(0, 1)),
}


def frames(outcome: Outcome) -> np.ndarray:
    return np.stack([np.asarray(frame, int) for frame in outcome.column("frame")])


@pytest.mark.parametrize("name", MATRICES)
def test_display_matrix_turns_frames_upright(tmp_path: Path, name: str) -> None:
    matrix, turned = MATRICES[name]
    film = write_film(tmp_path / "a.mp4", [quarters()] * 3, "libx264", "yuv444p")
    turn_film(film, *matrix)
    outcome = read_files("video", film)
    expected = turned(quarters())
    assert frames(outcome).shape == (3, *expected.shape)
    assert np.abs(frames(outcome) - expected).mean() < 5
    assert outcome.warnings == {(0, row): {"Rotated": 0} for row in range(3)}
    stored = read_files("video", film, orientation="ignore")
    assert np.abs(frames(stored) - quarters()).mean() < 5
    assert stored.warnings == {}


def test_size_is_that_of_the_upright_frame(tmp_path: Path) -> None:
    film = write_film(tmp_path / "a.mp4", [quarters()], "libx264", "yuv444p")
    turn_film(film, 0, 1, -1, 0)
    (frame,) = frames(read_files("video", film, size=[32, 24]))
    assert frame.shape == (32, 24, 3)
    corners = [frame[y, x].argmax() for y, x in ((2, 2), (2, 21), (29, 21))]
    assert corners == [2, 0, 1]  # blue, red and green


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("a.mov", "prores_ks", "yuva444p10le"),
        ("a.mov", "png", "rgba"),
        ("a.mov", "qtrle", "argb"),
        ("a.mkv", "ffv1", "yuva420p"),
        ("a.webm", "libvpx-vp9", "yuva420p"),
    ],
)
def test_transparent_pixels_are_drawn_over_the_background(
    tmp_path: Path, name: str, codec: str, pixel_format: str
) -> None:
    pixels = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    pixels[:, :, :3] = (240, 30, 10)
    pixels[:, WIDTH // 2 :, 3] = 255
    film = write_film(tmp_path / name, [pixels], codec, pixel_format)
    for options, colour in (({}, 255), ({"background": "black", "size": [24, 32]}, 0)):
        outcome = read_files("video", film, **options)
        (frame,) = frames(outcome)
        assert np.abs(frame[4, 4] - colour).max() < 8
        assert np.abs(frame[4, -4] - (240, 30, 10)).max() < 8
        assert "Composited" in outcome.warnings[0, 0]


def test_frames_with_more_than_8_bits_are_counted(tmp_path: Path) -> None:
    film = write_film(tmp_path / "a.mkv", [quarters()] * 2, "ffv1", "yuv444p10le")
    outcome = read_files("video", film)
    assert np.abs(frames(outcome) - quarters()).mean() < 5
    assert outcome.warnings == {(0, row): {"DepthReduced": 0} for row in range(2)}


@pytest.mark.parametrize("space", [Colorspace.ITU709, Colorspace.ITU601])
@pytest.mark.parametrize("span", [ColorRange.MPEG, ColorRange.JPEG])
def test_colours_follow_the_tags_of_the_video(
    tmp_path: Path, space: Colorspace, span: ColorRange
) -> None:
    colour = (200, 30, 90)
    with av.open(tmp_path / "a.mp4", "w") as container:
        stream = container.add_stream("libx264", rate=5, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv444p"
        context = stream.codec_context
        context.colorspace, context.color_range = int(space), int(span)
        frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), colour, np.uint8), "rgb24")
        coded = frame.reformat(format="yuv444p", dst_colorspace=space, dst_color_range=span)
        container.mux([*stream.encode(coded), *stream.encode()])
    (found,) = frames(read_files("video", tmp_path))
    assert np.abs(found - colour).max() <= 4


def test_further_tracks_are_counted_once(tmp_path: Path) -> None:
    with av.open(tmp_path / "a.mkv", "w") as container:
        tracks = [container.add_stream("ffv1", rate=10) for _ in range(3)]
        for stream in tracks:
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, stream in enumerate(tracks):
            pixels = np.full((HEIGHT, WIDTH, 3), 50 * number, np.uint8)
            for _ in range(2):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())
    outcome = read_files("video", tmp_path)
    assert frames(outcome).max() < 10
    assert outcome.warnings == {(0, 0): {"PagesIgnored": 2}}


FILMS: dict[str, tuple[str, str, dict[str, str]]] = {
    "mp4": ("libx264", "yuv420p", {"movflags": "+faststart"}),
    "mov": ("mjpeg", "yuvj420p", {"movflags": "+faststart"}),
    "mkv": ("libx264", "yuv420p", {}),
    "webm": ("libvpx-vp9", "yuv420p", {}),
    "avi": ("mjpeg", "yuvj420p", {}),
}


@pytest.mark.parametrize("ending", FILMS)
def test_missing_end_is_a_failed_row_or_counted(tmp_path: Path, ending: str) -> None:
    codec, pixel_format, options = FILMS[ending]
    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8) for _ in range(40)]
    film = write_film(tmp_path / f"a.{ending}", pictures, codec, pixel_format, **options)
    assert (len(read_files("video", film).places), read_files("video", film).bad) == (40, {})
    content = film.read_bytes()
    film.write_bytes(content[: len(content) * 2 // 3])
    outcome = read_files("video", film)
    assert 10 < len(outcome.places) < 35
    assert any("truncated" in error for error in outcome.bad.values())
    accepted = read_files("video", film, truncated="accept")
    assert (accepted.places, accepted.bad) == (outcome.places, {})
    assert accepted.warnings == {accepted.places[-1]: {"Truncated": 0}}


def test_end_of_a_video_of_many_fragments_is_not_missed(tmp_path: Path, messages: Messages) -> None:
    film = write_film(
        tmp_path / "a.mp4", [quarters()] * 40, "libx264", "yuv420p",
        movflags="+frag_every_frame+empty_moov",
    )  # fmt: skip
    content = film.read_bytes()
    assert truncation_error(io.BytesIO(content), len(content)) is None
    box = content.rfind(b"moof") - 4
    for size in (box + 4, box + 7, box + 12, box + 60, len(content) - 1):
        assert truncation_error(io.BytesIO(content[:size]), size) is not None, size
    assert truncation_error(io.BytesIO(content + b"\0\0\0\x08free"), len(content) + 8) is None
    film.write_bytes(content[: box + 60])
    messages.check(read_files("video", film).bad)


def test_chunks_of_many_blocks_are_followed() -> None:
    boxes = b"".join(struct.pack(">I4s", size, b"free") + bytes(size - 8) for size in range(8, 900))
    assert stated_size(io.BytesIO(boxes), len(boxes)) == len(boxes)
    assert stated_size(io.BytesIO(boxes[:-1]), len(boxes) - 1) == len(boxes)


def test_video_without_its_list_of_frames_says_so(tmp_path: Path, messages: Messages) -> None:
    film = write_film(tmp_path / "a.mov", [quarters()] * 9, "mjpeg", "yuvj420p")
    content = film.read_bytes()
    film.write_bytes(content[: len(content) // 2])
    for truncated in ("fail", "accept"):
        (error,) = read_files("video", film, truncated=truncated).bad.values()
        messages.check(error)


@pytest.mark.parametrize("rest", [b"\0" * 3, b"text after the end" * 9])
def test_bytes_after_the_end_are_no_damage(tmp_path: Path, rest: bytes) -> None:
    for ending, (codec, pixel_format, options) in FILMS.items():
        film = write_film(
            tmp_path / f"a.{ending}", [quarters()] * 3, codec, pixel_format, **options
        )
        film.write_bytes(film.read_bytes() + rest)
        outcome = read_files("video", film)
        assert (len(outcome.places), outcome.bad) == (3, {}), ending
