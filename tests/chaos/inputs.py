"""The same rows in files of several formats: `row 0`, `row 1`, ... in a text column."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from PIL import Image

ROWS = 20_000
FILES = 20
ROWS_PER_FILE = ROWS // FILES


def write_inputs(directory: Path) -> None:
    """Write a directory for each format. File K begins with row K * ROWS_PER_FILE."""
    for name, (ending, write) in FORMATS.items():
        (directory / name).mkdir()
        for file in range(FILES):
            first = file * ROWS_PER_FILE
            texts = [f"row {n}" for n in range(first, first + ROWS_PER_FILE)]
            write(directory / name / f"{file:03d}.{ending}", texts)


def number_of(path: str, row: int) -> int:
    """Return the N of `row N`, given its file and row number as in the error records."""
    return int(Path(path).name.split(".")[0]) * ROWS_PER_FILE + row


def _write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"text": texts}), path, row_group_size=300)


def _write_text(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f"{text}\n" for text in texts))


def _write_json(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _write_csv(path: Path, texts: list[str]) -> None:
    pyarrow.csv.write_csv(pa.table({"text": texts, "length": [len(text) for text in texts]}), path)


def _write_tar(path: Path, texts: list[str]) -> None:
    """Write a tar file of samples, each with a picture and its text."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), "teal").save(buffer, "png")
    with tarfile.open(path, "w") as tar:
        for number, text in enumerate(texts):
            for ending, content in (("png", buffer.getvalue()), ("txt", text.encode())):
                member = tarfile.TarInfo(f"{number:05d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


FORMATS: dict[str, tuple[str, Callable[[Path, list[str]], None]]] = {
    "parquet": ("parquet", _write_parquet),
    "text": ("txt", _write_text),
    "csv": ("csv", _write_csv),
    "json": ("jsonl", _write_json),
    "webdataset": ("tar", _write_tar),
}
