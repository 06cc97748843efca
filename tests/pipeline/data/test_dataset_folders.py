"""Folders of Hugging Face data sets: what is read, and that nothing outside of them is.

The expected rows are those that the library reads from a folder without hostile names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.sources.dataset_folder import load_folder
from batchinference.pipeline.input.sources.huggingface import Part
from batchinference.spec.read import HuggingfaceOptions
from support.documents.minimal import Document

SECRET = {"text": "the secret of the job"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "victim/secret.json"
    path.parent.mkdir()
    path.write_text(json.dumps(SECRET))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with three files of two splits in a folder of each language."""
    for language in ("de", "en"):
        (tmp_path / "set" / language).mkdir(parents=True)
        for name in ("train-0", "train-1", "test-0"):
            row = {"id": name, "text": language}
            (tmp_path / "set" / language / f"{name}.json").write_text(json.dumps(row))
    return tmp_path / "set"


def configured(path: Any, **fields: Any) -> str:
    config = {"config_name": "default", "data_files": [{"split": "train", "path": path}]}
    return yaml.safe_dump({"configs": [config | fields]})


def card(metadata: str) -> str:
    return f"---\n{metadata}---\n# Data\n"


def rows(folder: Path, **options: Any) -> list[dict[str, Any]]:
    found = Part(str(folder), True, HuggingfaceOptions(**{"split": "train", **options})).load()
    return list(found)


BLOCKS = {
    "plain": card,
    "newline first": lambda metadata: "\n" + card(metadata),
    "spaces first": lambda metadata: "  " + card(metadata),
    "byte order mark": lambda metadata: "\ufeff" + card(metadata),
    "carriage returns": lambda metadata: card(metadata).replace("\n", "\r\n"),
    "dashes in a value": lambda metadata: card(f"pretty_name: a---b\n{metadata}"),
    "dashes in a comment": lambda metadata: card(f"# ---\n{metadata}"),
}
"""Spellings of a card that the library accepts."""
NAMES = (
    "{secret}", "../victim/secret.json", "../victim/*", "de/../../victim/secret.json",
    "file://{secret}", "file:{secret}", "local:{secret}", "local://{secret}",
    "simplecache::file://{secret}", "[.][.]/victim/*.json",
    "http://127.0.0.1:9/secret?x=.json", "hf://datasets/other/secret.json",
)  # fmt: skip


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_card_cannot_name_other_files(
    folder: Path, secret: Path, name: str, streaming: bool
) -> None:
    metadata = configured(name.format(secret=secret))
    for file, text in (("README.md", card(metadata)), (".huggingface.yaml", metadata)):
        (folder / file).write_text(text)
        with pytest.raises((BadInput, datasets.exceptions.DataFilesNotFoundError)):
            rows(folder, streaming=streaming)
        (folder / file).unlink()


@pytest.mark.parametrize("block", BLOCKS)
def test_every_spelling_of_a_card_is_parsed(folder: Path, secret: Path, block: str) -> None:
    write: Callable[[str], str] = BLOCKS[block]
    (folder / "README.md").write_text(write(configured("en/train-*.json")), newline="")
    assert {row["text"] for row in rows(folder)} == {"en"}
    (folder / "README.md").write_text(write(configured(f"file:{secret}")), newline="")
    with pytest.raises(BadInput, match="which is not below it"):
        rows(folder)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"config": "de"},
        {"config": "en", "split": "test"},
        {"split": "train[:1]", "streaming": False, "config": "de"},
    ],
)
def test_rows_equal_the_library(folder: Path, config: Document) -> None:
    configs = [
        {"config_name": "de", "data_dir": "de"},
        {"config_name": "en", "data_files": [{"split": "train", "path": ["en/train-1*"]},
                                             {"split": "test", "path": "en/test-*"}],
         "default": True},
    ]  # fmt: skip
    (folder / "README.md").write_text(card(yaml.safe_dump({"configs": configs})))
    options = HuggingfaceOptions(**{"split": "train", **config})
    expected = datasets.load_dataset(
        str(folder), options.config, split=options.split, streaming=options.streaming
    )
    assert rows(folder, **config) == list(expected) != []


