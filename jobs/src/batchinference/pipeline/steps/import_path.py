"""Sets the path on which Python finds modules of the user. Finds modules without importing them."""

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder

from batchinference.pipeline.errors import is_user_file


def add_import_path(directory: str) -> None:
    """Put a directory first on the Python path of subprocesses, and of this process if missing."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in others if path not in ("", directory)]
    os.environ["PYTHONPATH"] = os.pathsep.join([directory, *others])


@contextmanager
def import_path(*directories: str) -> Iterator[None]:
    """Put directories first on the Python path of this process and its child processes during the
    `with` block. The last of the directories comes first on the path."""
    path, of_children = list(sys.path), os.environ.get("PYTHONPATH")
    for directory in directories:
        add_import_path(directory)
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.pop("PYTHONPATH", None)
        os.environ |= {"PYTHONPATH": of_children} if of_children is not None else {}


def reload_modules(paths: Iterable[str]) -> None:
    """Remove the modules in the paths `module:name` from `sys.modules`, so that they are imported
    again. Only files of the user and deleted files are removed."""
    for name in {path.partition(":")[0] for path in paths} - {"__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None and (is_user_file(file) or not os.path.exists(file)):
            del sys.modules[name]


def spec_of(module: str) -> ModuleSpec | None:
    """Return a module's import spec, without importing its packages; None for missing modules."""
    top, *others = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for name in others:  # find_spec of the full name would import the packages
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
        return spec
    except (ImportError, ValueError):
        return None
