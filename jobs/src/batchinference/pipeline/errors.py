"""Why a job ends before its end, in words for the person who wrote it.

A failure that a worker raises reaches the driver wrapped by Ray several times; `cause_of` finds it
again.
"""

from __future__ import annotations

import re

from batchinference.credentials import without_credentials
from batchinference.pipeline.storage.retry import NO_SPACE, is_passing
from batchinference.text import without_controls

MAX_MESSAGE = 4000
"""Characters of an error: libraries put whole rows and answers into theirs."""
_DEATHS = {"OutOfMemoryError", "RayActorError", "WorkerCrashedError"}
_STEP_OF_ACTOR = re.compile(r"MapBatches\(([\w-]+)\)")
_MORE_MEMORY = (
    "give it more memory (resources.memory of the step, cluster.workers.memory) or fewer rows at a "
    "time (batchSize)"
)


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


def cause_of(error: BaseException) -> JobFailure:
    """The failure behind an exception; anything unknown becomes an Application failure.

    Trouble of storage that may pass is told by its words, whoever met it: errors that come from
    another process have lost what caused them."""
    chain = _chain(error)
    failure = _failure_in(chain)
    away = is_passing(OSError(failure.message)) or _is_passing_number(chain[-1])
    return StorageAway(failure.message) if away else failure


def _is_passing_number(error: BaseException) -> bool:
    return isinstance(error, OSError) and is_passing(error)


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
