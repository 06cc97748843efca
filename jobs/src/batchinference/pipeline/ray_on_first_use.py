"""Gives modules that start without Ray the parts of Ray that some rows need, such as tensor types.

These modules depend on this one, and this one on no module: the package `pipeline` passes it the
functions that import Ray. So commits, and commands that only read, start without Ray.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class RayImports:
    """The functions that import `ray_compat` and `ray_data_compat`, and return the module."""

    core: Callable[[], ModuleType]
    data: Callable[[], ModuleType]


_registered: list[RayImports] = []


def register(imports: RayImports) -> None:
    """Set the functions that the first uses of Ray call."""
    _registered[:] = [imports]


def ray_compat() -> ModuleType:
    """Return the module `ray_compat`. The first call imports Ray Core."""
    return _registered[0].core()


def ray_data_compat() -> ModuleType:
    """Return the module `ray_data_compat`. The first call registers Ray's tensor types in Arrow."""
    return _registered[0].data()
