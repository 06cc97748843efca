"""Checks that a Hugging Face data set in a folder reads only files of this folder.

Its README and the state that `save_to_disk` writes name the files of the data set, and the library
follows any path or address. The folder is input, so it must not read anything else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.storage.location import is_inside
from batchinference.spec.arguments import texts_in

SAVED = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` writes to a directory."""
_CARDS = ("README.md", ".huggingface.yaml")
MAX_BYTES = 1 << 20
"""Maximum size of a file that names files."""


def check_dataset_folder(folder: Path) -> None:
    """Raise BadInput if the folder has a link to a file outside of it, or if one of its files names
    a path or an address outside of it."""
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise _outside(folder, path, "is a link to a file outside of the folder")
        if path.name in (*_CARDS, *SAVED) and path.is_file():
            for name in _names_in(folder, path):
                if not _is_below(name):
                    raise _outside(folder, path, f"names '{name[:200]}', which is not below it")


def _outside(folder: Path, path: Path, problem: str) -> BadInput:
    where = path.relative_to(folder)
    return BadInput(f"read.name '{folder}': {where} {problem}. Copy the data into the folder")


def _is_below(name: str) -> bool:
    relative = name.removeprefix("./").rstrip("/")
    return not relative or ("://" not in relative and is_inside(os.path.normpath(relative)))


def _names_in(folder: Path, path: Path) -> Iterator[str]:
    """Yield the paths in a file of a data set. Raises BadInput if it cannot be parsed."""
    if path.stat().st_size > MAX_BYTES:
        raise _outside(folder, path, f"has more than {MAX_BYTES} bytes")
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.name in SAVED:
            return _saved_names(json.loads(text))
        return texts_in(_metadata_of_card(path.name, text).get("configs"))
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError) as error:
        raise _outside(folder, path, f"cannot be parsed ({type(error).__name__})") from None


def _metadata_of_card(name: str, text: str) -> Any:
    """Return the metadata of a card: YAML between two lines of dashes, or the whole file."""
    if name == "README.md":
        _, *parts = text.split("---", 2) if text.startswith("---") else ("",)
        text = parts[0] if parts else ""
    return yaml.safe_load(text) or {}


def _saved_names(state: Any) -> Iterator[str]:
    yield from (str(file.get("filename", "")) for file in state.get("_data_files") or [])
    yield from map(str, state.get("splits") or [])
