"""The model of a BatchInference object, and which of its fields can be changed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from batchinference.spec.base import CONTROLLER, DNS_LABEL, SpecModel, invalid, keyed
from batchinference.spec.cluster import Cluster
from batchinference.spec.expression import columns_read_by
from batchinference.spec.gate import Gate, parse_expectation
from batchinference.spec.lifecycle import Deadlines, Retry, Ttl
from batchinference.spec.notifications import Notification
from batchinference.spec.parameters import Parameter
from batchinference.spec.quantities import Quantity
from batchinference.spec.read import Read, ReadFiles
from batchinference.spec.reserved import RESERVED_STEPS
from batchinference.spec.steps import Step
from batchinference.spec.uri_fields import Uri
from batchinference.spec.warnings import WarningPolicy
from batchinference.spec.write import Write, WriteTable

GROUP = "batchinference.dev"
VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "BatchInference"
PLURAL = "batchinferences"
SCHEDULE_KIND = "BatchInferenceSchedule"
CANCELLED_AT = f"{GROUP}/batch-cancelled-at"
"""Annotation with the Unix time at which the batch service cancelled the job."""
CONTROLLER_NAME = f"{GROUP}/operator"
"""The value of `managedBy` for jobs that the operator runs."""
MAX_NAME = 40
"""Maximum length of the name of a job. The name of a RayJob is this name and the number of the
attempt, and KubeRay limits it to 47 characters."""

OPERATOR_FIELDS = (
    *("suspend", "priority", "retry", "deadlines", "ttl", "managedBy", "notifications"),
)
"""On a cluster, only the operator reads these fields, so the job file of the driver lacks them."""
MUTABLE = ("gate", "cluster", "suspend", "priority", "retry", "deadlines", "ttl", "notifications")
"""Fields of the spec that can be changed, because they do not define the rows of the output."""
MUTABLE_LIMITS = ("maxRows", "maxPercent", "warnings")
"""Fields of `errors` that can be changed."""
MUTABLE_OF_STEP = (
    *("batchSize", "replicas", "replicasPerPod", "replicasPerDevice", "resources"),
    *("dedupe", "cache"),
)
"""Fields of a step that can be changed, because they affect its speed, but not its result."""


class ErrorPolicy(SpecModel):
    """What happens to rows that cannot be decoded, or for which a step raises an error. The job
    writes an error record for each, and continues up to a limit. In most jobs without actor pools,
    rows that repeatedly end their process also fail. Without a limit, one failed row fails the
    job."""

    max_rows: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Maximum number of failed rows."""
    max_percent: Annotated[float, Field(ge=0, le=100), *Quantity] | None = None
    """Maximum percentage of failed rows among the rows of the input. If the number of input rows is
    an estimate, the job ends early only if the percentage is clearly higher."""
    path: Uri | None = None
    """The directory or object store prefix for the error records, outside of the output. They are
    Parquet files with the columns id, path, row, step, error, traceback and values. The default is
    `_batchinference/errors` below the output, or `_batchinference/append-*/errors` with
    `write.mode: append`."""
    values: bool = False
    """Whether an error record contains the values of the row before the failed step, as a JSON
    object. Long values are shortened."""
    retry_failed_rows: bool = False
    """Whether rows that failed in earlier runs are retried, including rows of added files. If
    false, their error records are kept, and a complete output is not changed. Not for tables."""
    warnings: Annotated[list[WarningPolicy], *keyed("name", 32)] = []
    """What happens if the job cuts, changes or leaves out something. Warnings that are not listed
    are counted and shown. A change of this list applies to rows that are not committed yet."""

    @property
    def tolerant(self) -> bool:
        """Return whether the job may have failed rows."""
        return bool(self.max_rows) or bool(self.max_percent)

    @property
    def failing_warnings(self) -> frozenset[str]:
        """Return the names of the warnings that make their rows failed rows."""
        return frozenset(policy.name for policy in self.warnings if policy.action == "fail")


def _check_step_names(steps: list[Step]) -> list[Step]:
    """Return the steps. Raises a validation error if two of them have the same name."""
    numbers: dict[str, int] = {}
    for number, step in enumerate(steps):
        if (first := numbers.setdefault(step.name, number)) != number:
            both = f"steps[{first}] and steps[{number}]"
            raise invalid(f"{both} are named '{step.name}'. Rename one of them")
    return steps


