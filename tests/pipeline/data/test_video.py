"""Videos: the frames that PyAV decodes, selected and resized."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from batchinference.pipeline.input.readers import images as reader
from support.inputs.read_files import Outcome, open_input, read_files

CODECS = {"mp4": "libx264", "mkv": "libx264", "avi": "mpeg4", "webm": "libvpx", "mov": "mjpeg"}
HEIGHT, WIDTH = 48, 64


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
    found: list[int] = outcome.column("frame_index").tolist()
    return found


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
    assert outcome.places == [(3, 0), (3, 1)]


def test_damaged_video_is_read_the_same_again(tmp_path: Path) -> None:
    damaged(video(tmp_path / "a.mkv", frames=60), 20)
    opened = open_input("video", tmp_path)
    first, second = opened.read(), opened.read()
    assert first.bad == second.bad != {}
    assert first.places == second.places
    assert np.array_equal(indexes(first), indexes(second))


def test_long_video_is_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video(tmp_path / "a.mp4", frames=200, scale=4)
    monkeypatch.setattr(reader, "CHUNK_BYTES", 1 << 20)
    opened = open_input("video", tmp_path)
    tracemalloc.start()
    rows = sum(len(batch.ids) for batch in opened.file_rows.read(opened.snapshot.files()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == 200
    assert peak < 10 << 20  # of 29 MB; includes the buffer of the file
