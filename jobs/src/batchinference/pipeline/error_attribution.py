"""What an error is about: a row, a file, storage that may recover, or the job.

An error that a worker raises reaches the driver wrapped by Ray several times; `root_cause` finds
it again.
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
"""What torch says once a device has failed: all that follows in the process fails like it."""
_TROUBLE_NUMBERS = frozenset(
    {errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS,
     errno.ESTALE}
)  # fmt: skip


def may_pass(error: BaseException) -> bool:
    """Whether an error that is not about a row is of the kind that a moment may heal."""
    if type(error).__name__ == _TRIED_ENOUGH:
        return False
    named = _TROUBLE.intersection(kind.__name__ for kind in type(error).__mro__)
    return bool(named) or isinstance(error, OSError)


def is_about_the_row(error: BaseException) -> bool:
    """Whether an error may be blamed on a row: not a failed job, and no trouble of storage,
    network, memory or a device, after which the same row may well succeed."""
    # by their names: torch, requests and their like are not imported here
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
    """Whether an error of reading or decoding may be blamed on one file: as `is_about_the_row`, and
    what memory runs out by, because files claim to hold more than there is."""
    if isinstance(error, ImportError):
        return False  # no file lacks a library
    return isinstance(error, MemoryError) or is_about_the_row(error)


_MEMORY_ERRORS = frozenset({"OutOfMemoryError", "MemoryError", "ResourceExhaustedError"})


_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "alloc_failed", "resource_exhausted")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of the device or the process, in which fewer rows may do."""
    if _MEMORY_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in words for part in _MEMORY_MESSAGES)


_TRANSIENT = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE"
    r"|SERVICE_UNAVAILABLE|UNKNOWN \(HTTP status (408|429|5\d\d)\))"
    r"|Azure Error: \[\w*\] (408|429|5\d\d|Fail to get a new connection|Error while)"
    r"|google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED)"
)


NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


_TRANSIENT_NUMBERS = {errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN}


def is_transient(error: OSError) -> bool:
    """Whether trouble of storage may be over in a moment."""
    return error.errno in _TRANSIENT_NUMBERS or bool(_TRANSIENT.search(str(error)))


_DEATHS = {"OutOfMemoryError", "RayActorError", "WorkerCrashedError"}


_STEP_OF_ACTOR = re.compile(r"MapBatches\(([\w-]+)\)")


_MORE_MEMORY = (
    "give it more memory (resources.memory of the step, cluster.workers.memory) or fewer rows at a "
    "time (batchSize)"
)


def root_cause(error: BaseException) -> JobFailure:
    """The failure behind an exception; anything unknown becomes an Application failure.

    Trouble of storage that may pass is told by its words, whoever met it: errors that come from
    another process have lost what caused them."""
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
    """What an error says of a dead process; None where it says nothing of that. Ray has a page of
    text, which names several possible causes whatever the real one was."""
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
    """The exception and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain and not _is_mark(current):
        chain.append(current)
        inner = getattr(current, "cause", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__
    return chain


def _is_mark(error: BaseException) -> bool:
    """Whether this is the empty exception by which Ray Data marks errors that it did not expect."""
    return type(error).__module__ == "ray.data.exceptions" and not str(error)


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text or '(no message)'}"
