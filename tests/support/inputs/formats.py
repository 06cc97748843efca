"""Small inputs of every format and their rows.

Where possible, they are written with other libraries than the readers use.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from PIL import Image

from support.inputs.document_files import pdf_of
from support.inputs.media_files import saved
from support.outputs.rows import Row


def write_text(directory: Path) -> list[Row]:
    lines = [f'line {n} with ünïcode, "quotes" and a tab\t.' for n in range(30)]
    (directory / "a.txt").write_text("\n".join(lines[:20]) + "\n")
    (directory / "b.txt").write_text("\n\n" + "\n".join(lines[20:]))
    return [{"text": line} for line in lines]


def _records() -> list[Row]:
    return [
        {"id": n, "score": n / 7, "name": f"näme {n}", "tags": ["a"] * (n % 3), "in": {"deep": n}}
        for n in range(40)
    ]


def write_json_lines(directory: Path) -> list[Row]:
    records = _records()
    for number in range(2):
        lines = (json.dumps(record) for record in records[number::2])
        (directory / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return records


def write_openai_batch(directory: Path) -> list[Row]:
    bodies = ('{"model": "m", "n": 9007199254740993}', '{"input": ["ä", 1.50]}')
    rows = [
        {"custom_id": f"row {number}", "method": "POST", "url": "/v1/embeddings", "body": body}
        for number, body in enumerate(bodies)
    ]
    texts = '"custom_id": "%(custom_id)s", "method": "%(method)s", "url": "%(url)s"'
    line = "{" + texts + ', "body": %(body)s}\n'
    (directory / "requests.jsonl").write_text("".join(line % row for row in rows))
    return rows


def write_json_arrays(directory: Path) -> list[Row]:
    records = _records()
    for number in range(2):
        (directory / f"{number}.json").write_text(json.dumps(records[number::2], indent=1))
    return records


def write_csv(directory: Path) -> list[Row]:
    rows: list[Row] = [
        {"id": n, "price": n + 0.25, "title": f'a "title", {n}', "sold": n % 2 == 0}
        for n in range(40)
    ]
    for number in range(2):
        with (directory / f"{number}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, "sold": str(row["sold"]).lower()} for row in rows[number::2])
    return rows


def write_parquet(directory: Path) -> list[Row]:
    records = _records()
    for number in range(3):
        table = pa.Table.from_pylist(records[number::3])
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=5)
    return records


def pictures(count: int) -> list[np.ndarray]:
    """Return random pictures of 6 x 5 pixels (RGB)."""
    random = np.random.default_rng(3)
    return [random.integers(0, 255, (6, 5, 3), dtype=np.uint8) for _ in range(count)]


def png(pixels: np.ndarray) -> bytes:
    """Return the pixels as a PNG."""
    return saved(Image.fromarray(pixels), "PNG")


def write_images(directory: Path) -> list[Row]:
    drawn = pictures(12)
    for number, pixels in enumerate(drawn):
        (directory / f"{number}.png").write_bytes(png(pixels))
    return [{"image": pixels.tolist()} for pixels in drawn]


def write_binary(directory: Path) -> list[Row]:
    contents = [bytes(range(n, 200)) for n in range(10)]
    for number, content in enumerate(contents):
        (directory / f"{number}.any").write_bytes(content)
    return [{"bytes": content} for content in contents]


def write_numpy(directory: Path) -> list[Row]:
    arrays = np.arange(40.0).reshape(10, 2, 2)
    np.save(directory / "a.npy", arrays[:6])
    np.save(directory / "b.npy", arrays[6:])
    return [{"data": array.tolist()} for array in arrays]


def write_numpy_archives(directory: Path) -> list[Row]:
    ids, vectors = np.arange(20), np.random.default_rng(4).random((20, 3), np.float32)
    np.savez(directory / "a.npz", id=ids[:15], vector=vectors[:15])
    np.savez_compressed(directory / "b.npz", id=ids[15:], vector=vectors[15:])
    both = zip(ids.tolist(), vectors.tolist(), strict=True)
    return [{"id": number, "vector": vector} for number, vector in both]


def write_audio(directory: Path) -> list[Row]:
    rows = []
    for number in range(4):
        samples = np.random.default_rng(number).integers(-(2**15), 2**15, (50, 2), np.int16)
        soundfile.write(directory / f"{number}.wav", samples, 8000 + number)
        amplitude = (samples.T / 2**15).tolist()
        rows.append({"amplitude": amplitude, "sample_rate": 8000 + number})
    return rows


def write_video(directory: Path) -> list[Row]:
    rows = []
    for name in ("a.mkv", "b.mkv"):
        frames = pictures(7)
        with av.open(directory / name, "w") as container:
            stream = container.add_stream("ffv1", rate=5, options={"level": "3"})
            stream.width, stream.height, stream.pix_fmt = 5, 6, "bgr0"  # lossless
            for pixels in frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
            container.mux(stream.encode())
        rows += [
            {"frame": pixels.tolist(), "frame_index": index, "frame_timestamp": index / 5}
            for index, pixels in enumerate(frames)
        ]
    return rows


def write_webdataset(directory: Path) -> list[Row]:
    rows = []
    for shard in range(2):
        members = {}
        for number, pixels in enumerate(pictures(5)):
            key, text = f"{shard}/{number:04d}", f"näme {number}"
            about = {"id": number, "tags": ["a", "b"]}
            members |= {
                f"{key}.png": png(pixels),
                f"{key}.json": json.dumps(about).encode(),
                f"{key}.txt": text.encode(),
                f"{key}.cls": str(number).encode(),
                f"{key}.bin": b"\0\xff",
            }
            row = {"png": pixels.tolist(), "json": about, "txt": text, "cls": number}
            rows.append({"__key__": key, **row, "bin": b"\0\xff"})
        (directory / f"{shard}.tar").write_bytes(tar_of(members.items()))
    return rows


def tar_of(members: Iterable[tuple[str, bytes]], mode: str = "w") -> bytes:
    """Return an archive with these members, in this order."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:  # type: ignore[call-overload]
        for name, member in members:
            add_member(archive, name, member)
    return content.getvalue()


