"""The command `doctor`, which checks what jobs need on this machine and on the cluster."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata, util
from typing import TYPE_CHECKING

from batchinference.api.job_files import load_job
from batchinference.cli import exits
from batchinference.cli.doctor_cluster import check_cluster
from batchinference.cli.doctor_finding import Finding, Result
from batchinference.cli.printing import Format, as_data, print_data, print_table
from batchinference.cli.verbosity import is_quiet
from batchinference.packages import EXTRAS
from batchinference.pipeline.error_classification import root_cause
from batchinference.pipeline.errors import BadOutput, redact
from batchinference.spec import BatchInference, SpecError
from batchinference.spec.storage import Storage
from batchinference.version import __version__

if TYPE_CHECKING:
    from batchinference.pipeline.storage.location import Location

REQUIRED = "pipeline"
"""The extra whose packages every job needs."""
MIN_DISK = 5 << 30
"""Minimum number of free bytes in the directory to which Ray writes logs and spills objects."""
MIN_MEMORY = 4 << 30
"""Bytes of memory that other programs should leave available."""


def examine(
    file: str | None,
    settings: Sequence[str],
    namespace: str | None,
    context: str | None,
    form: Format,
) -> int:
    """Run all checks, print their findings, and return the exit code. With a job file, also check
    the storage and the image of this job."""
    findings, image = [*_check_machine()], None
    if file is not None:
        try:
            job = load_job(file, settings)
            image = job.spec.cluster.image
            findings += check_storage(job)
        except SpecError as error:
            advice = "Correct the file, and check it with batchinference validate"
            texts = (f"{file}: {problem}" for problem in error.problems)
            findings += [Finding("job file", Result.FAILED, text, advice) for text in texts]
    findings += check_cluster(namespace, context, image)
    shown = [each for each in findings if each.result is not Result.OK or not is_quiet()]
    if form is not Format.TEXT:
        print_data([as_data(each) for each in shown], form)
    elif shown:
        rows = [(each.result.value, each.check, each.message) for each in shown]
        print_table([("RESULT", "CHECK", "FOUND"), *rows])
    failed = any(each.result is Result.FAILED for each in findings)
    return exits.JOB_FAILED if failed else exits.SUCCESS


def _check_machine() -> Iterator[Finding]:
    yield Finding("Python", Result.OK, platform.python_version())
    yield Finding("batchinference", Result.OK, __version__)
    for package, extra in EXTRAS.items():
        if extra is not None:
            yield _package(package, extra)
    yield _local_gpus()
    yield _disk()
    yield _memory()


def _package(name: str, extra: str) -> Finding:
    try:
        return Finding(name, Result.OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        missing = Result.FAILED if extra == REQUIRED else Result.NOTE
        advice = f"pip install './jobs[{extra}]' in a checkout of the repository"
        return Finding(name, missing, "not installed", advice)


def _local_gpus() -> Finding:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Finding("GPUs", Result.NOTE, "none: no nvidia-smi", "Steps run on the CPU")
    try:
        listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=10)  # noqa: S603, PLW1510
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("GPUs", Result.NOTE, str(error), "Check the driver with nvidia-smi")
    names = [line.partition(" (UUID")[0] for line in listed.stdout.splitlines()]
    if not names:
        return Finding("GPUs", Result.NOTE, "none found by nvidia-smi", "Check the driver")
    return Finding("GPUs", Result.OK, ", ".join(names))


def _disk() -> Finding:
    directory = tempfile.gettempdir()
    free = shutil.disk_usage(directory).free
    text = f"{free / 2**30:.1f} Gi free in {directory}"
    if free >= MIN_DISK:
        return Finding("disk", Result.OK, text)
    advice = "Free some space, or set TMPDIR to a larger file system"
    return Finding("disk", Result.NOTE, text, advice)


def _memory() -> Finding:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        available = int(fields["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return Finding("memory", Result.NOTE, "unknown")
    text = f"{available / 2**30:.1f} Gi available"
    if available < MIN_MEMORY:
        return Finding("memory", Result.NOTE, text, "Close other programs")
    return Finding("memory", Result.OK, text)


_ADVICE = "Check the path, the endpoint and the rights of the credentials"


def check_storage(job: BatchInference) -> Iterator[Finding]:
    """Yield a finding for each location that a job writes to. It says whether files can be written
    and deleted there. In an object store, files are also listed and read."""
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
    """Return the finding for a location. On a local disk, no file is listed or read."""
    import batchinference.pipeline  # noqa: F401 - removes environment variables before Ray reads them
    from batchinference.pipeline.preflight import check_writable
    from batchinference.pipeline.storage.location import Location

    location = Location(path, storage)
    try:
        check_writable(location) if location.local else _check_access(location)
    except Exception as error:  # noqa: BLE001 - object stores raise any error
        return Finding(field, Result.FAILED, root_cause(error).message, _ADVICE)
    tests = "written and deleted" if location.local else "written, listed, read and deleted"
    return Finding(field, Result.OK, f"'{path}': files can be {tests}")


def _check_access(location: Location) -> None:
    """Write, list, read and delete a small file in a directory of an object store. Some stores
    keep an empty object for the directory. Raises BadOutput, which names the failed operation."""
    name = f"_batchinference-check-{uuid.uuid4().hex}"
    file = location / name
    with _as_bad_output(f"'{location.uri}': no file can be written"):
        file.write(b"check")
    try:
        with _as_bad_output(f"'{location.uri}': its files cannot be listed"):
            empty = location / f"{name}-list"  # listing `location` itself may take long
            empty.files()
        with _as_bad_output(f"'{location.uri}': its files cannot be read"):
            file.read()
    finally:
        with _as_bad_output(f"'{file.uri}': it cannot be deleted, so delete this file yourself"):
            file.delete()


@contextmanager
def _as_bad_output(problem: str) -> Iterator[None]:
    """Convert an OSError in the block into BadOutput with the message `problem`."""
    try:
        yield
    except OSError as error:
        raise BadOutput(f"{problem} ({redact(str(error))})") from None
