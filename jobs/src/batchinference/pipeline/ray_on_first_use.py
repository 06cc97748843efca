"""Imports Ray when it is needed. Commits, and commands that only read, start without it."""

from types import ModuleType


def ray_compat() -> ModuleType:
    """Return the module `ray_compat`. The first call imports Ray Core."""
    from batchinference.pipeline import ray_compat as module

    return module


def ray_data_compat() -> ModuleType:
    """Return the module `ray_data_compat`. The first call registers Ray's tensor types in Arrow."""
    from batchinference.pipeline import ray_data_compat as module

    return module
