"""Classifies errors by their cause: a row, a file, a device, a transient error, or the job.

Ray wraps the error of a worker several times. `root_cause` unwraps it."""

from __future__ import annotations

import errno
import re
from typing import TypeGuard

from batchinference.pipeline.errors import (
    JobFailure,
    NodeLost,
    OutOfDisk,
    OutOfMemory,
    StorageUnavailable,
    TooManyErrors,
    WorkerCrashed,
)

_NETWORK_ERRORS = frozenset(
    {"APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "TimeoutError",
     "TransportError", "URLError", "gaierror",
     "ChunkedEncodingError", "ProtocolError"}  # while a response is read
)  # fmt: skip
_RETRIES_EXHAUSTED = "EndpointDown"
_DEVICE_ERROR = re.compile(
    r"(CUDA|HIP|NPU|NCCL|RCCL|HCCL)( driver| runtime| function)? (error|failure)|CUDA_ERROR_"
    r"|Error \[(CUDA|HIP)\]"
    r"|device-side assert|uncorrectable ECC|no CUDA-capable device|No CUDA GPUs are available"
    r"|no NVIDIA driver|NVRM: Xid|GPU is lost"
)
"""Matches library messages about a device. Later calls in the process may fail as well."""
_BEGINS_WITH_DEVICE_ERROR = re.compile(
    rf"(?m)(?:^|[:\])] ) *(?:[\w.]+ )?(?:{_DEVICE_ERROR.pattern})"
)
_QUOTED = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")""")
_KERNEL_STOPPED = re.compile(
    r"device-side assert|illegal (memory access|instruction)|misaligned address|ILLEGAL_ADDRESS"
)
"""Matches messages about values, such as an index, that stopped code on a working device."""
_UNSUITABLE_CODE = re.compile(r"no kernel image|invalid (device function|configuration|argument)")
"""Matches messages about code or arguments that do not suit a working device."""
_STORAGE_ERRNOS = frozenset(
    {errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS,
     errno.ESTALE}
)  # fmt: skip
_MEMORY_ERRORS = frozenset({"OutOfMemoryError", "MemoryError", "ResourceExhaustedError"})
_MEMORY_MESSAGES = (
    *("out of memory", "can't allocate memory", "alloc_failed", "resource_exhausted"),
    *("failed to allocate memory", "oom when allocating", "bad allocation"),
)
_NATIVE_LIBRARIES = frozenset({"onnxruntime", "tensorflow", "jax", "jaxlib"})
"""Libraries with their own exceptions, which report a lack of memory only in the message."""
_TRANSIENT = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT|INTERNAL_FAILURE"
    r"|SERVICE_UNAVAILABLE|UNKNOWN \(HTTP status (408|429|5\d\d)\))"
    r"|Azure Error: \[\w*\] (408|429|5\d\d|Fail to get a new connection|Error while)"
    r"|google::cloud::Status\((UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL|RESOURCE_EXHAUSTED)"
    r"|Generic (S3|GCS|MicrosoftAzure) error: .*(status code: (429|5\d\d)|HTTP error)"
)
_STORE_ERROR = re.compile(r"AWS Error|Azure Error: \[|google::cloud::Status\(")
"""Matches errors of object stores. Errors of pyarrow's decoders do not match."""
_TRANSIENT_STATUS = frozenset((408, 409, 425, 429))
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_DISK_FULL = re.compile("No space left on device|Disk quota exceeded|OutOfDiskError")
_TRANSIENT_ERRNOS = {errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET, errno.EAGAIN}
_DEAD_PROCESS_ERRORS = {"OutOfMemoryError", "RayActorError", "WorkerCrashedError"}
_LOST_NODE_ERRORS = {
    *("NodeDiedError", "LocalRayletDiedError", "ObjectLostError", "RpcError"),
    *("ActorUnschedulableError", "TaskUnschedulableError"),  # actors and tasks bound to a node
}
_STEP_OF_ACTOR = re.compile(r"MapBatches\(([\w-]+)\)")
MAX_RAY_TEXT = 200
"""Maximum number of characters of Ray's text in our messages."""
_MORE_MEMORY = (
    "give it more memory (resources.memory of the step, cluster.workers.memory) or fewer rows at a "
    "time (batchSize)"
)


