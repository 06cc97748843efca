"""Loads a Hugging Face data set from a folder, with files of this folder only.

Its card (README) and the state that `save_to_disk` writes name the files of the data set, and the
library follows any path or address. The folder is input, so it must not read anything else: the
library gets only files that were found here, and reads neither card nor state.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import datasets
import yaml
from datasets.data_files import DataFilesDict, get_data_patterns, sanitize_patterns
from datasets.info import DatasetInfosDict
from datasets.load import infer_module_for_data_files
from datasets.packaged_modules import (
    _ALL_ALLOWED_EXTENSIONS,
    _MODULE_TO_EXTENSIONS,
    _MODULE_TO_METADATA_FILE_NAMES,
)
from huggingface_hub import DatasetCardData
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import is_inside
from batchinference.spec.read import HuggingfaceOptions

_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
"""Files that `save_to_disk` writes: to the folder of a split, to the folder, to both."""
_BUILDERS = {
    *("arrow", "csv", "hdf5", "json", "parquet", "text", "webdataset", "xml"),
    *("audiofolder", "imagefolder", "pdffolder", "videofolder"),
}
"""Builders of the library whose files name no other files."""
_CONFIG_FIELDS = {"config_name", "data_dir", "data_files", "default", "description", "version"}
_OPTIONS = {
    *("sep", "delimiter", "header", "names", "column_names", "quotechar", "skiprows", "encoding"),
    *("drop_labels", "drop_metadata", "field", "columns", "keep_linebreaks", "sample_by"),
}
"""Options of builders in a card. None of them names a file."""
_INFOS = "dataset_infos.json"
"""The types of columns in folders of older versions of the library."""
MAX_ALIASES = 16
"""Maximum number of YAML aliases in a card. More could stand for any number of values."""
MAX_BYTES = 1 << 20
"""Maximum size of a file that names files."""


def load_folder(path: str, options: HuggingfaceOptions) -> Any:
    """Return the data set in a folder; a dictionary if it has several splits.

    Raises BadInput if the folder names or links to anything outside of it."""
    folder = _Folder(Path(path))
    folder.check_entries()
    if (folder.path / _STATE).exists():
        return folder.saved_split("")
    if (folder.path / _SPLITS).exists():
        return datasets.DatasetDict({name: folder.saved_split(name) for name in folder.splits()})
    return folder.load_files(options)


@dataclass(frozen=True)
class _Folder:
    path: Path

    def wrong(self, file: str, problem: str) -> BadInput:
        return BadInput(f"read.name '{self.path}': {file} {problem}")

    def outside(self, file: str, name: object) -> BadInput:
        problem = f"names '{str(name)[:200]}', which is not below it. Copy the data into the folder"
        return self.wrong(file, problem)

    def check_entries(self) -> None:
        """Raise BadInput if there is a link to a directory or to a file outside of the folder."""
        if not self.path.is_dir():
            raise BadInput(f"read.name '{self.path}': there is no such folder")
        root = self.path.resolve()
        for entry in _entries(root):
            if entry.is_symlink():
                target = Path(entry.path).resolve()
                if target.is_dir() or not target.is_relative_to(root):
                    problem = "is a link to a directory or to a file outside of the folder"
                    name = os.path.relpath(entry.path, root)
                    raise self.wrong(name, f"{problem}. Copy the data into the folder")

    def text(self, name: str) -> str:
        path = self.path / name
        if path.stat().st_size > MAX_BYTES:
            raise self.wrong(name, f"has more than {MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8-sig", errors="replace")

    def json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(self.text(name))
        except (ValueError, RecursionError) as error:
            raise self.wrong(name, f"cannot be parsed ({type(error).__name__})") from None
        if not isinstance(found, dict):
            raise self.wrong(name, "is not a mapping")
        return found

    def splits(self) -> list[str]:
        """Return the names of the folders of a saved data set's splits."""
        found = self.json(_SPLITS).get("splits")
        if not isinstance(found, list):
            raise self.wrong(_SPLITS, "has no list 'splits'")
        return [self.below(name or None, _SPLITS) for name in found]

    def saved_split(self, split: str) -> datasets.Dataset:
        """Return the split that `save_to_disk` wrote to a folder of this folder."""
        state = os.path.join(split, _STATE)
        files = self.json(state).get("_data_files")
        if not isinstance(files, list) or not files:
            raise self.wrong(state, "has no list '_data_files'")
        named = (file.get("filename") if isinstance(file, dict) else None for file in files)
        names = [self.below(name, state) for name in named]
        info = datasets.DatasetInfo.from_dict(self.json(os.path.join(split, _INFO)))
        paths = (str(self.path / split / name) for name in names)
        return datasets.concatenate_datasets(
            [datasets.Dataset.from_file(path, info=info.copy()) for path in paths]
        )

    def load_files(self, options: HuggingfaceOptions) -> Any:
        """Return the data set of the data files, by the patterns of the card or of the library."""
        card = self.card()
        config = self.config(card, options.config)
        files = self.files(config)
        builder, settings = infer_module_for_data_files(files, str(self.path))
        if builder not in _BUILDERS:
            raise self.wrong("it", f"has files for '{builder}', which are not read from folders")
        files = files.filter(
            extensions=_MODULE_TO_EXTENSIONS[builder],
            file_names=_MODULE_TO_METADATA_FILE_NAMES[builder],
        )
        name = config.get("config_name", options.config)
        settings |= self.settings(config, builder)
        return datasets.load_dataset(
            builder,
            data_files=files,
            split=options.split,
            streaming=options.streaming,
            # the library determines the columns of folders of media from their files
            features=None if builder.endswith("folder") else self.features(card, name),
            **settings,
        )

    def card(self) -> dict[str, Any]:
        """Return the metadata of the card. Raises BadInput if it cannot be parsed."""
        card: dict[str, Any] = {}
        for name in ("README.md", ".huggingface.yaml"):
            if not (self.path / name).is_file():
                continue
            text = self.text(name)
            if name == "README.md":
                block = REGEX_YAML_BLOCK.search(text)
                text = block[2] if block else ""
            try:
                found = yaml.load(text, _Loader) or {}  # noqa: S506 - a safe loader
            except (yaml.YAMLError, ValueError, RecursionError) as error:
                problem = getattr(error, "problem", None) or type(error).__name__
                raise self.wrong(name, f"cannot be parsed ({problem})") from None
            if not isinstance(found, dict):
                raise self.wrong(name, "is not a mapping")
            card |= found
        return card

    def config(self, card: dict[str, Any], wanted: str | None) -> dict[str, Any]:
        """Return the configuration to read. Raises BadInput if the card has no such one."""
        found = card.get("configs") or []
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.wrong("its card", "has no list of mappings in 'configs'")
        configs: dict[str, dict[str, Any]] = {
            str(one.get("config_name")): one for one in found
        } or {"default": {}}
        usual = [name for name in configs if configs[name].get("default")]
        usual += [name for name in configs if name == "default" or len(configs) == 1]
        name = wanted or next(iter(usual), None)
        if name not in configs:
            asked = f"there is no '{wanted}'; " if wanted else ""
            raise BadInput(f"read.options.config: {asked}the data set has {', '.join(configs)}")
        if unknown := sorted(map(str, configs[name].keys() - _CONFIG_FIELDS - _OPTIONS)):
            problem = f"sets {', '.join(unknown)} for '{name}', which is not supported for folders"
            raise self.wrong("its card", f"{problem}. Read the files with their own format")
        return configs[name]

    def settings(self, config: dict[str, Any], builder: str) -> dict[str, Any]:
        """Return the options of the builder that the card sets."""
        given = {option: config[option] for option in _OPTIONS & config.keys()}
        module = importlib.import_module(f"datasets.packaged_modules.{builder}.{builder}")
        classes = (one for name, one in vars(module).items() if name.endswith("Config"))
        known = {field.name for one in classes for field in fields(one)}
        if unknown := sorted(given.keys() - known):
            named = ", ".join(unknown)
            raise self.wrong(
                "its card", f"sets {named} for '{config['config_name']}', which {builder} has not"
            )
        return given

    def files(self, config: dict[str, Any]) -> DataFilesDict:
        """Return the paths of the data files of each split. They are all in this folder."""
        root, names = self.path.resolve(), config.get("data_files")
        base = root / self.below(config.get("data_dir") or "")
        patterns = get_data_patterns(str(base)) if names is None else sanitize_patterns(names)
        for pattern in chain(*patterns.values()):
            self.below(pattern)
        found = DataFilesDict.from_patterns(patterns, str(base), _ALL_ALLOWED_EXTENSIONS)
        for file in chain(*found.values()):
            if "::" in file or not Path(file).resolve().is_relative_to(root):
                raise self.outside("it", file)
        return found

    def below(self, name: object, file: str = "its card") -> str:
        """Return the name. Raises BadInput if it is not that of a file below this folder."""
        if not isinstance(name, str) or not _is_below(name):
            raise self.outside(file, name)
        return name

    def older_infos(self) -> dict[str, datasets.DatasetInfo]:
        if not (self.path / _INFOS).is_file():
            return {}
        infos = self.json(_INFOS)
        return {name: datasets.DatasetInfo.from_dict(one) for name, one in infos.items()}

    def features(self, card: dict[str, Any], config: str | None) -> datasets.Features | None:
        """Return the types of columns that the card declares."""
        try:
            infos = self.older_infos() | DatasetInfosDict.from_dataset_card_data(
                DatasetCardData(dataset_info=card.get("dataset_info"))
            )
        except BadInput:
            raise
        except Exception as error:  # noqa: BLE001 - the library raises many kinds
            problem = f"has a 'dataset_info' that cannot be read ({type(error).__name__})"
            raise self.wrong("its card", problem) from None
        info = infos.get(config or "default")
        if info is None and config is None and len(infos) == 1:
            (info,) = infos.values()
        return info.features if info else None


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses many aliases, whose expansion has no bound."""

    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.aliases += bool(self.check_event(yaml.AliasEvent))
        if self.aliases > MAX_ALIASES:
            problem = f"more than {MAX_ALIASES} aliases"
            raise yaml.constructor.ConstructorError(None, None, problem)
        return super().compose_node(parent, index)


def _entries(directory: Path | str) -> Iterator[os.DirEntry[str]]:
    """Yield what is in a directory and in its directories, without following links."""
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def _is_below(name: str) -> bool:
    """Return whether a name or a pattern is relative and stays in its folder. It has no colon,
    because the library would also open `file:/x` and `zip://x::y`."""
    relative = name.removeprefix("./").rstrip("/")
    return not relative or (":" not in relative and is_inside(os.path.normpath(relative)))
