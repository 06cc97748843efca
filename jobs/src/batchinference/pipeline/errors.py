"""The failures that end a job, each with a reason for programs and a message for people."""

from __future__ import annotations

from batchinference.credentials import without_credentials
from batchinference.text import without_controls

MAX_MESSAGE = 4000
"""Characters of an error: libraries put whole rows and answers into theirs."""


def without_secrets(text: str) -> str:
    """A text that a person or a log may see."""
    return without_credentials(without_controls(text))


def shown(text: str, most: int = MAX_MESSAGE) -> str:
    """A text of any length and origin, as reports and the errors dataset have it: its beginning
    and its end, without secrets."""
    text = without_secrets(text)  # first: a part of a secret does not have its form
    if len(text) > most:
        half = (most - 40) // 2
        text = f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"
    return text


class JobFailure(Exception):
    """The job cannot go on. `reason` is one word for programs, the message is for people."""

    reason = "Application"

    def __init__(self, message: str) -> None:
        message = shown(message)
        super().__init__(message)
        self.message = message


class BadInput(JobFailure):
    """The input is missing, empty or unreadable as a whole."""

    reason = "BadInput"


class BadOutput(JobFailure):
    """The output path cannot take the output."""

    reason = "BadOutput"


class ModelLoad(JobFailure):
    """A model cannot be found or loaded."""

    reason = "ModelLoad"


class TooManyErrors(JobFailure):
    """More rows are bad than the job allows."""

    reason = "TooManyErrors"


class Interrupted(JobFailure):
    """Somebody asked the job to stop."""

    reason = "Interrupted"


class Incomplete(JobFailure):
    """The output does not hold each input row once; only a defect or a lost file leads here."""

    reason = "Incomplete"


class StorageAway(JobFailure):
    """Storage could not be reached, or refused to work, for longer than a request is repeated."""

    reason = "StorageAway"


class OutOfMemory(JobFailure):
    """Ray ended a process because its node ran short of memory."""

    reason = "OutOfMemory"


class WorkerCrashed(JobFailure):
    """A process died more often than Ray starts it again. That is no error that a step raised."""

    reason = "WorkerCrashed"
