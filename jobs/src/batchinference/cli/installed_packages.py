"""Checks whether the packages that a command needs are installed."""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

from batchinference.cli.printing import echo
from batchinference.pipeline.errors import PIPELINE_EXTRA, missing_package


def pipeline_is_installed() -> bool:
    """Return whether the packages to run jobs are installed. If not, print what to install."""
    missing = [name for name in ("ray", "pyarrow", "numpy") if find_spec(name) is None]
    for name in missing:  # `find_spec` does not import Ray, which takes long
        echo(missing_package("running a job", name, PIPELINE_EXTRA), err=True)
    return not missing


def outputs_are_readable() -> bool:
    """Return whether the packages to read outputs are installed. If not, print what to install.

    Also prepares Arrow for short commands. Arrow imports pandas at the first conversion, which may
    take longer than the whole command. So pandas is hidden from Arrow. Arrow also gets the memory
    pool of the system, which frees memory earlier than Arrow's own pool."""
    if not pipeline_is_installed():
        return False
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _ArrowAlone)
        try:
            import pyarrow as pa

            pa.scalar(None)  # the first conversion imports pandas
        finally:
            sys.meta_path.remove(_ArrowAlone)
    return True


class _ArrowAlone(MetaPathFinder):
    """An import hook that hides optional dependencies of Arrow. Commands that read outputs do not
    need them."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name in ("cloudpickle", "dateutil", "pandas"):
            raise ModuleNotFoundError(name=name)