def test_types_that_the_card_declares_are_used(folder: Path) -> None:
    declared = [{"name": "id", "dtype": "string"}, {"name": "text", "dtype": "large_string"}]
    (folder / "README.md").write_text(
        card(yaml.safe_dump({"dataset_info": {"features": declared}}))
    )
    options = HuggingfaceOptions(split="train")
    features = load_folder(str(folder), options).features
    assert features == datasets.load_dataset(str(folder), split="train").features
    assert features["text"].dtype == "large_string"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", card("a: &a [x]\nb: *a\n" + configured("a.csv", sep=";"))),
        ("dataset_infos.json", json.dumps({"default": {"features": {
            "a": {"dtype": "float32", "_type": "Value"}}}})),
    ],
)  # fmt: skip
def test_options_and_older_types_are_those_of_the_library(
    tmp_path: Path, name: str, text: str
) -> None:
    place = tmp_path / "set"
    place.mkdir()
    (place / "a.csv").write_text("a;b\n1;x\n" if name == "README.md" else "a\n1\n")
    (place / name).write_text(text)
    found = load_folder(str(place), HuggingfaceOptions(split="train", streaming=False))
    expected = datasets.load_dataset(str(place), split="train")
    assert (found.features, list(found)) == (expected.features, list(expected))


def test_media_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set/README.md").write_text("# no metadata")
    (tmp_path / "set/a.png").write_bytes(b"\x89PNG")
    found = load_folder(str(tmp_path / "set"), HuggingfaceOptions(split="train"))
    assert isinstance(found.features["image"], datasets.Image)


BOMB = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefgh"))
REFUSED = {
    "aliases": (f"a: &a [x]\n{BOMB}configs: *h\n", "more than 16 aliases"),
    "no mapping": ("- 1\n", "is not a mapping"),
    "no YAML": ("configs: [\n", "cannot be parsed"),
    "configs is a text": ("configs: x\n", "no list of mappings"),
    "an option that may name a file": (configured("de/*", module="x"), "sets module for 'default'"),
    "an option of another builder": (configured("de/*", sep=";"), "sets sep for 'default'"),
    "a name is a mapping": (configured([{"a": 1}]), "which is not below it"),
    "a folder outside": (configured("*", data_dir="../victim"), "which is not below it"),
    "other types": ("dataset_info: {features: [{name: a, dtype: {x: y}}]}\n", "cannot be read"),
    "other files": (configured("*.md"), "which are not read from folders"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_card_that_cannot_be_followed_is_refused(folder: Path, case: str) -> None:
    metadata, reason = REFUSED[case]
    (folder / "b.md").touch()
    (folder / "README.md").write_text(card(metadata))
    with pytest.raises(BadInput, match=reason):
        rows(folder)


def test_unknown_configuration_is_refused(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"read\.options\.config: there is no 'fr'.* default"):
        rows(folder, config="fr")


def test_links_are_refused_by_every_task(folder: Path, secret: Path) -> None:
    part = Part(str(folder), True, HuggingfaceOptions(split="train"))
    part.load()
    for target in (secret, folder / "de"):
        (folder / "train-9").symlink_to(target)
        with pytest.raises(BadInput, match="link"):
            part.load()
        (folder / "train-9").unlink()


def test_folder_with_the_name_of_a_set_of_the_hub_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    with pytest.raises(BadInput, match=r"write '\./set'"):
        Part("set", False, HuggingfaceOptions(split="train")).load()


@pytest.mark.parametrize(
    "state",
    ["[]", "{", "{}", '{"_data_files": ["x"]}', '{"_data_files": [{}]}', '{"_data_files": []}',
     '{"_data_files": [{"filename": "../../other.arrow"}]}',
     '{"_data_files": [{"filename": "/tmp/other.arrow"}]}',
     '{"_data_files": [{"filename": "file:/tmp/other.arrow"}]}'],
)  # fmt: skip
def test_saved_state_cannot_name_other_files(tmp_path: Path, state: str) -> None:
    saved = datasets.Dataset.from_list([SECRET])
    datasets.DatasetDict({"train": saved}).save_to_disk(tmp_path / "set")
    assert rows(tmp_path / "set") == [SECRET]
    (tmp_path / "set/train/state.json").write_text(state)
    with pytest.raises(BadInput, match=r"train/state\.json "):
        rows(tmp_path / "set")


@pytest.mark.parametrize("splits", ["train", ["../set/train"], ["."], [""], ["/tmp"], [1]])
def test_saved_splits_cannot_be_elsewhere(tmp_path: Path, splits: Any) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list([SECRET])}).save_to_disk(
        tmp_path / "set"
    )
    (tmp_path / "set/dataset_dict.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(BadInput, match=r"dataset_dict\.json "):
        rows(tmp_path / "set")
