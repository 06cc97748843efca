"""The causes of failed attempts: their meaning, what to do, and whether the job is retried."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failed attempt. It is stored with the original error message."""

    NODE_LOST = "NodeLost"
    PREEMPTED = "Preempted"
    OUT_OF_MEMORY = "OutOfMemory"
    OUT_OF_DISK = "OutOfDisk"
    WORKER_CRASHED = "WorkerCrashed"
    DEVICE_FAILED = "DeviceFailed"
    HEAD_LOST = "HeadLost"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    STALLED = "Stalled"
    SUBMISSION_FAILED = "SubmissionFailed"
    UNSCHEDULABLE = "Unschedulable"
    NO_CAPACITY = "NoCapacity"
    IMAGE_PULL = "ImagePull"
    CONTAINER_CONFIG = "ContainerConfig"
    CRASH_LOOP = "CrashLoop"
    REFUSED = "Refused"
    INVALID_SPEC = "InvalidSpec"
    BAD_INPUT = "BadInput"
    BAD_OUTPUT = "BadOutput"
    MODEL_LOAD = "ModelLoad"
    TOO_MANY_ERRORS = "TooManyErrors"
    GATE_FAILED = "GateFailed"
    INCOMPLETE = "Incomplete"
    INTERRUPTED = "Interrupted"
    APPLICATION = "Application"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    LIMIT_EXCEEDED = "LimitExceeded"
    RAY_JOB_DELETED = "RayJobDeleted"

    @classmethod
    def from_name(cls, name: object) -> Cause | None:
        """Return the cause with this name; None if there is none."""
        return next((cause for cause in cls if cause == name), None)

    @property
    def is_retried(self) -> bool:
        """Return whether the job is retried by default, because another attempt may succeed."""
        return self in _RETRIED

    @property
    def ended_by_operator(self) -> bool:
        """Return whether the operator ends an attempt for this cause. Its driver may still run."""
        return self in _ENDED_BY_OPERATOR

    @property
    def meaning(self) -> str:
        """Return the description of the cause."""
        return _MEANINGS[self]

    @property
    def remedy(self) -> str:
        """Return what the user can do about the cause."""
        return _REMEDIES[self]


