"""Classifies errors: about a row, a file, storage that may recover, or the job.

Ray wraps the error of a worker several times before it reaches the driver. `root_cause` unwraps it.
"""

from __future__ import annotations

import errno
import re

from batchinference.pipeline.errors import (
    BadOutput,
    JobFailure,
    OutOfMemory,
    StorageAway,
    WorkerCrashed,
)

_TROUBLE = frozenset(
    {"APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "TimeoutError",
     "TransportError", "URLError", "gaierror"}
)  # fmt: skip
_TRIED_ENOUGH = "EndpointDown"
_BROKEN_DEVICE = ("CUDA error", "NPU error", "device-side assert")
"""Messages of torch after a device has failed. All later calls in the process fail, too."""
_TROUBLE_NUMBERS = frozenset(
    {errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS,
     errno.ESTALE}
)  # fmt: skip
_MEMORY_ERRORS = frozenset({"OutOfMemoryError", "MemoryError", "ResourceExhaustedError"})
_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "alloc_failed", "resource_exhausted")
_TRANSIENT = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE"
    r"|SERVICE_UNAVAILABLE|UNKNOWN \(HTTP status (408|429|5\d\d)\))"
    r"|Azure Error: \[\w*\] (408|429|5\d\d|Fail to get a new connection|Error while)"
    r"|google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED)"
)
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_TRANSIENT_NUMBERS = {errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN}
_DEATHS = {"OutOfMemoryError", "RayActorError", "WorkerCrashedError"}
_STEP_OF_ACTOR = re.compile(r"MapBatches\(([\w-]+)\)")
_MORE_MEMORY = (
    "give it more memory (resources.memory of the step, cluster.workers.memory) or fewer rows at a "
    "time (batchSize)"
)


def may_pass(error: BaseException) -> bool:
    """Return whether an error that is not about a row may be transient."""
    if type(error).__name__ == _TRIED_ENOUGH:
        return False
    named = _TROUBLE.intersection(kind.__name__ for kind in type(error).__mro__)
    return bool(named) or isinstance(error, OSError)


def is_about_the_row(error: BaseException) -> bool:
    """Return whether an error may be attributed to a row.

    A JobFailure may not. Neither may errors of storage, network, memory or a device, after which
    the same row may succeed in a retry."""
    # compare names, so that torch, requests and other libraries need not be imported
    if _TROUBLE.intersection(kind.__name__ for kind in type(error).__mro__):
        return False
    if is_out_of_memory(error):
        return False
    if isinstance(error, OSError) and (error.errno in _TROUBLE_NUMBERS or is_transient(error)):
        return False
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _BROKEN_DEVICE):
        return False
    return not isinstance(error, JobFailure)


def is_about_the_file(error: BaseException) -> bool:
    """Return whether an error of reading or decoding may be attributed to one file.

    These are the errors of `is_about_the_row` and MemoryError, because a damaged file may claim a
    size that does not fit into memory."""
    if isinstance(error, ImportError):
        return False  # a missing library is not about the file
    return isinstance(error, MemoryError) or is_about_the_row(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or the process ran out of memory, so that fewer rows may fit."""
    if _MEMORY_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in words for part in _MEMORY_MESSAGES)


def is_transient(error: OSError) -> bool:
    """Return whether a storage error is transient."""
    return error.errno in _TRANSIENT_NUMBERS or bool(_TRANSIENT.search(str(error)))


def root_cause(error: BaseException) -> JobFailure:
    """Return the failure behind an exception. Unknown errors become an Application failure.

    Transient storage errors are recognized by their message in every exception, because errors
    from another process have lost their cause."""
    chain = _chain(error)
    failure = _failure_in(chain)
    away = is_transient(OSError(failure.message)) or _has_transient_number(chain[-1])
    return StorageAway(failure.message) if away else failure


def _has_transient_number(error: BaseException) -> bool:
    return isinstance(error, OSError) and is_transient(error)


def _failure_in(chain: list[BaseException]) -> JobFailure:
    for link in chain:
        if isinstance(link, JobFailure):
            return link
    if (death := next(filter(None, map(_death_in, chain)), None)) is not None:
        return death
    last = chain[-1]
    if isinstance(last, OSError) and last.errno in NO_SPACE:
        return BadOutput(last.strerror or str(last))
    return JobFailure(_in_one_line(last))


def _death_in(error: BaseException) -> JobFailure | None:
    """Return the failure if an error reports a dead process, else None.

    The message of Ray is not used: it is a page long and lists several possible causes, whatever
    the real one was."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "ray.exceptions"}
    text = str(error)
    if "creation task" in text or not kinds & _DEATHS:
        return None
    found = _STEP_OF_ACTOR.search(text)
    whose = f"of step '{found[1]}'" if found else "that reads, runs steps or writes"
    if "OutOfMemoryError" in kinds:
        return OutOfMemory(f"memory ran out in a process {whose}: {_MORE_MEMORY}")
    return WorkerCrashed(
        f"a process {whose} died again and again ({type(error).__name__}): it was killed because "
        f"memory ran out, or native code crashed. Against the first, {_MORE_MEMORY}"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception and its causes, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and not _is_mark(current):
        chain.append(current)
        inner = getattr(current, "cause", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__
    return chain


def _is_mark(error: BaseException) -> bool:
    """Return whether this is the empty exception with which Ray Data marks unexpected errors."""
    return type(error).__module__ == "ray.data.exceptions" and not str(error)


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text or '(no message)'}"
