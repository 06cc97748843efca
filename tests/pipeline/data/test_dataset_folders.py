"""Folders of Hugging Face data sets: nothing outside of them is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.sources.huggingface import Part
from batchinference.spec.read import HuggingfaceOptions

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