def may_be_transient(error: BaseException) -> bool:
    """Return whether an error that is not about a row may be transient."""
    if type(error).__name__ == _RETRIES_EXHAUSTED:
        return False
    return is_network_error(error) or isinstance(error, OSError)


def ends_the_job(error: BaseException) -> bool:
    """Return whether an error is not about a row, and remains if the batch is computed again.
    Examples are an endpoint that is down, and wrong credentials."""
    is_of_batch = is_out_of_memory(error) or may_be_transient(error)
    return not (is_of_batch or is_about_the_row(error))


def is_network_error(error: BaseException) -> bool:
    """Return whether a server did not respond, or the connection to it broke."""
    # compare names, so that torch, requests and other libraries need not be imported
    return not _NETWORK_ERRORS.isdisjoint(kind.__name__ for kind in type(error).__mro__)


def is_about_the_row(error: BaseException) -> bool:
    """Return whether the row may be the cause of an error. The row is not the cause of a
    JobFailure, or of an error of storage, network, memory or a device. A retry of the same row may
    then succeed."""
    if is_network_error(error) or is_out_of_memory(error):
        return False
    if isinstance(error, OSError) and (error.errno in _STORAGE_ERRNOS or is_transient(error)):
        return False
    return not (isinstance(error, JobFailure) or _device_errors(error))


def _device_errors(error: BaseException) -> list[BaseException]:
    """Return the device errors in the chain of an error: the error, its causes, and the contexts of
    all these (`__context__`). A lack of memory does not count."""
    errors = [e for link in _chain(error) for e in (link, link.__context__) if e is not None]
    return [e for e in errors if _is_device_error(e) and not is_out_of_memory(e)]


def _is_device_error(error: BaseException) -> bool:
    if _is_of_library(error):
        return bool(_DEVICE_ERROR.search(str(error)))
    is_runtime_error = isinstance(error, RuntimeError)
    return is_runtime_error and bool(_BEGINS_WITH_DEVICE_ERROR.search(_unquoted(error)))


