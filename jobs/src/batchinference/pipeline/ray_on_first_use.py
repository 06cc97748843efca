"""Imports Ray when it is needed. Commits, and commands that only read, start without it."""

from types import ModuleType


def ray_compat() -> ModuleType:
    """Return the module `ray_compat`. The first call imports Ray and registers its tensor types."""
    from batchinference.pipeline import ray_compat as module

    return module
