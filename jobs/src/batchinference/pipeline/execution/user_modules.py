"""Copies the user's modules in the directory of a job, for processes on other machines."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from batchinference.pipeline.errors import JobFailure
from batchinference.spec.job import BatchInferenceSpec

MAX_BYTES = 100 << 20
"""Maximum size of the modules that are sent. Data and models of a project do not belong there."""
_MODULES = (".py", ".so")


def names_code(spec: BatchInferenceSpec) -> bool:
    """Return whether a step uses code that may be in the directory of the job."""
    models = (step.model.factory_or_none for step in spec.steps if step.model is not None)
    return any(models) or any(step.python is not None for step in spec.steps)


@contextmanager
def copied_modules(directory: str) -> Iterator[str | None]:
    """Yield a temporary directory with only the modules and packages of a directory.

    Yields None if there are none. Ray would send the whole directory, including data and outputs.
    Raises JobFailure if the modules are too large or cannot be read.
    """
    files = list(_files_of_modules(Path(directory)))
    if not files:
        yield None
        return
    _check_size(files)
    with tempfile.TemporaryDirectory(prefix="batchinference-") as copy:
        for file in files:
            _copy(file, Path(copy) / file.relative_to(directory))
        yield copy


def _files_of_modules(directory: Path) -> Iterator[Path]:
    for entry in sorted(directory.iterdir()):
        if (entry / "__init__.py").is_file():
            yield from _files_of_package(entry)
        elif entry.name.endswith(_MODULES) and entry.is_file():
            yield entry


def _files_of_package(package: Path) -> Iterator[Path]:
    """Yield the files of a package, without caches and hidden files such as editor locks."""
    for parent, directories, names in os.walk(package):
        directories[:] = [
            name for name in directories if name != "__pycache__" and not name.startswith(".")
        ]
        for name in names:
            file = Path(parent, name)
            if not name.startswith(".") and file.suffix != ".pyc" and file.is_file():
                yield file


def _check_size(files: list[Path]) -> None:
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES:
        largest = max(files, key=lambda file: file.stat().st_size)
        raise JobFailure(
            f"--address: the modules beside the job have {size >> 20} MiB, and at most "
            f"{MAX_BYTES >> 20} MiB are sent to the nodes. The largest file is '{largest}'. Move "
            "data out of the packages, or install the code on the nodes"
        )


def _copy(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(file, target)
    except OSError as error:
        raise JobFailure(f"--address: the module '{file}' cannot be read: {error}") from error
