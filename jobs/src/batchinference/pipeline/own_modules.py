"""The user's modules beside a job, for processes of another machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from batchinference.spec.job import BatchInferenceSpec

_MODULES = (".py", ".so")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def names_code(spec: BatchInferenceSpec) -> bool:
    """Whether a step has code that may lie beside the job."""
    models = (step.model.factory_or_none for step in spec.steps if step.model is not None)
    return any(models) or any(step.python is not None for step in spec.steps)


@contextmanager
def copied_modules(directory: str) -> Iterator[str | None]:
    """Yield a temporary directory with the modules and packages of a directory, and nothing else of
    it; None if there are none. Ray would send all that is there, data and outputs included."""
    modules = [entry for entry in os.scandir(directory) if _is_module(entry)]
    if not modules:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="batchinference-") as copy:
        for entry in modules:
            target = os.path.join(copy, entry.name)
            if entry.is_dir():
                shutil.copytree(entry.path, target, ignore=_LEFT_OUT)
            else:
                shutil.copyfile(entry.path, target)
        yield copy


def _is_module(entry: os.DirEntry[str]) -> bool:
    if entry.is_dir():
        return os.path.isfile(os.path.join(entry.path, "__init__.py"))
    return entry.is_file() and entry.name.endswith(_MODULES)
