"""A symbolic link in an input directory does not lead to a file outside of `read.paths`.

Otherwise anyone who can write there could read the files of the job, such as mounted Secrets.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from batchinference.pipeline.storage.location import Location
from support.inputs.formats import CASES
from support.inputs.read_files import open_input, read_files


@pytest.mark.parametrize("name", CASES)
def test_rows_behind_a_link_are_failed_rows(tmp_path: Path, name: str) -> None:
    case, outside, source = CASES[name], tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    source.mkdir()
    rows = case.write(outside)
    linked = [file for file in outside.iterdir() if file.is_file()]
    for file in linked:
        (source / file.name).symlink_to(file)
    refused = read_files(case.format, source, **case.options)
    assert refused.good == []
    assert len(refused.bad) == len(linked)
    for error in refused.bad.values():
        assert "is read through a symbolic link, and the file is outside of read.paths" in error
    if name != "manifest":  # its files have relative addresses
        links = [source / file.name for file in linked]
        assert len(read_files(case.format, *links, **case.options).good) == len(rows)


def test_links_within_the_paths_are_read(tmp_path: Path) -> None:
    """As in the cache of the Hugging Face Hub, and in a mounted ConfigMap."""
    blobs, files = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    files.mkdir(parents=True)
    (blobs / "abc").write_text("a\n")
    (files / "a.txt").symlink_to("../../blobs/abc")
    for paths in ([tmp_path], [blobs / "*", files], [files / "a.txt"]):
        read = read_files("text", *paths)
        assert "a" in [row["text"] for row in read.good]
        assert read.bad == {}
    assert len(read_files("text", tmp_path / "snapshots" / "*").bad) == 1
    (tmp_path / "link").symlink_to(tmp_path)
    assert read_files("text", tmp_path / "link").bad == {}


@pytest.mark.parametrize("format_", ["text", "binary"])
def test_file_that_is_replaced_by_a_link_is_not_read(tmp_path: Path, format_: str) -> None:
    (tmp_path / "in-secret").write_text("secret\n")
    file = tmp_path / "in" / "a.txt"
    file.parent.mkdir()
    file.write_text("public\n")
    opened = open_input(format_, file.parent)
    file.unlink()
    file.symlink_to(tmp_path / "in-secret")
    found = opened.read()
    assert found.good == []
    assert len(found.bad) == 1


def test_whole_file_is_read_without_a_file_system_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would open each file twice, which takes a notable part of the time of small images."""
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc")
    place = Location(str(file)).contained_in([str(tmp_path)])
    monkeypatch.setattr(pafs, "PyFileSystem", None)
    assert (place.read(), place.read(2)) == (b"abc", b"ab")
