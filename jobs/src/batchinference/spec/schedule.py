"""The model of a BatchInferenceSchedule, which creates BatchInferences at scheduled times."""

from datetime import datetime, timedelta, tzinfo
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from batchinference.spec.base import CRON, DNS_LABEL, TIME_ZONE, SpecModel, accepted_by, keyed
from batchinference.spec.cron import Cron, check_schedule, zone_of
from batchinference.spec.durations import Duration
from batchinference.spec.job import API_VERSION, GROUP, KIND, MAX_NAME, Metadata
from batchinference.spec.pod_settings import Annotations, Labels
from batchinference.spec.problems import SpecError
from batchinference.spec.status import Condition, Timestamp
from batchinference.spec.validation_messages import problems_of

SCHEDULE_PLURAL = "batchinferenceschedules"
SCHEDULE_LABEL = f"{GROUP}/schedule"
"""The label of a BatchInference with the name of its schedule."""
SCHEDULED_TIME = f"{GROUP}/scheduled-time"
"""The annotation of a BatchInference with its scheduled time, in the time zone of the schedule."""
MAX_SCHEDULE_NAME = MAX_NAME - len("-12345678")
TIME_FORMATS = {
    "date": "%Y-%m-%d",
    "year": "%Y",
    "month": "%m",
    "day": "%d",
    "hour": "%H",
    "minute": "%M",
}
"""Parameters that a schedule sets, with their formats, besides `previous_date` and `timestamp`."""


class RunMetadata(SpecModel):
    """The metadata of each BatchInference."""

    labels: Labels = {}
    """Labels to add."""
    annotations: Annotations = {}
    """Annotations to add."""


class RunTemplate(SpecModel):
    """The template of the BatchInferences."""

    metadata: RunMetadata = RunMetadata()
    """The metadata of each BatchInference."""
    spec: dict[str, Any]
    """The spec of each BatchInference. The schedule gives values to its parameters `date`,
    `previous_date`, `year`, `month`, `day`, `hour`, `minute` and `timestamp`, if they have none."""


class ScheduleSpec(SpecModel):
    """When BatchInferences are created, and from which template."""

    schedule: Annotated[str, Field(pattern=CRON, max_length=128), accepted_by(check_schedule)]
    """Minute, hour, day of the month, month and day of the week, as in a crontab."""
    time_zone: Annotated[str, Field(pattern=TIME_ZONE, max_length=64), accepted_by(zone_of)] = "UTC"
    """The time zone of `schedule`: a name of the IANA database, such as Europe/Berlin."""
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Forbid"
    """What happens at a scheduled time if the previous run is not finished. `Allow`: the new run
    starts. `Forbid`: the new run waits for the end of the previous run. `Replace`: the new run
    starts, and the previous run is deleted."""
    starting_deadline: Duration | None = None
    """Maximum delay of a run. Without a maximum, the last missed run starts with any delay."""
    suspend: bool = False
    """Whether the creation of runs is suspended. Existing runs continue."""
    successful_runs_history_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """Number of complete runs to keep. Older runs are deleted. The output of runs is kept."""
    failed_runs_history_limit: Annotated[int, Field(ge=0, le=100)] = 1
    """Number of failed runs to keep. Older runs are deleted."""
    template: RunTemplate
    """The template of the BatchInferences."""

    @property
    def cron(self) -> Cron:
        """Return the object that computes the times of the schedule, in its time zone."""
        return Cron(self.schedule, self.time_zone)


class ScheduleStatus(SpecModel):
    """The observed state of the schedule."""

    observed_generation: int
    """The generation of the spec that this status describes."""
    conditions: Annotated[list[Condition], *keyed("type", 8)]
    """Ready is always present. Its reason is Suspended while `suspend` is true. Stalled is present
    while no run can be created."""
    active: Annotated[list[str], Field(max_length=100)] = []
    """Names of unfinished runs, at most 100."""
    last_schedule_time: Timestamp | None = None
    """The scheduled time of the last run."""
    last_successful_time: Timestamp | None = None
    """The time at which a run last succeeded."""
    next_schedule_time: Timestamp | None = None
    """The next scheduled time; absent while the schedule is suspended."""
    checked_until: Timestamp | None = None
    """The time up to which all scheduled times have a run or are counted as missed."""
    missed_runs: Annotated[int, Field(ge=0)] = 0
    """Number of scheduled times that were missed."""
    observed_schedule: str | None = None
    """The schedule and the time zone for which `checkedUntil` is valid."""


class ScheduleMetadata(Metadata):
    """The object's metadata."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=MAX_SCHEDULE_NAME)]
    """The name of the schedule, which is the prefix of the names of its runs."""


class BatchInferenceSchedule(SpecModel):
    """A schedule that creates BatchInferences."""

    api_version: Literal["batchinference.dev/v1beta1"]
    """The version of this API."""
    kind: Literal["BatchInferenceSchedule"]
    """The kind of the object."""
    metadata: ScheduleMetadata
    """The object's metadata."""
    spec: ScheduleSpec
    """When BatchInferences are created, and from which template."""
    status: dict[str, Any] | None = None
    """Written by the operator."""

    def run(self, time: datetime) -> dict[str, Any]:
        """Return the BatchInference for a scheduled time, as plain data. No run is created twice,
        because its name depends only on the schedule and the time."""
        metadata, spec = self.spec.template.metadata, dict(self.spec.template.spec)
        values = time_values(time, self.spec.cron.zone)
        if "parameters" in spec:
            spec["parameters"] = _with_time_values(spec["parameters"], values)
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "name": f"{self.metadata.name}-{int(time.timestamp()) // 60}",
                "namespace": self.metadata.namespace,
                "labels": {**metadata.labels, SCHEDULE_LABEL: self.metadata.name},
                "annotations": {**metadata.annotations, SCHEDULED_TIME: values["timestamp"]},
            },
            "spec": spec,
        }


def _with_time_values(parameters: Any, values: dict[str, str]) -> Any:
    """Return the parameters of a template, with time values for parameters without a value. Invalid
    parameters are unchanged, because the validation of the created BatchInference reports them."""
    if not isinstance(parameters, list):
        return parameters
    return [
        {**parameter, "value": values[str(parameter["name"])]}
        if isinstance(parameter, dict)
        and str(parameter.get("name")) in values
        and "value" not in parameter
        else parameter
        for parameter in parameters
    ]


def time_values(time: datetime, zone: tzinfo) -> dict[str, str]:
    """Return the parameters that a schedule sets for a scheduled time."""
    local = time.astimezone(zone)
    return {
        **{name: local.strftime(format_) for name, format_ in TIME_FORMATS.items()},
        "previous_date": str(local.date() - timedelta(days=1)),
        "timestamp": local.isoformat(),
    }


def parse_schedule(document: dict[str, Any]) -> BatchInferenceSchedule:
    """Return a document as a BatchInferenceSchedule, without validation of its template. Raises
    SpecError with every problem."""
    try:
        return BatchInferenceSchedule.model_validate(document)
    except ValidationError as error:
        raise SpecError(problems_of(error, BatchInferenceSchedule)) from None
