"""Text: one row per line, as Python reads lines."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
import sklearn.datasets
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.failures import BadInput
from batchinference.pipeline.readers import lines
from support.inputs.read_files import read_files
from support.tiers import examples

PROSE = sorted((Path(sklearn.datasets.__file__).parent / "descr").glob("*.rst"))


def texts(path: Path, **options: object) -> list[str]:
    return [row["text"] for row in read_files("text", path, **options).good]


def python_lines(path: Path, encoding: str = "utf-8") -> list[str]:
    return path.read_text(encoding=encoding).splitlines()


def test_lines_equal_python() -> None:
    assert len(PROSE) > 3
    for path in PROSE:
        assert texts(path, drop_empty_lines=False) == python_lines(path)
        assert texts(path) == [line for line in python_lines(path) if line.strip()]


def test_files_are_read_in_name_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n{name}2\n")
    outcome = read_files("text", tmp_path)
    assert [row["text"] for row in outcome.good] == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert outcome.places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert outcome.ends == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"a\n\n", ["a", ""]),
        (b"\n\n\n", ["", "", ""]),
        (b"\r\n \r\n", ["", " "]),
        ("é😀\nü\n".encode(), ["é😀", "ü"]),
        ("a\u2028b\x0bc\x0cd\x85e\n".encode(), ["a\u2028b\x0bc\x0cd\x85e"]),
    ],
    ids=[
        *("empty", "byte order mark alone", "no newline at the end", "one line"),
        *("no newline after the last", "CRLF", "CRLF but the last", "byte order mark"),
        *("empty line", "empty last line", "empty lines only", "blank lines only"),
        *("beyond ASCII", "other separators of Unicode do not end a line"),
    ],
)
def test_lines_end_at_newlines(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    outcome = read_files("text", path, drop_empty_lines=False)
    assert [row["text"] for row in outcome.good] == expected
    assert outcome.ends == {0: len(expected)}
    assert texts(path) == [line for line in expected if line.strip()]


def test_dropped_lines_have_no_number(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n\n  \nb\n")
    outcome = read_files("text", path)
    assert outcome.places == [(0, 0), (0, 1)]
    assert outcome.ends == {0: 2}


def test_python_encodings_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for encoding in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "cp500"):
        for newline in ("\n", "\r\n"):
            path.write_bytes(newline.join(["grün", "", "weiß", ""]).encode(encoding))
            assert texts(path, encoding=encoding) == ["grün", "weiß"], encoding
            found = texts(path, encoding=encoding, drop_empty_lines=False)
            assert found == ["grün", "", "weiß"], encoding


def test_empty_file_has_no_rows_in_any_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-8", "utf-16", "utf-32", "latin-1"):
        (tmp_path / "a.txt").write_bytes("".encode(encoding))
        outcome = read_files("text", tmp_path, encoding=encoding, drop_empty_lines=False)
        assert (outcome.good, outcome.ends) == ([], {0: 0}), encoding


def test_unknown_encoding_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for encoding in ("utf-9", "undefined", "a\0b", "hex", "rot13"):
        with pytest.raises(BadInput, match=f"encoding: unknown encoding '{encoding}'"):
            read_files("text", tmp_path, encoding=encoding)


def test_undecodable_line_fails_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\xff\xfe\nthree\n\nfive\xff\nsix")
    outcome = read_files("text", path)
    assert [row["text"] for row in outcome.good] == ["one", "three", "six"]
    assert outcome.places == [(0, 0), (0, 2), (0, 4)]
    assert set(outcome.bad) == {(0, 1), (0, 3)}
    assert "UnicodeDecodeError" in outcome.bad[0, 1]
    assert outcome.ends == {0: 5}


def test_empty_lines_can_be_kept_beside_failed_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\xff\n\r\nfour\n\n")
    outcome = read_files("text", path, drop_empty_lines=False)
    assert [row["text"] for row in outcome.good] == ["", "", "four", ""]
    assert outcome.places == [(0, 0), (0, 2), (0, 3), (0, 4)]


def test_truncated_utf16_file_is_one_failed_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("good\n".encode("utf-16"))
    (tmp_path / "b.txt").write_bytes("bad\n".encode("utf-16")[:-1])
    outcome = read_files("text", tmp_path, encoding="utf-16")
    assert [row["text"] for row in outcome.good] == ["good"]
    assert set(outcome.bad) == {(1, 0)}
    assert outcome.ends == {0: 1, 1: 1}


def test_huge_line_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    huge = "x" * (2 * lines.CHUNK_BYTES + 5)
    path.write_text(f"before\n{huge}\nafter\n")
    assert texts(path) == ["before", huge, "after"]


def test_gzip_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    assert texts(path) == ["a", "b"]
    path.write_bytes(gzip.compress("ä\nb\n".encode("utf-16")))
    assert texts(path, encoding="utf-16") == ["ä", "b"]


@settings(max_examples=examples(100), deadline=None)
@given(
    content=st.binary(max_size=60) | st.text("aé\r\n \t", max_size=40).map(str.encode),
    chunk=st.integers(3, 64),
)
def test_chunk_size_does_not_change_rows(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(content)
    whole = read_files("text", path, drop_empty_lines=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        cut = read_files("text", path, drop_empty_lines=False)
    assert (cut.good, cut.places, cut.bad, cut.ends) == (
        *(whole.good, whole.places),
        *(whole.bad, whole.ends),
    )


@settings(max_examples=examples(100), deadline=None)
@given(written=st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories="C"))))
def test_written_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, written: list[str]
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    outcome = read_files("text", path, drop_empty_lines=False)
    assert [row["text"] for row in outcome.good] == written
    assert outcome.places == [(0, number) for number in range(len(written))]
