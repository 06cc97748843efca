"""Binary input: each file is one row with its bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import skimage

from support.inputs.read_files import read_files


def test_files_are_read_byte_for_byte() -> None:
    outcome = read_files("binary", skimage.data_dir)
    files = [
        path
        for path in sorted(Path(skimage.data_dir).rglob("*"))
        if path.is_file() and not any(part.startswith("_") for part in path.parts[-2:])
    ]
    assert [row["bytes"] for row in outcome.good] == [path.read_bytes() for path in files]
    assert outcome.places == [(number, 0) for number in range(len(files))]


def test_empty_file_is_a_row_with_empty_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert read_files("binary", tmp_path).good == [{"bytes": b""}]


def test_compressed_file_stays_compressed(tmp_path: Path) -> None:
    content = gzip.compress(b"content")
    for name in ("a.gz", "b.bz2", "c.zst"):
        (tmp_path / name).write_bytes(content)
    assert read_files("binary", tmp_path).good == [{"bytes": content}] * 3


def test_include_paths_and_file_extensions_apply(tmp_path: Path) -> None:
    for name in ("a.bin", "b.dat", "C.BIN"):
        (tmp_path / name).write_text(name)
    outcome = read_files("binary", tmp_path, includePaths=True, fileExtensions=["bin"])
    assert outcome.good == [
        {"bytes": name.encode(), "path": str(tmp_path / name)} for name in ("C.BIN", "a.bin")
    ]
