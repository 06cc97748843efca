"""Videos: the frames that PyAV decodes, their orientation, colours and tracks, and missing ends."""

from __future__ import annotations

import io
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from av.video.reformatter import ColorRange, Colorspace

from batchinference.pipeline.media.truncated_files import stated_size, truncation_error
from plugins.messages import Messages
from support.inputs.media_files import HEIGHT, WIDTH, quarters, turn_film, write_film
from support.inputs.read_files import Outcome, open_input, read_files

CODECS = {"mp4": "libx264", "mkv": "libx264", "avi": "mpeg4", "webm": "libvpx", "mov": "mjpeg"}


def video(path: Path, frames: int = 30, rate: int = 10, scale: int = 1) -> Path:
    """Write a video of frames with increasing brightness."""
    codec = CODECS.get(path.suffix[1:], "libx264")
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = WIDTH * scale, HEIGHT * scale
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number in range(frames):
            shape = (HEIGHT * scale, WIDTH * scale, 3)
            pixels = np.full(shape, number * 255 // frames, np.uint8)
            pixels[:, number % WIDTH] = (255, 0, 0)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())
    return path


def damaged(path: Path, number: int) -> Path:
    """Replace one packet of the video with noise."""
    with av.open(path) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        begin, size = packets[number].pos, packets[number].size
    content = bytearray(path.read_bytes())
    kept = 4 if path.suffix == ".mp4" else 16  # the packet's length field, or all headers
    content[begin + kept : begin + size] = np.random.default_rng(1).bytes(size - kept)
    path.write_bytes(content)
    return path


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(path) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def indexes(outcome: Outcome) -> list[int]:
    values: list[int] = outcome.column("frame_index").tolist()
    return values


@pytest.mark.parametrize("ending", CODECS)
def test_frames_equal_pyav(tmp_path: Path, ending: str) -> None:
    path = video(tmp_path / f"a.{ending}", frames=30, rate=10)
    outcome = read_files("video", tmp_path)
    frames = outcome.column("frame")
    assert frames[0].dtype == np.uint8
    assert all(map(np.array_equal, frames, decoded(path)))
    assert (indexes(outcome), outcome.ends) == (list(range(30)), {0: 30})
    for fps, rows in ((None, 30), (2, 6), (100, 30)):
        opened = open_input("video", tmp_path, fps=fps)
        count = opened.given.count()
        assert count is not None
        assert count.estimated, fps
        assert abs(count.rows - rows) <= 1, fps


def test_timestamps_are_seconds_from_the_beginning(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", frames=5, rate=10)
    outcome = read_files("video", tmp_path, includeTimestamps=True)
    assert outcome.column("frame_timestamp") == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("ending", ["mp4", "mkv"])
def test_fps_selects_frames(tmp_path: Path, ending: str) -> None:
    video(tmp_path / f"a.{ending}", frames=30, rate=10)
    for fps, expected in (
        (1, [0, 10, 20]),
        (2, [0, 5, 10, 15, 20, 25]),
        (0.5, [0, 20]),
        (4, [0, 3, 5, 8, 10, 13, 15, 18, 20, 23, 25, 28]),
        (10, list(range(30))),
        (60, list(range(30))),
    ):
        assert indexes(read_files("video", tmp_path, fps=fps)) == expected


def test_fps_selects_frames_of_joined_videos(tmp_path: Path) -> None:
    parts = [video(tmp_path / f"{name}.ts", frames=10) for name in "ab"]
    joined = tmp_path / "joined.ts"
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert indexes(read_files("video", joined, fps=5)) == list(range(0, 20, 2))


def test_frames_keep_their_size_or_are_resized(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", frames=3)
    video(tmp_path / "b.mp4", frames=3, scale=2)
    frames = read_files("video", tmp_path).column("frame")
    assert [frame.shape for frame in frames] == [(48, 64, 3)] * 3 + [(96, 128, 3)] * 3
    frames = read_files("video", tmp_path, size=[24, 40]).column("frame")
    assert frames.shape == (6, 24, 40, 3)
    assert np.abs(frames[:3].astype(int) - frames[3:]).mean() < 8


@pytest.mark.parametrize("ending", ["mp4", "avi", "mov"])
def test_damaged_frame_fails_its_row_only(tmp_path: Path, ending: str) -> None:
    damaged(video(tmp_path / f"a.{ending}"), 12)
    outcome = read_files("video", tmp_path)
    assert (list(outcome.bad), outcome.ends) == ([(0, 12)], {0: 30})
    assert indexes(outcome) == [number for number in range(30) if number != 12]


def test_file_without_frames_is_one_failed_row(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    (tmp_path / "b.mp4").write_bytes(b"no video at all")
    soundfile.write(tmp_path / "c.mp4", np.zeros(100), 8000, format="WAV")
    video(tmp_path / "d.mp4", frames=2)
    outcome = read_files("video", tmp_path)
    assert list(outcome.bad) == [(0, 0), (1, 0), (2, 0)]
    assert "read.format: audio" in outcome.bad[2, 0]
    assert outcome.order == [(3, 0), (3, 1)]


def test_damaged_video_is_read_the_same_again(tmp_path: Path) -> None:
    damaged(video(tmp_path / "a.mkv", frames=60), 20)
    opened = open_input("video", tmp_path)
    first, second = opened.read(), opened.read()
    assert first.bad == second.bad != {}
    assert first.order == second.order
    assert np.array_equal(indexes(first), indexes(second))


def test_long_video_is_read_in_chunks(tmp_path: Path) -> None:
    video(tmp_path / "a.mp4", frames=200, scale=4)
    opened = open_input("video", tmp_path, sizes={"chunk_bytes": 1 << 20})
    tracemalloc.start()
    rows = sum(len(batch.ids) for batch in opened.file_rows.read(opened.snapshot.files()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 200
    assert peak < 10 << 20  # of 29 MB; includes the buffer of the file


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
    (result,) = frames(read_files("video", tmp_path))
    assert np.abs(result - colour).max() <= 4


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
    assert (len(read_files("video", film).order), read_files("video", film).bad) == (40, {})
    content = film.read_bytes()
    film.write_bytes(content[: len(content) * 2 // 3])
    outcome = read_files("video", film)
    assert 10 < len(outcome.order) < 35
    assert any("truncated" in error for error in outcome.bad.values())
    accepted = read_files("video", film, truncated="accept")
    assert (accepted.order, accepted.bad) == (outcome.order, {})
    assert accepted.warnings == {accepted.order[-1]: {"Truncated": 0}}


def test_end_of_a_video_of_many_fragments_is_not_missed(tmp_path: Path, messages: Messages) -> None:
    film = write_film(
        tmp_path / "a.mp4", [quarters()] * 40, "mjpeg", "yuvj420p",
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
        assert (len(outcome.order), outcome.bad) == (3, {}), ending
