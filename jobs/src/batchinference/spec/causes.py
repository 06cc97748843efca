"""The causes of failed attempts. They decide whether the job is retried."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failed attempt. The message next to it comes from the object that failed."""

    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    OUT_OF_MEMORY = "OutOfMemory"
    WORKER_CRASHED = "WorkerCrashed"
    HEAD_LOST = "HeadLost"
    STORAGE_AWAY = "StorageAway"
    STALLED = "Stalled"
    SUBMISSION_FAILED = "SubmissionFailed"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL = "ImagePull"
    CONTAINER_CONFIG = "ContainerConfig"
    CRASH_LOOP = "CrashLoop"
    REFUSED = "Refused"
    INVALID_SPEC = "InvalidSpec"
    BAD_INPUT = "BadInput"
    BAD_OUTPUT = "BadOutput"
    MODEL_LOAD = "ModelLoad"
    TOO_MANY_ERRORS = "TooManyErrors"
    INCOMPLETE = "Incomplete"
    INTERRUPTED = "Interrupted"
    APPLICATION = "Application"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    LIMIT_EXCEEDED = "LimitExceeded"
    RAY_JOB_DELETED = "RayJobDeleted"

    @classmethod
    def named(cls, word: object) -> Cause | None:
        """The cause of this name; None when there is none."""
        return next((cause for cause in cls if cause == word), None)

    @property
    def retried(self) -> bool:
        """Whether the job is retried by default: failures of machines, not of the job."""
        return self in _RETRIED

    @property
    def gives_up(self) -> bool:
        """Whether the operator ends the attempt, so that its driver may still run."""
        return self in _GIVING_UP

    @property
    def meaning(self) -> str:
        """Return the description of the cause."""
        return _MEANINGS[self]


_RETRIED = frozenset(
    {Cause.NODE_LOST, Cause.PREEMPTED, Cause.OUT_OF_MEMORY, Cause.WORKER_CRASHED,
     Cause.HEAD_LOST, Cause.STORAGE_AWAY, Cause.STALLED, Cause.SUBMISSION_FAILED, Cause.INCOMPLETE,
     Cause.INTERRUPTED}
)  # fmt: skip
_GIVING_UP = frozenset(
    {Cause.STALLED, Cause.UNSCHEDULABLE, Cause.IMAGE_PULL, Cause.CONTAINER_CONFIG, Cause.CRASH_LOOP,
     Cause.REFUSED, Cause.DEADLINE_EXCEEDED, Cause.LIMIT_EXCEEDED}
)  # fmt: skip
_MEANINGS = {
    Cause.NODE_LOST: "a node failed, was drained, or could not start its pods",
    Cause.PREEMPTED: "the scheduler evicted a pod in favor of one with a higher priority",
    Cause.OUT_OF_MEMORY: "a pod used more memory than its limit, or its node ran out of memory",
    Cause.WORKER_CRASHED: "a worker process crashed repeatedly, often because it ran out of memory",
    Cause.HEAD_LOST: "the head pod, or the driver in it, was killed for an unknown reason",
    Cause.STORAGE_AWAY: "the storage was unavailable for longer than requests are retried",
    Cause.STALLED: "no row was finished within `deadlines.stall`",
    Cause.SUBMISSION_FAILED: "KubeRay could not submit the job to Ray or could not read its state",
    Cause.UNSCHEDULABLE: "no node could run a pod within `deadlines.pending`",
    Cause.IMAGE_PULL: "the image could not be pulled within `deadlines.pending`",
    Cause.CONTAINER_CONFIG: "a Secret, ConfigMap or volume of a pod does not exist",
    Cause.CRASH_LOOP: "a container exited repeatedly",
    Cause.REFUSED: "a quota, an admission policy or a missing ServiceAccount rejects an object",
    Cause.INVALID_SPEC: "the spec is invalid; no RayJob was created",
    Cause.BAD_INPUT: "the input is missing, empty or unreadable",
    Cause.BAD_OUTPUT: "the output path cannot be written",
    Cause.MODEL_LOAD: "a model or module cannot be found or loaded",
    Cause.TOO_MANY_ERRORS: "more rows failed than `errors` allows",
    Cause.INCOMPLETE: "the output did not contain each input row exactly once",
    Cause.INTERRUPTED: "the driver was stopped, but not by the operator",
    Cause.APPLICATION: "a step raised an error that no row caused",
    Cause.DEADLINE_EXCEEDED: "`deadlines.pending`, `active` or `total` has passed",
    Cause.LIMIT_EXCEEDED: "the job has used the GPU hours that `cluster.limits` allows",
    Cause.RAY_JOB_DELETED: "a user deleted the RayJob",
}