_RETRIED = frozenset(
    {Cause.NODE_LOST, Cause.PREEMPTED, Cause.OUT_OF_MEMORY, Cause.OUT_OF_DISK,
     Cause.WORKER_CRASHED, Cause.DEVICE_FAILED, Cause.HEAD_LOST, Cause.STORAGE_UNAVAILABLE,
     Cause.STALLED, Cause.SUBMISSION_FAILED, Cause.INCOMPLETE, Cause.INTERRUPTED,
     Cause.NO_CAPACITY}
)  # fmt: skip
_ENDED_BY_OPERATOR = frozenset(
    {Cause.STALLED, Cause.UNSCHEDULABLE, Cause.NO_CAPACITY, Cause.IMAGE_PULL,
     Cause.CONTAINER_CONFIG, Cause.CRASH_LOOP, Cause.REFUSED,
     Cause.DEADLINE_EXCEEDED, Cause.LIMIT_EXCEEDED}
)  # fmt: skip
_MEANINGS = {
    Cause.NODE_LOST: "a node failed, was drained, or could not start its pods",
    Cause.PREEMPTED: "the scheduler of Kubernetes evicted a pod in favor of one with a higher "
    "priority",
    Cause.OUT_OF_MEMORY: "a pod used more memory than its limit, or its node ran out of memory",
    Cause.OUT_OF_DISK: "a disk was full, or a pod used more disk space than it may",
    Cause.WORKER_CRASHED: "a worker process crashed repeatedly, often because it ran out of memory",
    Cause.DEVICE_FAILED: "a device, such as a GPU, failed, and no other node could run the step",
    Cause.HEAD_LOST: "the head pod, or the driver in it, was killed for an unknown reason",
    Cause.STORAGE_UNAVAILABLE: "the storage was unavailable for longer than requests are retried",
    Cause.STALLED: "no row was finished within `deadlines.stall`",
    Cause.SUBMISSION_FAILED: "KubeRay could not submit the job to Ray or could not read its state",
    Cause.UNSCHEDULABLE: "no node could run a pod within `deadlines.pending`",
    Cause.NO_CAPACITY: "no node could run a pod, or Kueue did not admit the attempt, within "
    "`cluster.fallback.after`",
    Cause.IMAGE_PULL: "the image could not be pulled within `deadlines.pending`",
    Cause.CONTAINER_CONFIG: "a Secret, ConfigMap or volume of a pod does not exist",
    Cause.CRASH_LOOP: "a container exited repeatedly",
    Cause.REFUSED: "a quota, an admission policy or a missing ServiceAccount rejects an object",
    Cause.INVALID_SPEC: "the spec is invalid; no RayJob was created",
    Cause.BAD_INPUT: "the input is missing, empty or unreadable",
    Cause.BAD_OUTPUT: "the output path cannot be written, or holds rows of other work or code",
    Cause.MODEL_LOAD: "a model or module cannot be found or loaded",
    Cause.TOO_MANY_ERRORS: "more rows failed, or more warnings occurred, than `errors` allows",
    Cause.GATE_FAILED: "the results of the first rows are not as `gate` expects",
    Cause.INCOMPLETE: "the output did not contain each input row exactly once",
    Cause.INTERRUPTED: "the driver was stopped, but not by the operator",
    Cause.APPLICATION: "a step raised an error that no row caused",
    Cause.DEADLINE_EXCEEDED: "`deadlines.pending`, `active` or `total` has passed",
    Cause.LIMIT_EXCEEDED: "the job has used the device hours or tokens that `cluster.limits` "
    "allows",
    Cause.RAY_JOB_DELETED: "a user deleted the RayJob",
}
_REMEDIES = {
    Cause.NODE_LOST: "Nothing: the job is retried on another node. If it happens again, look for "
    "the reason in `kubectl describe node`.",
    Cause.PREEMPTED: "Nothing: the job is retried. To keep its nodes, give its pods a higher "
    "`cluster.priorityClassName`, or run it when the cluster has free capacity.",
    Cause.OUT_OF_MEMORY: "Request more memory: in `resources.memory` of a step with an actor pool, "
    "or in `cluster.workers.memory` for all other steps. Or let each new attempt request more with "
    "`retry.outOfMemory`. A smaller `batchSize` also reduces the memory of a pod.",
    Cause.OUT_OF_DISK: "If the message names the output, free space there. On a cluster, request "
    "disk space for the model of a step in its `resources.ephemeralStorage`, and for logs and "
    "spilled objects in `cluster.ephemeralStorage`, so that pods run on nodes that have it.",
    Cause.WORKER_CRASHED: "Look for a crash of a native library in the log of the worker. If "
    "memory is short, request more as for `OutOfMemory`. If a single row is the cause, allow "
    "failed rows in `errors`: the job then searches for the row, and the row becomes a failed row.",
    Cause.DEVICE_FAILED: "The message names the node and the error. Repair or drain the node. A "
    "cluster retries the job on other nodes, and it resumes. On your machine, run the job again.",
    Cause.HEAD_LOST: "Nothing: the job is retried. If it happens again, request more memory for "
    "the head in `cluster.head`, and look at the log of the head pod.",
    Cause.STORAGE_UNAVAILABLE: "Check that the object store is up and reachable from the pods. The "
    "job is retried and resumes.",
    Cause.STALLED: "Look at the log of the driver and the workers for what a step waits for. If "
    "single rows take that long, increase `deadlines.stall`.",
    Cause.SUBMISSION_FAILED: "Look at the status of the RayJob and the log of KubeRay's operator. "
    "The job is retried.",
    Cause.UNSCHEDULABLE: "Compare `batchinference plan` with the free resources of the nodes. "
    "Request less, add nodes, or increase `deadlines.pending`.",
    Cause.NO_CAPACITY: "Nothing: the next attempt tries the next type of device or of capacity. "
    "The failed attempt does not count towards `retry.maxAttempts`.",
    Cause.IMAGE_PULL: "Check the name and tag of `cluster.image`, and `cluster.imagePullSecrets` "
    "if the registry is private.",
    Cause.CONTAINER_CONFIG: "Create the object that the message names in the namespace of the "
    "job, or correct its name in the job.",
    Cause.CRASH_LOOP: "Look at the log of the container. Often the image lacks Ray, or has "
    "another version of it.",
    Cause.REFUSED: "The message names the quota or policy. Change the job so that it is allowed, "
    "or ask the platform team.",
    Cause.INVALID_SPEC: "Correct the fields that the message names. `batchinference validate` "
    "checks the file without a cluster.",
    Cause.BAD_INPUT: "Correct `read.paths`, the format or the names of columns, as the message "
    "says.",
    Cause.BAD_OUTPUT: "Choose another `write.path`, set `write.mode`, or grant the permission "
    "that the message names. If the message says that the spec, code or a model has changed, "
    "restore what changed, or start over.",
    Cause.MODEL_LOAD: "Check the name or path of the model or module. On a cluster, it must be in "
    "the image, in a volume, or on the Hub.",
    Cause.TOO_MANY_ERRORS: "If `errors` is set, look at the error records with `batchinference "
    "errors`. Otherwise, the message names the row. Correct the cause and retry the failed rows "
    "with `batchinference run --retry-errors`, or on a cluster with "
    "`errors.retryFailedRows: true`. Or allow more failed rows in `errors.maxRows` or "
    "`errors.maxPercent`, and run the job again: it resumes.",
    Cause.GATE_FAILED: "The message has the measured values. Look at the rows in the output, and "
    "correct the steps: then start over with `batchinference run --restart`, or on a cluster with "
    "`write.mode: overwrite`. To accept these rows, change `gate.expect` or remove `gate`, and run "
    "the job again: it resumes.",
    Cause.INCOMPLETE: "A cluster retries the job. On your machine, run the job again: it computes "
    "the missing rows. If it happens again, report it with the report of the job.",
    Cause.INTERRUPTED: "A cluster retries the job. On your machine, run the job again: it resumes.",
    Cause.APPLICATION: "Read the message and the log. After a change of the code of a step, rows "
    "that are already committed are not used: start over with `batchinference run --restart`, or "
    "on a cluster with `resume: false`. If `steps` in the spec has changed, set "
    "`write.mode: overwrite` on a cluster instead. After any other correction, such as of "
    "`cluster.env`, run the job again: it resumes.",
    Cause.DEADLINE_EXCEEDED: "Increase the deadline that the message names, or give the job more "
    "resources. Then run the job again: it resumes.",
    Cause.LIMIT_EXCEEDED: "Increase `cluster.limits.deviceHours` or `tokens` in the file. If the "
    "platform's defaults set a lower limit, ask the platform team. Then run the job again: it "
    "resumes.",
    Cause.RAY_JOB_DELETED: "Run the job again: it resumes. To stop a job for a while, suspend it "
    "instead of deleting its RayJob.",
}
