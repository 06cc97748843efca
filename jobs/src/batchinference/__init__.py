"""BatchInference: offline model inference over large data sets, configured by one YAML file.

`Job`, `run` and `submit` are the Python API. They are imported on first use.
"""

from batchinference.version import __version__

TYPE_CHECKING = False  # not imported, because a file in PYTHONPATH could shadow `typing`
if TYPE_CHECKING:
    from typing import Any

    from batchinference.api.job import Job
    from batchinference.api.jobs_on_cluster import JobHandle, JobStatus
    from batchinference.api.run import JobFailed, Result, run
    from batchinference.api.submit import submit

__all__ = ["Job", "JobFailed", "JobHandle", "JobStatus", "Result", "__version__", "run", "submit"]
_MODULES = {
    "Job": "job",
    "JobFailed": "run",
    "JobHandle": "jobs_on_cluster",
    "JobStatus": "jobs_on_cluster",
    "Result": "run",
    "run": "run",
    "submit": "submit",
}


def __getattr__(name: str) -> "Any":
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.api.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
