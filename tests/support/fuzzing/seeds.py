"""Valid files of every format, which the fuzzer damages."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from PIL import Image

from support.inputs.formats import CASES, add_member, pictures

ROW_BYTES = 32 << 20
"""max_row_bytes of the formats that have it. It is small, so that many files reach it."""
DAMAGED = "damaged"
"""The name of a damaged file. It stays if it ends the process that reads it."""
SOUNDS = (("FLAC", "flac"), ("OGG", "ogg"), ("MP3", "mp3"), ("AIFF", "aiff"), ("AU", "au"),
          ("CAF", "caf"), ("W64", "w64"), ("RF64", "rf64"))  # fmt: skip
FILMS = (("mp4", "mpeg4"), ("webm", "libvpx"), ("avi", "mjpeg"), ("mpg", "mpeg2video"),
         ("ts", "mpeg2video"), ("flv", "flv"), ("mov", "h264"), ("ogv", "libtheora"))  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A reader with its options. `files` contains suffixes and contents of valid files."""

    format: str
    options: dict[str, Any]
    files: list[tuple[str, bytes]] = field(default_factory=list)


OPTIONS: dict[str, dict[str, Any]] = {
    "text": {"max_row_bytes": ROW_BYTES},
    "json lines": {"max_row_bytes": ROW_BYTES},
    "json arrays": {"max_row_bytes": ROW_BYTES, "lines": False},
    "csv": {"max_row_bytes": ROW_BYTES},
    "parquet": {},
    "images": {"max_pixels": 16_000_000},
    "binary": {"max_row_bytes": ROW_BYTES},
    "numpy": {"max_row_bytes": ROW_BYTES},
    "audio": {"max_row_bytes": 2 * ROW_BYTES, "sample_rate": 16000, "mono": True},
    "video": {"max_pixels": 16_000_000, "include_timestamps": True},
    "webdataset": {"max_row_bytes": ROW_BYTES, "max_pixels": 4_000_000},
    "manifest": {"decode": "image", "max_pixels": 4_000_000, "on_unreachable": "error"},
}


def target(name: str, directory: Path) -> Target:
    """Write a reader's valid files to a directory, and return the reader with them."""
    directory.mkdir(exist_ok=True)
    CASES[name].write(directory)
    if name == "numpy":
        CASES["numpy archives"].write(directory)
    for number, (ending, content) in enumerate(_MORE.get(name, lambda: iter(()))()):
        (directory / f"more{number}.{ending}").write_bytes(content)
    there = (path for path in sorted(directory.iterdir()) if path.is_file())
    listed = (path for path in there if not path.name.startswith(DAMAGED))
    files = [("".join(path.suffixes).lstrip("."), path.read_bytes()) for path in listed]
    return Target(CASES[name].format, OPTIONS[name], files)


def _images() -> Iterator[tuple[str, bytes]]:
    (pixels,) = pictures(1)
    for format_ in ("JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF"):
        content = io.BytesIO()
        Image.fromarray(np.kron(pixels, np.ones((4, 4, 1), np.uint8))).save(content, format_)
        yield format_.lower(), content.getvalue()
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "TIFF", compression="tiff_lzw")
    yield "tiff", content.getvalue()


def _sounds() -> Iterator[tuple[str, bytes]]:
    samples = np.random.default_rng(1).integers(-(2**15), 2**15, (600, 2), np.int16)
    for format_, ending in SOUNDS:
        content = io.BytesIO()
        soundfile.write(content, samples, 8000, format=format_)
        yield ending, content.getvalue()


def _films() -> Iterator[tuple[str, bytes]]:
    for ending, codec in FILMS:
        content = io.BytesIO()
        content.name = f"a.{ending}"
        try:
            _encode(content, codec)
        except (av.FFmpegError, ValueError):  # this build has no such encoder
            continue
        yield ending, content.getvalue()


def _encode(content: io.BytesIO, codec: str) -> None:
    frame = np.kron(pictures(1)[0], np.ones((8, 8, 1), np.uint8))
    with av.open(content, "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = 40, 48
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for shift in range(6):
            picture = av.VideoFrame.from_ndarray(np.roll(frame, shift, 1), "rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def _arrays() -> Iterator[tuple[str, bytes]]:
    for array in (
        *(np.asfortranarray(np.arange(24.0).reshape(4, 6)), np.array(["a", "bc"]), np.array(3)),
        *(np.array([b"x", b"yz"]), np.array(["2020-01-01"], "M8[D]")),
    ):
        content = io.BytesIO()
        np.save(content, array)
        yield "npy", content.getvalue()
        content = io.BytesIO()
        np.savez_compressed(content, a=array)
        yield "npz", content.getvalue()


def _tables() -> Iterator[tuple[str, bytes]]:
    nested = pa.table({"a": [[{"b": [1, None]}], None, []], "d": pa.array(["x", "y", "x"])})
    for options in ({"compression": "zstd"}, {"compression": "gzip", "data_page_version": "2.0"},
                    {"compression": "none", "use_dictionary": False}):  # fmt: skip
        content = io.BytesIO()
        pq.write_table(nested, content, **options)
        yield "parquet", content.getvalue()


def _json() -> Iterator[tuple[str, bytes]]:
    line = json.dumps({"a": [1, {"b": ']"['}], "n": 2**63, "t": "2020-01-01", "x": None})
    yield "jsonl.gz", gzip.compress(f"{line}\nnull\n{line}\n".encode())


def _archives() -> Iterator[tuple[str, bytes]]:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(4):
            add_member(archive, f"{number}ü.json", b'{"a": [1, {"b": null}]}')
            add_member(archive, f"{number}ü.{'long' * 40}", b"x")
    yield "tar", content.getvalue()
    yield "tar.gz", gzip.compress(content.getvalue())


_MORE = {
    "images": _images,
    "audio": _sounds,
    "video": _films,
    "numpy": _arrays,
    "parquet": _tables,
    "json lines": _json,
    "webdataset": _archives,
}
