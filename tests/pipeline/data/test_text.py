"""Text and binary input: one row per line, as Python reads lines, or one row per file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import skimage
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from batchinference.pipeline.errors import BadInput
from support.inputs.read_files import Outcome, read_files
from support.tiers import examples


def read(directory: Path, content: bytes, **options: object) -> Outcome:
    (directory / "a.txt").write_bytes(content)
    return read_files("text", directory / "a.txt", **options)


def texts(outcome: Outcome) -> list[str]:
    return [row["text"] for row in outcome.good]


LINES: dict[bytes, list[str]] = {
    **{b"": [], b"\xef\xbb\xbf": [], b"a": ["a"], b"a\n": ["a"], b"a\nb": ["a", "b"]},
    **{b"a\r\nb\r\n": ["a", "b"], b"a\r\nb": ["a", "b"], b"\xef\xbb\xbfa\nb\n": ["a", "b"]},
    **{b"a\n\nb\n": ["a", "", "b"], b"a\n\n": ["a", ""], b"\n\n\n": ["", "", ""]},
    **{b"\0": ["\0"], b"a\0\n": ["a\0"]},
    **{b"\r\n \r\n": ["", " "], "é😀\nü\n".encode(): ["é😀", "ü"]},
    # other separators of Unicode do not end a line
    "a\u2028b\x0bc\x0cd\x85e\n".encode(): ["a\u2028b\x0bc\x0cd\x85e"],
}


def test_lines_end_at_newlines(tmp_path: Path) -> None:
    by_content = {content: read(tmp_path, content, dropEmptyLines=False) for content in LINES}
    assert {content: texts(outcome) for content, outcome in by_content.items()} == LINES
    assert {content: outcome.ends for content, outcome in by_content.items()} == {
        content: {0: len(expected)} for content, expected in LINES.items()
    }
    assert {content: texts(read(tmp_path, content)) for content in LINES} == {
        content: [line for line in expected if line.strip()] for content, expected in LINES.items()
    }


def test_lines_of_old_macs_end_at_carriage_returns(tmp_path: Path) -> None:
    assert texts(read(tmp_path, b"a\rb\r", encoding="latin-1")) == ["a", "b"]
    assert texts(read(tmp_path, b"a\rb\nc\n")) == ["a\rb", "c"]
    assert list(read(tmp_path, b"a\rb\xff\rc\r").bad) == [(0, 1)]


def test_python_encodings_can_be_read(tmp_path: Path) -> None:
    for encoding in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "cp500"):
        for newline in ("\n", "\r\n"):
            content = newline.join(["grün", "", "weiß", ""]).encode(encoding)
            assert texts(read(tmp_path, content, encoding=encoding)) == ["grün", "weiß"], encoding
            kept = read(tmp_path, content, encoding=encoding, dropEmptyLines=False)
            assert texts(kept) == ["grün", "", "weiß"], encoding


def test_byte_order_mark_is_no_text_in_any_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16-le", "utf-32-be", "gb18030"):
        content = "\ufeffa\n\ufeffb\n".encode(encoding)
        assert texts(read(tmp_path, content, encoding=encoding)) == ["a", "\ufeffb"], encoding


def test_empty_file_has_no_rows_in_any_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16", "utf-32", "latin-1"):
        content = "".encode(encoding)
        outcome = read(tmp_path, content, encoding=encoding, dropEmptyLines=False)
        assert (outcome.good, outcome.ends) == ([], {0: 0}), encoding


@pytest.mark.parametrize(
    ("content", "drop", "good", "bad", "end"),
    [
        (b"a\n\n  \nb\n", True, ["a", "b"], [], 2),
        (b"one\n\xff\xfe\nthree\n\nfive\xff\nsix", True, ["one", "three", "six"], [1, 3], 5),
        (b"\n\xff\n\r\nfour\n\n", False, ["", "", "four", ""], [1], 5),
    ],
    ids=["dropped lines", "undecodable lines", "kept empty lines"],
)
def test_undecodable_lines_fail_and_dropped_lines_have_no_number(
    tmp_path: Path, content: bytes, drop: bool, good: list[str], bad: list[int], end: int
) -> None:
    outcome = read(tmp_path, content, dropEmptyLines=drop)
    assert texts(outcome) == good
    assert outcome.order == [(0, row) for row in range(end) if row not in bad]
    assert list(outcome.bad) == [(0, row) for row in bad]
    assert all("UnicodeDecodeError" in error for error in outcome.bad.values())
    assert outcome.ends == {0: end}


def test_truncated_utf16_file_is_one_failed_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("good\n".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes("bad\n".encode("utf-16")[:-1])
    outcome = read_files("text", tmp_path, encoding="utf-16")
    assert texts(outcome) == ["good"]
    assert set(outcome.bad) == {(1, 0)}
    assert outcome.ends == {0: 1, 1: 1}


@settings(max_examples=examples(100), deadline=None)
@given(
    content=st.binary(max_size=60) | st.text("aé\r\n \t", max_size=40).map(str.encode),
    chunk=st.integers(3, 64),
)
def test_chunk_size_does_not_change_rows(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, chunk: int
) -> None:
    directory = tmp_path_factory.mktemp("text")
    try:
        full = read(directory, content, dropEmptyLines=False)
    except BadInput:  # another encoding or a packed file, by its first bytes
        reject()
    cut = read(directory, content, dropEmptyLines=False, sizes={"chunk_bytes": chunk})
    for name in ("good", "order", "bad", "ends"):
        assert getattr(cut, name) == getattr(full, name)


@settings(max_examples=examples(100), deadline=None)
@given(written=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories="C"))))
def test_written_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, written: list[str]
) -> None:
    content = "".join(f"{line}\n" for line in written).encode()
    outcome = read(tmp_path_factory.mktemp("text"), content, dropEmptyLines=False)
    assert texts(outcome) == written
    assert outcome.order == [(0, number) for number in range(len(written))]


def test_files_are_read_byte_for_byte() -> None:
    outcome = read_files("binary", skimage.data_dir)
    files = [
        path
        for path in sorted(Path(skimage.data_dir).rglob("*"))
        if path.is_file() and not any(part.startswith("_") for part in path.parts[-2:])
    ]
    assert [row["bytes"] for row in outcome.good] == [path.read_bytes() for path in files]
    assert outcome.order == [(number, 0) for number in range(len(files))]


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
