"""Finds the files of a constructor argument by which a change of the step is detected.

The work is limited, because a directory may hold a whole data set in addition to weights."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import islice

from batchinference.pipeline.runtimes.model_files import WEIGHTS

CONFIGS = (
    *("*.json", "*.yaml", "*.yml", "*.toml", "*.ini", "*.cfg", "*.txt", "*.model", "*.tiktoken"),
    *("*.jinja", "*.py", "*.pkl", "*.joblib", "*.npy", "*.npz", "*.keras", "*.pb", "*.tflite"),
    "*.ckpt",
)
"""Name patterns of other files that belong to a model."""
MAX_FILES, MAX_ENTRIES, MAX_DEPTH = 256, 10_000, 2
"""Files of an argument that are hashed, directory entries that are read to find them, and levels of
directories below the argument."""
SECRETS = ("/run/secrets/", "/var/run/secrets/")


@dataclass
class ArgumentFiles:
    """The files of a constructor argument. `entries` is the number of directory entries that were
    read. `complete` is false if some files could not be read, or if there are too many."""

    path: str
    max_entries: int = MAX_ENTRIES
    entries: int = field(default=0, init=False)
    complete: bool = field(default=True, init=False)

    def find(self) -> dict[str, str]:
        """Return the path of each file by its name in the argument. The argument is the path of a
        file, or of a directory that directly holds weights. Other directories have no files,
        because a step may write to them. Hidden files are left out."""
        if os.path.isdir(self.path):
            found = list(islice(self._weights_and_configs(), MAX_FILES + 1))
            self.complete = self.complete and len(found) <= MAX_FILES
            files = {os.path.relpath(path, self.path): path for path in found[:MAX_FILES]}
        else:
            name = os.path.basename(self.path)
            shown = not name.startswith(".") and self._is_file(self.path)
            files = {name: self.path} if shown else {}
        return {name: path for name, path in files.items() if not _is_mounted(path)}

    def _is_file(self, path: str) -> bool:
        """Return whether a path is a file. If it is unknown, return False, and record that."""
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError):
            self.complete = False
            return False

    def _weights_and_configs(self) -> Iterator[str]:
        entries = self._entries(self.path)
        if any(_matches(entry.name, WEIGHTS) for entry in entries):
            yield from self._files(entries, MAX_DEPTH)

    def _files(self, entries: list[os.DirEntry[str]], depth: int) -> Iterator[str]:
        """Yield the files among these entries, then those in directories below. Links to
        directories are not followed, because they may form a cycle."""
        directories = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
            elif _matches(entry.name, (*WEIGHTS, *CONFIGS)) and self._is_file(entry.path):
                yield entry.path
        for directory in directories if depth else ():
            if self.entries > self.max_entries:
                return
            yield from self._files(self._entries(directory), depth - 1)

    def _entries(self, directory: str) -> list[os.DirEntry[str]]:
        """Return the entries of a directory in the order of their names, without hidden ones."""
        try:
            with os.scandir(directory) as found:
                entries = list(islice(found, self.max_entries + 1 - self.entries))
        except OSError:
            self.complete = False
            return []
        self.entries += len(entries)
        self.complete = self.complete and self.entries <= self.max_entries
        visible = (entry for entry in entries if not entry.name.startswith("."))
        return sorted(visible, key=lambda entry: entry.name)


def _is_mounted(path: str) -> bool:
    """Return whether a file is mounted on its own, or from a Secret or a ConfigMap. The output must
    not hold the hash of a secret. Kubernetes mounts these files as links to directories such as
    `..data`, and may replace their content while a job runs."""
    real = os.path.realpath(path)
    linked = any(part.startswith("..") for part in real.split(os.sep))
    secret = any(place.startswith(SECRETS) for place in (real, os.path.abspath(path)))
    return linked or secret or os.path.ismount(real)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
