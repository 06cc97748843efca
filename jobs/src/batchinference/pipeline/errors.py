"""Failures that end a job. Each has a one-word reason for programs and a message for people."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import traceback
from functools import lru_cache

from batchinference.credentials import without_credentials
from batchinference.text import without_controls

MAX_MESSAGE = 4000
"""Maximum characters of an error message. Libraries put whole rows and responses into messages."""
MARGIN = 1 << 14
"""Number of hidden characters next to a cut that are searched for secrets as well. A secret that
the cut divides is thus recognized."""
MAX_CACHED = 1 << 14
"""Maximum characters of a message whose masked form is cached."""
_PACKAGE = f"{__name__.partition('.')[0]}."
RUN = "batchinference run FILE"
"""The command in messages. The program that shows a message inserts the name of the file."""
RESTART, RETRY = f"{RUN} --restart", f"{RUN} --retry-errors"
PIPELINE_EXTRA = "./jobs[pipeline]"
FORMATS_EXTRA = "./jobs[formats]"
DATABASES_EXTRA = "./jobs[databases]"
RUNTIMES_EXTRA = "./jobs[runtimes]"
VISION_EXTRA = "./jobs[vision]"
HEIC_EXTRA = "./jobs[heic]"
DOCUMENTS_EXTRA = "./jobs[documents]"
VLLM_PACKAGE = "vllm>=0.29,<0.30"


def mask_secrets(text: str) -> str:
    """Return a text without credentials and control characters, safe for people and logs."""
    return without_credentials(without_controls(text))


def redact(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return a text with masked secrets, cut in the middle to about `limit` characters."""
    return (_redact if len(text) <= MAX_CACHED else _redact.__wrapped__)(text, limit)


@lru_cache(maxsize=256)  # many rows may fail with the same error, and masking takes time
def _redact(text: str, limit: int) -> str:
    half, length = (limit - 40) // 2, len(text)
    if length > 2 * (half + 2 * MARGIN):  # mask only the part that is shown, and its margin
        beginning = mask_secrets(text[: half + 2 * MARGIN])[:-MARGIN]
        ending = mask_secrets(text[-half - 2 * MARGIN :])[MARGIN:]
    else:
        text = mask_secrets(text)
        if len(text) <= limit:
            return text
        beginning, ending, length = text, text, len(text)
    return f"{beginning[:half]} ... {length - 2 * half} characters ... {ending[-half:]}"


def describe(error: BaseException) -> str:
    """Return an error as text for people, of limited length and without secrets. It begins with the
    name of the error's class, except for classes of this program that are no reason of a failure.
    It ends with the line of the user's code that raised the error, if there is one."""
    name, line = type(error).__name__, user_line(error)
    is_internal = type(error).__module__.startswith(_PACKAGE)
    is_reason = isinstance(error, JobFailure) and error.reason == name
    text = str(error) if is_internal and not is_reason else f"{name}: {error}"
    return redact(f"{text.rstrip()} ({line})" if line else text)


def user_line(error: BaseException) -> str:
    """Return the innermost line of the user's code in the traceback of an error; empty if there is
    none. For example, `own.py:12 in length`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_user_file(frame.filename):
            return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"
    return ""


def is_user_file(path: str) -> bool:
    """Return whether a file exists, and is not of an installed package, Python or this program."""
    real = os.path.realpath(path)
    installed = {"site-packages", "dist-packages"} & set(real.split(os.sep))
    return os.path.isfile(real) and not installed and not real.startswith(_NON_USER_DIRECTORIES)


_NON_USER_DIRECTORIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (sysconfig.get_path("stdlib"), os.path.dirname(os.path.dirname(__file__)))
)


class JobFailure(Exception):
    """A failure of the job. `reason` is a word for programs: the name of the direct subclass."""

    reason = "Application"

    def __init_subclass__(cls) -> None:
        if cls.__bases__ == (JobFailure,):  # Ray's own subclasses have a second base
            cls.reason = cls.__name__

    def __init__(self, message: str) -> None:
        message = redact(message)
        super().__init__(message)
        self.message = message


class BadInput(JobFailure):
    """The input is missing, empty or unreadable as a whole, or the job cannot use it."""


class BadOutput(JobFailure):
    """The job cannot or must not write to its output."""


class UnwritableValue(BadOutput):
    """A value that the output format cannot store. The committer makes a failed row of its row."""


class ModelLoad(JobFailure):
    """A model or the code of a step cannot be found, loaded or used with these settings."""


class TooManyErrors(JobFailure):
    """More rows have failed, or have a warning, than the job allows."""


class LimitExceeded(JobFailure):
    """The job has reached a limit of `cluster.limits`."""


class GateFailed(JobFailure):
    """The first rows do not meet the expectation of the gate, or it cannot be computed."""


class Interrupted(JobFailure):
    """The job was asked to stop."""


class Incomplete(JobFailure):
    """The output lacks input rows, because tasks, files or rows of the input were lost."""


class StorageUnavailable(JobFailure):
    """Storage was unreachable, or refused requests, in all retries."""


class OutOfMemory(JobFailure):
    """Ray killed a process because its node ran out of memory."""


class OutOfDisk(JobFailure):
    """A disk is full."""


class WorkerCrashed(JobFailure):
    """A process died repeatedly, and no step raised an error."""


class EngineDied(WorkerCrashed):
    """This process must be replaced, for example because its engine's process has died."""


class DeviceFailed(JobFailure):
    """A device, such as a GPU, failed. `node` is the ID of its Ray node; empty outside of Ray.
    `machine` is the name of its Kubernetes node; empty outside of Kubernetes."""

    def __init__(self, message: str, node: str = "", machine: str = "") -> None:
        super().__init__(message)
        self.node, self.machine = node, machine


class NodeLost(JobFailure):
    """Ray lost a node, or Ray's own processes on a node died. No step raised an error."""


def require_package(what: str, module: str, package: str, failure: type[JobFailure]) -> None:
    """Raise `failure` with the message of `missing_package` if the module is not installed."""
    if importlib.util.find_spec(module) is None:
        raise failure(missing_package(what, module, package))


def missing_package(what: str, module: str, package: str, *, in_image: bool = True) -> str:
    """Return a message that names the missing module and the pip command that installs it.
    `in_image` says whether the image of the job's pods has the module. Extras are installed from
    the repository, because no package registry has this program."""
    library = module.replace("_", "-")
    where = " in a checkout of the repository of BatchInference" if package.startswith(".") else ""
    image = ", or use the pipeline image" if in_image else ""
    return f"{what} needs the package {library}: pip install '{package}'{where}{image}"


def not_installed(what: str, package: str) -> str:
    """Return a message about a missing package that is in no extra, and how to install it."""
    return f"{what}: the package {package} is not installed. Install it: pip install '{package}'"
