"""Checks of `doctor` for a job: whether these credentials allow its output to be written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from typing import TYPE_CHECKING

from batchinference.cli.doctor_finding import Finding, Result
from batchinference.spec import BatchInference, SpecError
from batchinference.spec.storage import Storage

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

_ADVICE = "Check the path, the endpoint and the rights of the credentials"


def findings_of_problems(file: str, error: SpecError) -> list[Finding]:
    """Return a finding for each problem of a job file."""
    advice = "Correct the file, and check it with batchinference validate"
    return [
        Finding("job file", Result.FAILED, f"{file}: {problem}", advice)
        for problem in error.problems
    ]


def check_storage(job: BatchInference) -> Iterator[Finding]:
    """Yield a finding for each location that a job writes to: whether files can be written, listed,
    read and deleted there."""
    if util.find_spec("ray") is None or util.find_spec("pyarrow") is None:
        advice = "Install the missing packages first"
        yield Finding("storage", Result.FAILED, "not checked: packages are missing", advice)
        return
    spec = job.spec
    yield _access("write.path", spec.write.path, spec.write.storage)
    if spec.errors.path:
        yield _access("errors.path", spec.errors.path, spec.write.storage)
    for cache in filter(None, (step.cache for step in spec.steps)):
        yield _access("cache.path", cache.path, cache.storage)


def _access(field: str, path: str, storage: Storage) -> Finding:
    """Return the finding for a location. If it is local, a file is only created and deleted."""
    import batchinference.pipeline  # noqa: F401 - removes environment variables before Ray reads them
    from batchinference.pipeline.error_classification import root_cause
    from batchinference.pipeline.preflight import check_writable
    from batchinference.pipeline.storage.location import Location

    location = Location(path, storage)
    try:
        check_writable(location) if location.local else _check_access(location)
    except Exception as error:  # noqa: BLE001 - object stores raise any error
        return Finding(field, Result.FAILED, root_cause(error).message, _ADVICE)
    done = "written and deleted" if location.local else "written, listed, read and deleted"
    return Finding(field, Result.OK, f"'{path}': files can be {done}")


def _check_access(location: Location) -> None:
    """Write, list, read and delete a small file in a directory. Raises BadOutput, which names the
    operation that failed. An object store may keep an object that marks the directory, as after
    other deletions."""
    name = f"_batchinference-check-{uuid.uuid4().hex}"
    file = location / name
    with _named(f"'{location.uri}': no file can be written"):
        file.write(b"check")
    try:
        with _named(f"'{location.uri}': its files cannot be listed"):
            (
                location / f"{name}-list"
            ).files()  # an empty directory: listing `location` may take long
        with _named(f"'{location.uri}': its files cannot be read"):
            file.read()
    finally:
        with _named(f"'{file.uri}': it cannot be deleted, so delete this file yourself"):
            file.delete()


@contextmanager
def _named(problem: str) -> Iterator[None]:
    from batchinference.pipeline.errors import BadOutput, shown

    try:
        yield
    except OSError as error:
        raise BadOutput(f"{problem} ({shown(str(error))})") from None
