"""Why an attempt at a job ends before its end: a small set, by which retries are decided."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """In one word; the message beside it has the object's own words."""

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
        """Whether another attempt may well end otherwise, so that one is made unless the job says
        no: what befell the machines, not what the job asks for."""
        return self in _RETRIED

    @property
    def gives_up(self) -> bool:
        """Whether it is the operator that ends the attempt, whose driver may still go on."""
        return self in _GIVING_UP

    @property
    def meaning(self) -> str:
        """For people who choose among them."""
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
    Cause.NODE_LOST: "a node went away or was drained under its pods, or could not start them",
    Cause.PREEMPTED: "the scheduler gave the place of a pod to one of higher priority",
    Cause.OUT_OF_MEMORY: "a pod used more memory than its limit, or its node ran short of it",
    Cause.WORKER_CRASHED: "a worker process died again and again; often its memory ran out",
    Cause.HEAD_LOST: "the head pod, or the driver in it, was killed for no reason that is known",
    Cause.STORAGE_AWAY: "storage was away for longer than requests to it are repeated",
    Cause.STALLED: "no row was finished for as long as `deadlines.stall` allows",
    Cause.SUBMISSION_FAILED: "KubeRay could not hand the job to Ray, or lost sight of it",
    Cause.UNSCHEDULABLE: "no node had room for a pod until `deadlines.pending`",
    Cause.IMAGE_PULL: "the image could not be pulled until `deadlines.pending`",
    Cause.CONTAINER_CONFIG: "a Secret, ConfigMap or volume that a pod names is not there",
    Cause.CRASH_LOOP: "a container ended again and again",
    Cause.REFUSED: "a quota, an admission policy or a missing ServiceAccount forbids an object",
    Cause.INVALID_SPEC: "the job's file is wrong; no RayJob was made",
    Cause.BAD_INPUT: "the input is missing, empty or unreadable",
    Cause.BAD_OUTPUT: "the output path cannot take the output",
    Cause.MODEL_LOAD: "a model or module cannot be found or loaded",
    Cause.TOO_MANY_ERRORS: "more rows are bad than `errors` allows",
    Cause.INCOMPLETE: "the output did not hold each input row once",
    Cause.INTERRUPTED: "the driver was asked to stop by somebody else than this job",
    Cause.APPLICATION: "a step raised an error on which no row can be blamed",
    Cause.DEADLINE_EXCEEDED: "`deadlines.pending`, `active` or `total` has passed",
    Cause.LIMIT_EXCEEDED: "the job has used the GPU hours that `cluster.limits` allows",
    Cause.RAY_JOB_DELETED: "somebody deleted the RayJob",
}