def _is_of_library(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in _NATIVE_LIBRARIES


def _unquoted(error: BaseException) -> str:
    """Return the message without quoted texts: a value of a row may look like a device error."""
    return _QUOTED.sub("", str(error))


def has_stopped_kernel(error: BaseException) -> bool:
    """Return whether values of rows have stopped device code. Then this process cannot use the
    device any more, but another process can."""
    return any(_KERNEL_STOPPED.search(str(each)) for each in _device_errors(error))


def is_device_fault(error: BaseException) -> bool:
    """Return whether a device failed, according to the error or one of its causes. A lack of
    memory, or stopped or unsuitable code, is not a failure of the device."""
    return not has_stopped_kernel(error) and any(
        not _UNSUITABLE_CODE.search(str(each)) for each in _device_errors(error)
    )


def device_fault_in(log: str) -> RuntimeError | None:
    """Return the first device error in a log if it is a device failure, otherwise None. Later
    errors may be consequences. Lines of tracebacks with `raise` are skipped."""
    lines = (line.strip() for line in log.splitlines() if "raise " not in line)
    line = next(filter(_DEVICE_ERROR.search, lines), "")
    match = _DEVICE_ERROR.search(line)
    # the log writes a prefix before the message
    failed = match is not None and is_device_fault(RuntimeError(line[match.start() :]))
    return RuntimeError(line) if failed else None


def is_about_the_file(error: BaseException) -> bool:
    """Return whether a single file may be the cause of an error in reading or decoding. Like
    `is_about_the_row`, but without ImportError and with MemoryError: a damaged file may declare a
    size that does not fit into memory."""
    if isinstance(error, ImportError):
        return False  # a missing library is not about the file
    return isinstance(error, MemoryError) or is_about_the_row(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device or process ran out of memory, so that a smaller batch may fit."""
    if _MEMORY_ERRORS.intersection(kind.__name__ for kind in type(error).__mro__):
        return True
    if not (_is_of_library(error) or isinstance(error, RuntimeError)):
        return False
    text = str(error) if _is_of_library(error) or _is_device_error(error) else _unquoted(error)
    return any(part in text.lower() for part in _MEMORY_MESSAGES)


def is_storage_error(error: BaseException) -> TypeGuard[OSError]:
    """Return whether storage caused an error, and not the bytes that were read. Arrow's decoders
    also raise OSError, but without an errno."""
    if not isinstance(error, OSError):
        return False
    return error.errno is not None or bool(_STORE_ERROR.search(str(error)))


def raise_storage_error(error: Exception) -> None:
    """Raise the error if storage caused it, and not the content of a file."""
    if is_storage_error(error):
        raise error


def is_transient(error: BaseException) -> bool:
    """Return whether an error is a transient storage error."""
    if not isinstance(error, OSError):
        return False
    return error.errno in _TRANSIENT_ERRNOS or bool(_TRANSIENT.search(str(error)))


def is_transient_status(status: int) -> bool:
    """Return whether an HTTP status reports a transient error."""
    return status in _TRANSIENT_STATUS or status >= 500


def root_cause(error: BaseException) -> JobFailure:
    """Return the failure behind an exception. Unknown errors get the reason `Application`.
    Transient storage errors and full disks are also recognized by their messages, because errors
    from another process have lost their causes. TooManyErrors is exempt, because it quotes errors
    of rows."""
    chain = _chain(error)
    failure = _failure_in(chain)
    if isinstance(failure, TooManyErrors):
        return failure
    if _DISK_FULL.search(failure.message):
        return OutOfDisk(failure.message)
    transient = is_transient(OSError(failure.message)) or is_transient(chain[-1])
    return StorageUnavailable(failure.message) if transient else failure


def _failure_in(chain: list[BaseException]) -> JobFailure:
    for link in chain:
        if isinstance(link, JobFailure):
            return link
    if (failure := next(filter(None, map(_dead_process_in, chain)), None)) is not None:
        return failure
    last = chain[-1]
    if isinstance(last, OSError) and last.errno in NO_SPACE:
        return OutOfDisk(last.strerror or str(last))
    return JobFailure(f"{type(last).__name__}: {' '.join(str(last).split()) or '(no message)'}")


def _dead_process_in(error: BaseException) -> JobFailure | None:
    """Return the failure if an error reports a dead process or a lost node, else None. The message
    of the failure is short. That of Ray lists possible causes on a whole page."""
    kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "ray.exceptions"}
    text = str(error)
    if kinds & _LOST_NODE_ERRORS:
        first = " ".join(text.split())[:MAX_RAY_TEXT]
        return NodeLost(f"Ray lost a node of the cluster ({type(error).__name__}: {first})")
    if "creation task" in text or not kinds & _DEAD_PROCESS_ERRORS:
        return None
    step = _STEP_OF_ACTOR.search(text)
    process = f"of step '{step[1]}'" if step else "for reading, steps or writing"
    if "OutOfMemoryError" in kinds:
        return OutOfMemory(f"memory ran out in a process {process}: {_MORE_MEMORY}")
    return WorkerCrashed(
        f"a process {process} died repeatedly ({type(error).__name__}): it was killed because "
        f"memory ran out, or native code crashed. If memory ran out, {_MORE_MEMORY}"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception and its causes, outermost first. An empty exception of Ray Data, which
    marks unexpected errors, ends the chain and is left out."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        if type(current).__module__ == "ray.data.exceptions" and not str(current):
            break
        chain.append(current)
        inner = getattr(current, "cause", None)
        current = inner if isinstance(inner, BaseException) else current.__cause__
    return chain
