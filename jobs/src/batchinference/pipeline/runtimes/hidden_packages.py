"""Finds user files that hide a package of a runtime, such as a `torch.py` beside the job.

The runtime would import the user's file. Packages that Ray needs are checked in `shadows`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder

from packaging.requirements import Requirement

from batchinference.pipeline.errors import ModelLoad
from batchinference.shadows import modules_in

LIBRARIES = ("torch",)
"""Libraries that runtimes import without requiring them."""


def check_hidden_packages(runtime: str, library: str) -> None:
    """Raise ModelLoad if a module of the user has the name of a package that the library of a
    runtime needs."""
    installed = [path for path in sys.path if _is_installed(path)]
    for directory in (path for path in sys.path if not _is_installed(path)):
        for entry, module in modules_in(directory):
            if PathFinder.find_spec(module, installed) and _is_needed(module, library):
                raise ModelLoad(
                    f"'{os.path.join(directory, entry)}' hides the package '{module}', which the "
                    f"runtime '{runtime}' imports: rename {entry}"
                )


def _is_installed(path: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.split(os.sep))


def _is_needed(module: str, library: str) -> bool:
    """Return whether a module belongs to a library, or to a package that it requires."""
    return module in (library, *LIBRARIES) or any(
        module in _modules_of(package) for package in _required(library)
    )


def _modules_of(package: str) -> set[str]:
    files = metadata.distribution(package).files or ()
    return {file.parts[0].removesuffix(".py") for file in files}


@cache
def _required(library: str) -> tuple[str, ...]:
    """Return the installed packages that a library requires, directly or not, without extras."""
    found: dict[str, None] = {}
    waiting = [_normalized(name) for name in (library, *LIBRARIES)]
    while waiting:
        name = waiting.pop()
        try:
            required = [] if name in found else list(_requirements(name))
        except metadata.PackageNotFoundError:
            continue
        found[name] = None
        waiting += required
    return tuple(found)


def _requirements(package: str) -> Iterator[str]:
    for text in metadata.distribution(package).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield _normalized(requirement.name)


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
