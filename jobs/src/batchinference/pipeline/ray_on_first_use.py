"""Gives modules without Ray the parts of Ray that some rows need, such as tensor types.

These modules import this module, which imports no other module. The package `pipeline` registers
the functions that import Ray. So commits, and commands that only read, start without Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class RayImports:
    """The functions that import and return the modules `ray_compat` and `ray_data_compat`."""

    core: Callable[[], ModuleType]
    data: Callable[[], ModuleType]


_registered: list[RayImports] = []


def register(imports: RayImports) -> None:
    """Set the functions that import Ray on first use."""
    _registered[:] = [imports]


def ray_compat() -> ModuleType:
    """Return the module `ray_compat`. The first call imports Ray Core."""
    return _registered[0].core()


def ray_data_compat() -> ModuleType:
    """Return the module `ray_data_compat`. The first call registers Ray's tensor types in Arrow."""
    return _registered[0].data()