def add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_manifest(directory: Path) -> list[Row]:
    drawn = pictures(9)
    (directory / "deep").mkdir(exist_ok=True)
    for number, pixels in enumerate(drawn):
        (directory / f"deep/{number}.png").write_bytes(png(pixels))
    rows = [{"uri": f"deep/{number}.png", "id": number} for number in range(len(drawn))]
    pq.write_table(pa.Table.from_pylist(rows[:6]), directory / "a.parquet")
    (directory / "b.csv").write_text(
        "uri,id\n" + "".join(f"{row['uri']},{row['id']}\n" for row in rows[6:])
    )
    return [{**row, "image": pixels.tolist()} for row, pixels in zip(rows, drawn, strict=True)]


def write_documents(directory: Path) -> list[Row]:
    directory.joinpath("a.pdf").write_bytes(pdf_of("first page", "second page"))
    directory.joinpath("b.html").write_text("<!doctype html><title>Näme</title><p>one<p>two")
    rows = [(1, "first page", None), (2, "second page", None), (None, "one\n\ntwo", "Näme")]
    names = ("page", "text", "title")
    return [{**dict(zip(names, row, strict=True)), "attachments": []} for row in rows]


@dataclass(frozen=True)
class Case:
    """An input. `write` writes it to a directory and returns its rows."""

    write: Callable[[Path], list[Row]]
    format: str
    options: dict[str, Any] = field(default_factory=dict)


CASES = {
    "text": Case(write_text, "text"),
    "json lines": Case(write_json_lines, "json"),
    "json arrays": Case(write_json_arrays, "json", {"lines": False}),
    "OpenAI batch": Case(write_openai_batch, "openaiBatch"),
    "csv": Case(write_csv, "csv"),
    "parquet": Case(write_parquet, "parquet"),
    "images": Case(write_images, "images"),
    "images of one size": Case(write_images, "images", {"size": [6, 5]}),
    "binary": Case(write_binary, "binary"),
    "numpy": Case(write_numpy, "numpy"),
    "numpy archives": Case(write_numpy_archives, "numpy"),
    "audio": Case(write_audio, "audio"),
    "video": Case(write_video, "video", {"includeTimestamps": True}),
    "webdataset": Case(write_webdataset, "webdataset"),
    "manifest": Case(write_manifest, "manifest", {"decode": "image"}),
    "documents": Case(write_documents, "documents"),
}
"""Every file format, with its main variants."""