class BatchInferenceSpec(SpecModel):
    """What to read, which steps to run over it, and where to write."""

    read: Read
    """The input."""
    steps: Annotated[list[Step], Field(max_length=32), AfterValidator(_check_step_names)] = []
    """The steps that process the rows, in this order."""
    write: Write
    """The output."""
    errors: ErrorPolicy = ErrorPolicy()
    """What happens to rows that cannot be decoded, or for which a step raises an error."""
    gate: Gate | None = None
    """A check of the results of the first rows, before further rows are computed. The gate can be
    changed: a job that resumes checks the changed gate before it computes further rows."""
    parameters: Annotated[list[Parameter], *keyed("name", 32)] = []
    """Parameters, to which strings in `read`, `steps`, `write`, `errors` and `gate` refer."""
    resume: bool = True
    """Whether the committed rows of an unfinished output are kept. If false, each run of a job file
    starts the output over. On a cluster, only the first attempt of a BatchInference starts over,
    and later attempts keep the rows of the earlier ones."""
    cluster: Cluster = Cluster()
    """Settings for a cluster. Local runs ignore most of them."""
    suspend: bool = False
    """On a cluster: true deletes the RayJob and its cluster, false resumes the job."""
    priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] = 0
    """On a cluster that limits the number of running jobs: the priority in the admission queue. The
    job with the highest priority starts first, and the older of two jobs with equal priorities. The
    priority can be changed while the job waits. Jobs in a Kueue queue use
    `cluster.queuePriorityClassName` instead."""
    retry: Retry = Retry()
    """On a cluster: the number of attempts, and the causes that are retried."""
    deadlines: Deadlines = Deadlines()
    """On a cluster: the deadlines of the job."""
    ttl: Ttl = Ttl()
    """On a cluster: how long the objects of the finished job are kept."""
    notifications: Annotated[list[Notification], *keyed("name", 8)] = []
    """Webhooks that the operator, or a run on your machine, calls when the job has ended."""
    managed_by: Annotated[str, Field(pattern=CONTROLLER, max_length=63)] | None = None
    """On a cluster: the controller that runs the job, by default `batchinference.dev/operator`. The
    operator ignores jobs with another value, such as `kueue.x-k8s.io/multikueue`. The value cannot
    be changed."""

    def _check(self) -> None:
        self._check_steps()
        self._check_write()
        if self.errors.retry_failed_rows and (why := self.why_not_retried):
            raise invalid(f"errors.retryFailedRows: {why}")
        if (field := self.read.replaces_rows) and (why := self.why_not_replaced):
            raise invalid(f"read.{field}: {why}. Remove it")

    def _check_steps(self) -> None:
        for step in self.steps:
            if step.name in RESERVED_STEPS:
                reserved = f"'{step.name}' is reserved as the name of a step"
                raise invalid(f"{reserved}. Choose another name")
            if step.facts.needs_paths and self.read.path_name != "path":
                fix = f": rows of {self.read.format} come from no file. Remove the step"
                if isinstance(self.read, ReadFiles):
                    fix = ". Set read.options.includePaths to true"
                if self.read.path_name:
                    fix = f"{fix}, and remove pathColumn"
                raise invalid(f"step '{step.name}' needs the paths{fix}")

    def _check_write(self) -> None:
        for field in () if self.write.STORES_VALUES else self.first_rows_columns:
            problem = f"the values in files of {self.write.format} cannot be read"
            raise invalid(f"{field}: {problem}. Write another format")
        if self.write.mode == "addColumn" and getattr(self.read, "path", "") != self.write.path:
            raise invalid(
                "write.mode: addColumn writes to the Lance dataset that the job reads. Set "
                "read.format to lance, and read.path to write.path"
            )

    @property
    def first_rows_columns(self) -> dict[str, set[str]]:
        """Return output columns that the gate and the cascades read in the first rows, by field."""
        columns = {
            f"steps[{number}].cascade": {
                *columns_read_by(step.cascade.score),
                *columns_read_by(step.cascade.agree),
            }
            for number, step in enumerate(self.steps)
            if step.cascade is not None
        }
        if self.gate is not None:
            columns["gate.expect"] = parse_expectation(self.gate.expect).columns
        return columns

    @property
    def why_not_retried(self) -> str | None:
        """Return why failed rows cannot be retried alone, and the fix; None if they can."""
        if not isinstance(self.write, WriteTable):
            return None
        again = "another write.path" if self.write.mode == "merge" else "write.mode: overwrite"
        return (
            f"the rows of a table (write.format '{self.write.format}') are written in one "
            "commit, so the failed rows cannot be retried alone. Remove errors.retryFailedRows, or "
            f"process all rows again with {again}"
        )

    @property
    def why_not_replaced(self) -> str | None:
        """Return why the rows of changed files cannot be replaced; None if they can."""
        if isinstance(self.write, WriteTable):
            return (
                f"rows that were committed to a table (write.format '{self.write.format}') cannot "
                "be found again by their file"
            )
        if isinstance(self.read, ReadFiles) and self.read.options.limit is not None:
            return "with read.options.limit, a changed file could change which rows are the first"
        return None


DEFAULT_NAME = "job"
"""The name of a job that the Python API makes without a name."""


class Metadata(BaseModel):
    """The metadata of the object. Local runs use only the name."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=MAX_NAME)]
    """The name of the job."""
    namespace: str | None = None
    """The namespace of the job on a cluster."""
    labels: dict[str, str] | None = None
    """The labels of the object. Those of its pods are in `cluster.labels`."""
    annotations: dict[str, str] | None = None
    """The annotations of the object."""


class BatchInference(SpecModel):
    """One job of offline inference."""

    api_version: Literal["batchinference.dev/v1beta1"]
    """The version of this API."""
    kind: Literal["BatchInference"]
    """The kind of the object."""
    metadata: Metadata
    """The metadata of the object."""
    spec: BatchInferenceSpec
    """What to read, which steps to run over it, and where to write."""
    status: dict[str, Any] | None = None
    """The status, which the operator writes. Local runs ignore it."""

    def with_spec(self, **fields: object) -> BatchInference:
        """Return a copy of the job in which these fields of the spec are replaced."""
        return self.model_copy(update={"spec": self.spec.model_copy(update=fields)})
