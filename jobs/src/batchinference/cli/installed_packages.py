"""Checks that the packages that commands need are installed."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

from batchinference.cli.printing import echo


def pipeline_is_installed() -> bool:
    """Return whether jobs can run here. If not, print what to install."""
    from batchinference.pipeline.errors import PIPELINE_EXTRA, missing_package

    missing = [name for name in ("ray", "pyarrow", "numpy") if find_spec(name) is None]
    for name in missing:  # importing Ray would take longer than most commands
        echo(missing_package("running a job", name, PIPELINE_EXTRA), err=True)
    return not missing


def outputs_are_readable() -> bool:
    """Return whether outputs can be read here. If not, print what to install. Arrow gets no pandas.

    At its first conversion, Arrow imports pandas if it can, which takes more time and memory than
    the rest of most commands. Its own memory pool keeps memory that the system's would free."""
    if not pipeline_is_installed():
        return False
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.scalar(None)
        finally:
            sys.meta_path.remove(_NoPandas)
    return True


class _NoPandas(MetaPathFinder):
    """Finds all modules but pandas."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
