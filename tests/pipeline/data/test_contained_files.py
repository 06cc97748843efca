"""Nothing outside of the input is read: not through symbolic links in a directory of `read.paths`,
and not through a folder of a Hugging Face data set.

Otherwise anyone who can write there could read the files of the job, such as mounted Secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow.fs as pafs
import pytest

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.sources.huggingface import Part
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import HuggingfaceOptions
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
    """The cache of the Hugging Face Hub and mounted ConfigMaps have such links."""
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
    opened = open_input(format_, file.parent, on_change="recompute")
    file.unlink()
    file.symlink_to(tmp_path / "in-secret")
    content = opened.read()
    assert content.good == []
    assert len(content.bad) == 1


def test_whole_file_is_read_without_a_file_system_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would open each file twice, which takes a notable part of the time of small images."""
    file = tmp_path / "a.bin"
    file.write_bytes(b"abc")
    location = Location(str(file)).contained_in([str(tmp_path)])
    monkeypatch.setattr(pafs, "PyFileSystem", None)
    assert (location.read(), location.read(2)) == (b"abc", b"ab")


ROW = {"text": "a row"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    datasets.DatasetDict({"train": datasets.Dataset.from_list([ROW])}).save_to_disk(
        tmp_path / "set"
    )
    return tmp_path / "set"


def rows(folder: Path) -> list[dict[str, Any]]:
    return list(Part(str(folder), True, HuggingfaceOptions(split="train")).load_dataset())


def test_saved_dataset_is_read(folder: Path) -> None:
    assert rows(folder) == rows(folder / "train") == [ROW]


def test_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(BadInput, match="their own format"):
        rows(tmp_path)


def test_links_are_refused(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "train").glob("*.arrow")
    file.rename(tmp_path / "victim")
    file.symlink_to(tmp_path / "victim")
    with pytest.raises(BadInput, match="outside of the folder"):
        rows(folder)


def test_folder_with_the_name_of_a_set_of_the_hub_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(BadInput, match=r"write '\./set'"):
        Part("set", False, HuggingfaceOptions(split="train")).load_dataset()


@pytest.mark.parametrize(
    "state",
    ["[]", "{", "{}", '{"_data_files": ["x"]}', '{"_data_files": [{}]}', '{"_data_files": []}',
     '{"_data_files": [{"filename": "../../other.arrow"}]}',
     '{"_data_files": [{"filename": "/tmp/other.arrow"}]}',
     '{"_data_files": [{"filename": "file:/tmp/other.arrow"}]}'],
)  # fmt: skip
def test_saved_state_cannot_name_other_files(folder: Path, state: str) -> None:
    (folder / "train/state.json").write_text(state)
    with pytest.raises(BadInput, match=r"train/state\.json "):
        rows(folder)


@pytest.mark.parametrize("splits", ["train", ["../other"], ["."], [""], ["/tmp"], [1]])
def test_saved_splits_cannot_be_elsewhere(folder: Path, splits: Any) -> None:
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(BadInput, match=r"dataset_dict\.json "):
        rows(folder)
