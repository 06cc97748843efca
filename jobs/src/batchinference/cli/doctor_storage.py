"""Checks of `doctor` for a job: whether its output can be written with the present credentials."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from typing import TYPE_CHECKING

from batchinference.cli.finding import Finding, Result
from batchinference.spec import BatchInference, SpecError
from batchinference.spec.storage import Storage

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

_ADVICE = "Check the path, the endpoint and the rights of the credentials"


def findings_of_problems(file: str, error: SpecError) -> list[Finding]:
    """Return a finding for each problem of a job's file."""
    advice = "Correct the file, and check it with batchinference validate"
    return [
        Finding("job file", Result.FAILED, f"{file}: {problem}", advice)
        for problem in error.problems
    ]


def check_storage(job: BatchInference) -> Iterator[Finding]:
    """Yield whether files can be written, listed, read and deleted in the output of a job."""
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
    """Return whether a path can be used. In a local path, only a file is created and deleted."""
    import batchinference.pipeline  # noqa: F401 - removes environment variables before Ray reads them
    from batchinference.pipeline.error_classification import root_cause
    from batchinference.pipeline.preflight import check_writable
    from batchinference.pipeline.storage.location import Location

    place = Location(path, storage)
    try:
        check_writable(place) if place.local else _check_access(place)
    except Exception as error:  # noqa: BLE001 - object stores raise any error
        return Finding(field, Result.FAILED, root_cause(error).message, _ADVICE)
    done = "written and deleted" if place.local else "written, listed, read and deleted"
    return Finding(field, Result.OK, f"'{path}': files can be {done}")


def _check_access(place: Location) -> None:
    """Write, list, read and delete a small file in a directory. No file is left.

    Raises BadOutput, which names the operation that failed. An object store may keep an object that
    marks the directory, as after any deletion."""
    name = f"_batchinference-check-{uuid.uuid4().hex}"
    file = place / name
    with _named(f"'{place.uri}': no file can be written"):
        file.write(b"check")
    try:
        with _named(f"'{place.uri}': its files cannot be listed"):
            (place / f"{name}-list").files()  # a list of the whole directory may be long
        with _named(f"'{place.uri}': its files cannot be read"):
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
