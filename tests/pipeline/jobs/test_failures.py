"""Finding the root cause of an exception that Ray raises, and describing it in one line."""

from __future__ import annotations

import errno
import os
import pickle

import pytest
from ray.data.exceptions import SystemException
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    OwnerDiedError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from batchinference.pipeline.error_classification import is_storage_error, root_cause
from batchinference.pipeline.errors import (
    MAX_MESSAGE,
    BadInput,
    JobFailure,
    ModelLoad,
    StorageUnavailable,
    TooManyErrors,
)
from batchinference.pipeline.job_checks import UnsuitableColumns
from batchinference.spec.causes import Cause
from batchinference.spec.problems import Problem


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def in_a_task(cause: Exception) -> RayTaskError:
    """Return an error as Ray raises it for a task of a worker."""
    return RayTaskError("a task", "Traceback ...", cause)


FAILURE = ModelLoad("no weights")


@pytest.mark.parametrize(
    "error",
    [
        FAILURE,
        caused(RuntimeError("outer"), FAILURE),
        in_a_task(FAILURE),
        in_a_task(FAILURE).as_instanceof_cause(),
        caused(ValueError("outer"), in_a_task(FAILURE)),
        caused(FAILURE, KeyError("what led to it")),
        in_a_task(caused(RuntimeError("in the worker"), FAILURE)),  # type: ignore[arg-type]
    ],
)
def test_failure_is_found_in_any_chain(error: BaseException) -> None:
    cause = root_cause(error)
    assert isinstance(cause, ModelLoad)
    assert (cause.reason, cause.message) == ("ModelLoad", "no weights")


def test_failure_of_a_task_keeps_its_reason() -> None:
    assert root_cause(in_a_task(JobFailure("odd")).as_instanceof_cause()).reason == "Application"


AWAY = "When reading: AWS Error NETWORK_CONNECTION during HeadObject operation"


@pytest.mark.parametrize(
    "error",
    [
        OSError(AWAY),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        in_a_task(OSError(AWAY)),
        BadInput(f"spec.read.paths[0]: cannot be listed: {AWAY}"),
        in_a_task(JobFailure(f"s3://in/a cannot be read: {AWAY}")),
    ],
)
def test_unreachable_storage_is_not_the_jobs_fault(error: BaseException) -> None:
    assert isinstance(root_cause(error), StorageUnavailable)


def test_storage_errors_do_not_count_as_damage() -> None:
    assert is_storage_error(OSError(errno.EIO, "Input/output error"))
    assert is_storage_error(OSError(AWAY))
    assert not is_storage_error(OSError("Corrupt snappy compressed data."))


def test_denied_storage_is_bad_input() -> None:
    refused = "spec.read.paths[0]: cannot be listed: AWS Error ACCESS_DENIED during HeadObject"
    assert isinstance(root_cause(BadInput(refused)), BadInput)


@pytest.mark.parametrize("quoted", [AWAY, os.strerror(errno.ENOSPC)])
def test_error_of_a_row_is_not_the_cause_of_too_many(quoted: str) -> None:
    failure = TooManyErrors(f"9 of 10 rows failed. Example: {quoted}")
    assert root_cause(caused(RuntimeError("outer"), failure)) is failure


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (ValueError(), "ValueError: (no message)"),
        (caused(RuntimeError("outer"), ValueError("inner")), "ValueError: inner"),
        (in_a_task(ValueError("in a task")), "ValueError: in a task"),
        (
            RayActorError(error_msg="The actor died because of an error in its creation task: no"),
            "RayActorError: The actor died because of an error in its creation task",
        ),
    ],
)
def test_other_errors_become_failures_of_application(error: BaseException, message: str) -> None:
    cause = root_cause(error)
    assert type(cause) is JobFailure
    assert cause.reason == "Application"
    assert cause.message.startswith(message)
    assert "\n" not in cause.message


NO_STEP = "a process for reading, steps or writing died repeatedly"


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ActorUnschedulableError("The node specified via NodeAffinity doesn't exist any more"),
         "ActorUnschedulableError"),
        (caused(RuntimeError("outer"), NodeDiedError("Node was lost")), "NodeDiedError"),
        (in_a_task(ObjectLostError("ff" * 28, None, "")), "ObjectLostError"),
        (OwnerDiedError("ff" * 28, None, ""), "OwnerDiedError"),
    ],
)  # fmt: skip
def test_lost_node_is_not_a_step_error(error: BaseException, name: str) -> None:
    cause = root_cause(error)
    assert cause.reason == Cause.NODE_LOST
    assert Cause.NODE_LOST.is_retried
    assert name in cause.message


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (caused(WorkerCrashedError(), SystemException()), "WorkerCrashed", NO_STEP),
        (in_a_task(WorkerCrashedError()), "WorkerCrashed", NO_STEP),
        (RayActorError(error_msg="class_name: MapWorker(MapBatches(slow))"), "WorkerCrashed",
         "a process of step 'slow' died repeatedly (RayActorError): it was killed because "
         "memory ran out, or native code crashed"),
        (ActorUnavailableError("Socket closed", None), "WorkerCrashed", NO_STEP),
        (OutOfMemoryError("Task was killed due to the node running low on memory"), "OutOfMemory",
         "memory ran out in a process for reading, steps or writing: give it more memory"),
    ],
)  # fmt: skip
def test_dead_process_is_not_a_step_error(error: BaseException, reason: str, message: str) -> None:
    """Its message is short, and names the step if Ray names it."""
    cause = root_cause(error)
    assert cause.reason == reason
    assert cause.message.startswith(message)
    assert "batchSize" in cause.message
    assert len(cause.message) < 400
    assert reason in set(Cause)


def test_circular_chain_of_causes_ends() -> None:
    one, other = ValueError("one"), ValueError("other")
    assert root_cause(caused(one, caused(other, one))).message == "ValueError: other"


def test_long_message_is_cut() -> None:
    assert len(root_cause(ValueError("x" * 5000)).message) <= MAX_MESSAGE + len("ValueError: ")


def test_failure_can_be_pickled() -> None:
    result = pickle.loads(pickle.dumps(BadInput("nothing there")))
    assert (type(result), result.message, result.reason) == (BadInput, "nothing there", "BadInput")
    unsuitable = UnsuitableColumns([Problem("spec.write.key", "column 'a' is double")])
    copy = pickle.loads(pickle.dumps(unsuitable))
    assert (str(copy), copy.problems) == (str(unsuitable), unsuitable.problems)
