"""Files that need other options are refused before the job starts, with the option to set."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline.errors import BadInput
from plugins.messages import Messages
from support.inputs.read_files import open_input, read_csv, read_files

REFUSED: dict[str, tuple[str, str, str]] = {
    "semicolons": ("id;text\n1;a, b\n2;b\n", "delimiter", '";"'),
    "semicolons and decimal commas": ("id;price\n1;2,5\n2;3,5\n", "delimiter", '";"'),
    "tabs": ("id\ttext\n1\ta\n2\tb\n", "delimiter", r'"\t"'),
    "pipes": ("id|text\n1|a;b\n2|b\n", "delimiter", '"|"'),
}
"""Content, the option, and the value to set."""


@pytest.mark.parametrize("case", REFUSED)
def test_file_that_needs_another_option_is_refused(tmp_path: Path, case: str) -> None:
    content, option, value = REFUSED[case]
    with pytest.raises(BadInput) as refused:
        read_csv(tmp_path, content)
    assert str(refused.value).startswith(f"read.options.{option}: {tmp_path}/000.csv ")
    assert re.search(rf"Set .*{re.escape(value)}", str(refused.value))


ENCODED: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "UTF-16": ("id,text\n1,ä\n".encode("utf-16"), {}, "utf-16"),
    "UTF-16 without a mark": ("id,text\n1,ä\n".encode("utf-16-le"), {}, "utf-16-le"),
    "big-endian": ("id,text\n1,ä\n".encode("utf-16-be"), {}, "utf-16-be"),
    "UTF-32": ("id,text\n1,ä\n".encode("utf-32"), {}, "utf-32"),
    "cp1252": ("id,text\n1,café\n2,grün\n".encode("cp1252"), {}, "cp1252"),
    "UTF-8 as cp1252": ("id,text\n1,café\n2,grün\n".encode(), {"encoding": "cp1252"}, "utf-8"),
    "another code page": ("id,text\n1,kęs\n2,dęby\n".encode("cp1250"), {}, "cp1250"),
    "UTF-8 as UTF-16": (b"id,text\n1,a\n", {"encoding": "utf-16"}, "utf-8"),
    "UTF-16 that lacks the mark": ("id,text\n1,ä\n".encode("utf-16-be"), {"encoding": "utf-16"},
                                   "utf-16-be"),
}  # fmt: skip
"""Content, options, and the encoding to set."""


def test_header_in_another_encoding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"Set read\.options\.encoding"):
        read_csv(tmp_path, "id,größe\n1,a\n".encode("cp1252"))


@pytest.mark.parametrize("case", ENCODED)
@pytest.mark.parametrize("format_", ["csv", "text"])
def test_file_in_another_encoding_is_refused(
    tmp_path: Path, case: str, format_: str, messages: Messages
) -> None:
    content, options, encoding = ENCODED[case]
    file = tmp_path / ("a.csv" if format_ == "csv" else "a.txt")
    file.write_bytes(content)
    with messages.raises(BadInput):
        read_files(format_, file, **options)
    assert read_files(format_, file, encoding=encoding).good


def test_unsampled_file_without_a_mark_is_a_failed_row(tmp_path: Path) -> None:
    for format_, row in (("csv", {"a": 1}), ("text", {"text": "a"})):
        (tmp_path / "a").write_bytes("a\n1\n".encode("utf-16"))
        (tmp_path / "b").write_bytes("a\n1\n".encode("utf-16-be"))
        found = open_input(format_, tmp_path / "a", tmp_path / "b", sampled=1, encoding="utf-16")
        outcome = found.read()
        assert (outcome.good[0], list(outcome.bad)) == (row, [(1, 0)])
        assert "utf-16-be" in outcome.bad[1, 0]


PACKED = {
    "gzip": (gzip.compress(b"a,b\n1,2\n"), r"end with \.gz"),
    "bzip2": (bz2.compress(b"a,b\n1,2\n"), r"end with \.bz2"),
    "xz": (lzma.compress(b"a,b\n1,2\n"), "Unpack"),
    "zip": (b"PK\3\4\x14\0\0\0\n", "Unpack.*workbook"),
    "Parquet": (b"PAR1\x15\4\n", "format parquet"),
}
"""Content that is no text, and the fix."""


@pytest.mark.parametrize("case", PACKED)
@pytest.mark.parametrize(
    ("format_", "options"),
    [
        *((name, {"encoding": each}) for name in ("csv", "text") for each in ("utf-8", "latin-1")),
        *(("json", {"lines": lines}) for lines in (True, False)),
    ],
)
def test_packed_file_is_no_text(
    tmp_path: Path, case: str, format_: str, options: dict[str, Any]
) -> None:
    content, fix = PACKED[case]
    good, packed = tmp_path / "a", tmp_path / "b"
    good.write_bytes(b'[{"a": 1}]' if options.get("lines") is False else b'{"a": 1}\n')
    packed.write_bytes(content)
    outcome = open_input(format_, good, packed, sampled=1, **options).read()
    assert list(outcome.bad) == [(1, 0)]
    assert re.search(fix, outcome.bad[1, 0])
    if format_ != "json":
        with pytest.raises(BadInput, match=rf"read\.paths: {packed} is .*{fix}"):
            read_files(format_, packed, **options)


ACCEPTED: dict[str, tuple[bytes, dict[str, Any], int]] = {
    "texts with semicolons": (b"text\na; b\nc\nd; e; f\n", {}, 3),
    "a text with one tab": (b"text\na\tb\nc\td\n", {}, 2),
    "an explicit comma": (b"a;b\nc;d\n", {"delimiter": ","}, 1),
    "a header without rows": (b"id;text\n", {}, 0),
    "paths of Windows": (b'id,text\n1,"C:\\dir\\"\n2,"D:\\"\n', {}, 2),
    "a line of another length": (b"id,text\n1,a\n2\n3,c,d\n", {}, 1),
    "one line of another length": (b"id,text\n1\n", {}, 0),
    "one damaged character": (b"id,text\n1,a\n2,\xff\n3,c\n", {}, 2),
    "mostly UTF-8": ("1,ä\n2,ö\n3,ü\n".encode() + b"4,caf\xe9\n", {"columnNames": ["a", "b"]}, 3),
    "NUL characters only": (b"id\n" + b"\0" * 100, {}, 1),
    "NUL characters": (b"id,text\n1,a\0b\n", {}, 1),
    "cp1252": ("id,text\n1,Ã¼ber é\n".encode("cp1252"), {"encoding": "cp1252"}, 1),
}
"""Content and options that leave doubt, and the number of good rows."""


@pytest.mark.parametrize("case", ACCEPTED)
def test_doubtful_file_is_read(tmp_path: Path, case: str) -> None:
    content, options, rows = ACCEPTED[case]
    assert len(read_csv(tmp_path, content, **options).good) == rows


def test_conflict_with_the_separator_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"read\.options\.delimiter"):
        read_csv(tmp_path, "sep=;\nid;text\n1;a\n", delimiter=",")


def test_manifest_is_refused_without_options_that_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("uri;id\nx;1\ny;2\n")
    with pytest.raises(BadInput, match=r"read\.options\.column: .*no column 'uri'.* commas"):
        read_files("manifest", tmp_path / "a.csv")
    for content in ("uri,id\nx,1\n".encode("utf-16"), b"uri,\xff\nx,1\n", b"uri,n,n\nx,1,2\n"):
        (tmp_path / "a.csv").write_bytes(content)
        with pytest.raises(BadInput) as refused:
            read_files("manifest", tmp_path / "a.csv")
        assert "read.options" not in str(refused.value)
