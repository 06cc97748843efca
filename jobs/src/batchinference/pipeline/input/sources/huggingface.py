"""Reads datasets from the Hugging Face Hub or saved by `datasets`, with Ray's datasource.

The state in a saved folder names its files, and the library follows any path. The folder is input,
so it must not make the job read anything else: only files in the folder are opened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from ray.data.block import Block

from batchinference.pipeline.errors import BadInput, describe
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.sources import TableInput
from batchinference.pipeline.ray_compat import huggingface_datasource
from batchinference.pipeline.storage.location import Location
from batchinference.spec.addresses import local_path
from batchinference.spec.read import HuggingfaceOptions, ReadHuggingface

PART_ROWS, MOST_PARTS = 1000, 64
"""Rows per part, and the maximum number of parts, of a dataset that can be split at any row."""
_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
"""Files that `save_to_disk` writes: to the folder of a split, to the folder, to both."""
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Part:
    """A part of a dataset. The read task opens the dataset."""

    path: str
    is_folder: bool
    options: HuggingfaceOptions
    number: int = 0
    parts: int = 1

    def load(self) -> datasets.Dataset | datasets.IterableDataset:
        """Return the whole dataset, up to the limit."""
        found, limit = self._load(), self.options.limit
        if limit is None:
            return found
        if isinstance(found, datasets.IterableDataset):
            return found.take(limit)
        return found.select(range(min(limit, len(found))))

    def _load(self) -> datasets.Dataset | datasets.IterableDataset:
        options = self.options
        if self.is_folder:
            return _split_of(load_folder(Path(self.path)), options)
        if Path(self.path).exists():  # the library would prefer it to the Hub
            raise BadInput(
                f"read.name '{self.path}': there is a folder of this name here. Run the "
                f"job elsewhere, or write './{self.path}' to read the folder"
            )
        found = datasets.load_dataset(
            self.path,
            options.config,
            split=options.split,
            revision=options.revision,
            streaming=options.streaming,
        )
        return _split_of(found, options)

    def __call__(self) -> Iterator[Block]:
        part = self.load().shard(self.parts, self.number, contiguous=True)
        (task,) = huggingface_datasource(part).get_read_tasks(1)
        yield from task()


def open_source(read: ReadHuggingface) -> TableInput:
    """Return the dataset as an input. Raises BadInput if it cannot be loaded.

    For a streamed dataset, only its description is fetched here."""
    path = str(Path(local_path(read.name)).expanduser()) if read.is_path else read.name
    whole = Part(path, read.is_path, read.options)
    try:
        found = whole.load()
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises many kinds
        raise BadInput(f"read.name '{read.name}': {describe(error)}") from None
    parts, count = _parts(found, read.options), _count(found, read.options)
    return TableInput(
        "huggingface",
        [replace(whole, number=number, parts=parts) for number in range(parts)],
        found.column_names,
        count,
        _size(found, count),
        Location(path) if read.is_path else None,
        repeatable=read.is_path or read.options.revision is not None,
        version=_commit(read),
    )


def load_folder(folder: Path) -> Any:
    """Return the dataset that `save_to_disk` has written to a folder; a dictionary if it has
    splits. Raises BadInput if there is none, or if the folder names anything outside of it."""
    if (folder / _STATE).exists():
        return _saved_split(folder, "")
    if not (folder / _SPLITS).exists():
        raise BadInput(
            f"read.name '{folder}': there is no dataset of save_to_disk. Read the files of other "
            "folders with their own format, such as parquet"
        )
    splits = _json(folder, _SPLITS).get("splits")
    if not isinstance(splits, list):
        raise BadInput(f"read.name '{folder}': {_SPLITS} has no list 'splits'")
    for split in splits:
        _inside(folder, split or None, _SPLITS)
    return datasets.DatasetDict({split: _saved_split(folder, split) for split in splits})


def _saved_split(folder: Path, split: str) -> datasets.Dataset:
    state = f"{split}/{_STATE}".lstrip("/")
    files = _json(folder, state).get("_data_files")
    if not isinstance(files, list) or not files:
        raise BadInput(f"read.name '{folder}': {state} has no list '_data_files'")
    named = [file.get("filename") if isinstance(file, dict) else None for file in files]
    paths = [_inside(folder / split, name, state) for name in named]
    info = datasets.DatasetInfo.from_dict(_json(folder, f"{split}/{_INFO}".lstrip("/")))
    return datasets.concatenate_datasets(
        [datasets.Dataset.from_file(str(path), info=info.copy()) for path in paths]
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads(_inside(folder, name, name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{name} cannot be parsed ({type(error).__name__})"
        raise BadInput(f"read.name '{folder}': {problem}") from None
    if not isinstance(found, dict):
        raise BadInput(f"read.name '{folder}': {name} is not a mapping")
    return found


def _inside(folder: Path, name: object, source: str) -> Path:
    """Return the path of a file or folder that `source` names. Raises BadInput if it is not below
    the folder, also because of links."""
    path, root = folder / str(name), folder.resolve()
    below = isinstance(name, str) and path.resolve() != root
    if not below or not path.resolve().is_relative_to(root) or not path.exists():
        raise BadInput(
            f"read.name '{folder}': {source} names '{str(name)[:200]}', which is not below it. "
            "Copy the data into the folder"
        )
    return path


def _commit(read: ReadHuggingface) -> str | None:
    """Return the revision if it is a commit hash; else None, because a branch can change."""
    revision = read.options.revision or ""
    return revision if _COMMIT.fullmatch(revision) and not read.is_path else None


def _split_of(found: Any, options: HuggingfaceOptions) -> Any:
    if not isinstance(found, dict):
        return found
    if options.split is None and len(found) == 1:
        return next(iter(found.values()))
    if options.split not in found:
        splits = ", ".join(map(str, found))
        asked = f"there is no '{options.split}'; " if options.split else ""
        raise BadInput(f"read.options.split: {asked}the data set has {splits}")
    return found[options.split]


def _parts(found: Any, options: HuggingfaceOptions) -> int:
    if isinstance(found, datasets.IterableDataset):
        most = 1 if options.limit else found.num_shards  # parts cannot share a limit
        return int(min(options.override_num_blocks or most, most))
    default = min(MOST_PARTS, math.ceil(len(found) / PART_ROWS))
    return max(1, min(options.override_num_blocks or default, len(found)))


def _count(found: Any, options: HuggingfaceOptions) -> RowCount | None:
    if not isinstance(found, datasets.IterableDataset):
        return RowCount(len(found), estimated=False)
    described = (found.info.splits or {}).get(options.split or str(found.split))
    rows = described.num_examples if described else None
    return RowCount(min(rows, options.limit or rows), estimated=True) if rows else None


def _size(found: Any, count: RowCount | None) -> int:
    """Return the approximate number of bytes to read; 0 if the dataset does not state its size."""
    all_rows = sum(split.num_examples or 0 for split in (found.info.splits or {}).values())
    whole = found.info.dataset_size or 0
    return round(whole * count.rows / all_rows) if count and all_rows else whole
