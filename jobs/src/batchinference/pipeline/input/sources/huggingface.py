"""Reads datasets of the Hugging Face Hub, or folders of `save_to_disk`, with Ray's datasource.

In such a folder, `state.json` lists the data files. `datasets` would open any path in this list.
The folder is untrusted, so this module refuses files outside of the folder."""

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
from batchinference.pipeline.ray_data_compat import huggingface_datasource
from batchinference.pipeline.storage.location import Location
from batchinference.spec.addresses import expanded
from batchinference.spec.read import HuggingfaceOptions, ReadHuggingface

PART_ROWS, MAX_PARTS = 1000, 64
"""Rows per part, and the maximum number of parts, of a dataset that can be split at any row."""
_STATE, _SPLITS, _INFO = "state.json", "dataset_dict.json", "dataset_info.json"
"""Files of `save_to_disk`: _STATE and _INFO in the folder of a split, _SPLITS in its parent."""
_REVISION_HASH = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class Part:
    """Opens a dataset in a read task, and reads part `number` of its `parts` parts."""

    path: str
    is_folder: bool
    options: HuggingfaceOptions
    number: int = 0
    parts: int = 1

    def load_dataset(self) -> datasets.Dataset | datasets.IterableDataset:
        """Return the dataset, not only this part, with at most `options.limit` rows."""
        dataset, limit = self._load(), self.options.limit
        if limit is None:
            return dataset
        if isinstance(dataset, datasets.IterableDataset):
            return dataset.take(limit)
        return dataset.select(range(min(limit, len(dataset))))

    def _load(self) -> datasets.Dataset | datasets.IterableDataset:
        options = self.options
        if self.is_folder:
            return _split_of(load_folder(Path(self.path)), options)
        if Path(self.path).exists():  # `datasets` prefers a local folder to the Hub
            raise BadInput(
                f"read.name '{self.path}': the working directory has a folder of this name. Run "
                f"the job in another directory, or write './{self.path}' to read the folder"
            )
        dataset = datasets.load_dataset(
            self.path,
            options.config,
            split=options.split,
            revision=options.revision,
            streaming=options.streaming,
        )
        return _split_of(dataset, options)

    def __call__(self) -> Iterator[Block]:
        part = self.load_dataset().shard(self.parts, self.number, contiguous=True)
        (task,) = huggingface_datasource(part).get_read_tasks(1)
        yield from task()


def open_source(read: ReadHuggingface) -> TableInput:
    """Return the dataset as an input. Raises BadInput if the dataset cannot be loaded. Only the
    description of a streamed dataset is fetched."""
    path = str(expanded(read.name)) if read.is_path else read.name
    all_rows = Part(path, read.is_path, read.options)
    try:
        dataset = all_rows.load_dataset()
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - the library raises many kinds
        raise BadInput(f"read.name '{read.name}': {describe(error)}") from None
    parts, count = _part_count(dataset, read.options), _row_count(dataset, read.options)
    revision = read.options.revision or ""
    is_fixed = _REVISION_HASH.fullmatch(revision) is not None  # a branch or a tag can change
    return TableInput(
        "huggingface",
        [replace(all_rows, number=number, parts=parts) for number in range(parts)],
        dataset.column_names,
        count,
        _size(dataset, count),
        Location(path) if read.is_path else None,
        repeatable=read.is_path or is_fixed,
        version=revision if is_fixed and not read.is_path else None,
    )


def load_folder(folder: Path) -> Any:
    """Return the dataset in a folder of `save_to_disk`, or a dictionary of its splits. Raises
    BadInput if the metadata is missing or damaged, or names files outside of the folder."""
    if (folder / _STATE).exists():
        return _saved_split(folder, "")
    if not (folder / _SPLITS).exists():
        raise BadInput(
            f"read.name '{folder}': save_to_disk has not written this folder. Read plain files "
            "with their own format, such as parquet"
        )
    splits = _json(folder, _SPLITS).get("splits")
    if not isinstance(splits, list):
        raise BadInput(f"read.name '{folder}': {_SPLITS} has no list 'splits'")
    for split in splits:
        _resolved_inside(folder, split or None, _SPLITS)
    return datasets.DatasetDict({split: _saved_split(folder, split) for split in splits})


def _saved_split(folder: Path, split: str) -> datasets.Dataset:
    state = f"{split}/{_STATE}".lstrip("/")
    files = _json(folder, state).get("_data_files")
    if not isinstance(files, list) or not files:
        raise BadInput(f"read.name '{folder}': {state} has no list '_data_files'")
    named = [file.get("filename") if isinstance(file, dict) else None for file in files]
    paths = [_resolved_inside(folder / split, name, state) for name in named]
    info = datasets.DatasetInfo.from_dict(_json(folder, f"{split}/{_INFO}".lstrip("/")))
    parts = [datasets.Dataset.from_file(str(path), info=info.copy()) for path in paths]
    return datasets.concatenate_datasets(parts)


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(_resolved_inside(folder, name, name).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problem = f"{name} cannot be parsed ({type(error).__name__})"
        raise BadInput(f"read.name '{folder}': {problem}") from None
    if not isinstance(content, dict):
        raise BadInput(f"read.name '{folder}': {name} is not a mapping")
    return content


def _resolved_inside(folder: Path, name: object, source: str) -> Path:
    """Return the path of the file or folder `name`, a name in the file `source`. Raises BadInput if
    the path does not exist, or is outside of `folder` once links are resolved."""
    path, root = folder / str(name), folder.resolve()
    below = isinstance(name, str) and path.resolve() != root
    if not below or not path.resolve().is_relative_to(root) or not path.exists():
        raise BadInput(
            f"read.name '{folder}': {source} names '{str(name)[:200]}', which is missing or "
            "outside of the folder. Copy the data into the folder"
        )
    return path


def _split_of(dataset: Any, options: HuggingfaceOptions) -> Any:
    if not isinstance(dataset, dict):
        return dataset
    if options.split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if options.split not in dataset:
        splits = ", ".join(map(str, dataset))
        problem = f"there is no '{options.split}'; " if options.split else ""
        raise BadInput(f"read.options.split: {problem}the data set has {splits}")
    return dataset[options.split]


def _part_count(dataset: Any, options: HuggingfaceOptions) -> int:
    if isinstance(dataset, datasets.IterableDataset):
        limit = 1 if options.limit else dataset.num_shards  # parts cannot share a row limit
        return int(min(options.override_num_blocks or limit, limit))
    default = min(MAX_PARTS, math.ceil(len(dataset) / PART_ROWS))
    return max(1, min(options.override_num_blocks or default, len(dataset)))


def _row_count(dataset: Any, options: HuggingfaceOptions) -> RowCount | None:
    if not isinstance(dataset, datasets.IterableDataset):
        return RowCount(len(dataset), estimated=False)
    described = (dataset.info.splits or {}).get(options.split or str(dataset.split))
    rows = described.num_examples if described else None
    return RowCount(min(rows, options.limit or rows), estimated=True) if rows else None


def _size(dataset: Any, count: RowCount | None) -> int:
    """Return the approximate number of bytes to read; 0 if the dataset does not state its size."""
    all_rows = sum(split.num_examples or 0 for split in (dataset.info.splits or {}).values())
    size = dataset.info.dataset_size or 0
    return round(size * count.rows / all_rows) if count and all_rows else size
