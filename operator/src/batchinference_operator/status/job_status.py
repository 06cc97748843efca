"""Builds the status of a BatchInference and the merge patch that writes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from batchinference.spec.report import Report
from batchinference.spec.status import PROCESSING_PHASES, Phase
from batchinference_operator.status.conditions import Summary, build_conditions
from batchinference_operator.status.ray_job_view import RayJobView
from batchinference_operator.status.timestamps import plausible_end

Status = dict[str, Any]
_PHASES = {"stage": PROCESSING_PHASES, "nextAttemptTime": (Phase.PENDING, Phase.RETRYING)}
"""The phases in which a field applies, for fields that do not apply in all phases."""


@dataclass(frozen=True)
class StatusUpdate:
    """What one reconcile observed. `ray_job` and `report` are None if they were not observed."""

    phase: Phase
    summary: Summary
    ray_job: RayJobView | None = None
    report: Report | None = None

    def after(self, former: StatusUpdate | None) -> StatusUpdate:
        """Return the update with the RayJob and the report of a former update."""
        return self if former is None else replace(former, phase=self.phase, summary=self.summary)


def build_status(previous: Status, generation: int, update: StatusUpdate, now: str) -> Status:
    """Return the new status. Fields keep their values unless they no longer apply in the phase."""
    summary, ray_job, report = update.summary, update.ray_job, update.report
    status: Status = {
        **previous,
        "phase": update.phase.value,
        "observedGeneration": generation,
        "conditions": build_conditions(summary, previous.get("conditions", []), generation, now),
    }
    if ray_job is not None:
        status.setdefault("startTime", ray_job.created_at)
        if ray_job.cluster:
            status["rayClusterName"] = ray_job.cluster
    if report is not None:
        status = _with_report(status, report)
    status = without(status, *(n for n, kept in _PHASES.items() if update.phase not in kept))
    if update.phase not in PROCESSING_PHASES and "progress" in status:
        status["progress"] = without(status["progress"], "eta")
    if not (summary.complete or summary.failed):
        status.pop("completionTime", None)  # only there after InvalidSpec, if the spec has changed
    else:
        end = plausible_end(ended_at(ray_job, report), status.get("startTime"), now)
        status.setdefault("completionTime", end)
        if "progress" in status and report is None:
            # without the driver's final report, the completed percentage is unknown
            status["progress"].pop("percent", None)
    if summary.complete and not (report and report.state.ended):
        status = without(status, "counts", "warnings")  # these are of an earlier report
    return status


def _with_report(status: Status, report: Report) -> Status:
    """Return the status with the fields of a report. Without counts, old warnings are kept."""
    kept = without(status, "stage", *(["warnings"] if report.counts is not None else []))
    fields = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    reported = ("progress", "stage", "counts", "replacedFiles", "warnings", "output")
    return {**kept, **{key: fields[key] for key in reported if fields.get(key)}}


def with_observed_generation(status: Status, generation: int) -> Status | None:
    """Return the status with another `observedGeneration`, also in its conditions.

    None if nothing would change, or there are no conditions yet. Tools that wait for a job compare
    an `observedGeneration` with the generation of the object.
    """
    if status.get("observedGeneration") == generation or "conditions" not in status:
        return None
    conditions = [{**one, "observedGeneration": generation} for one in status["conditions"]]
    return {**status, "observedGeneration": generation, "conditions": conditions}


def without(status: Status, *names: str) -> Status:
    """Return a status, or a part of a status, without these fields."""
    return {name: value for name, value in status.items() if name not in names}


def internal(status: Status) -> Status:
    """Return the field `operator` of a status: bookkeeping that is not meant for users."""
    fields: Status = status.get("operator", {})
    return fields


def with_internal(status: Status, **fields: object) -> Status:
    """Return the status with changed fields in its bookkeeping. None removes a field."""
    changed = {**internal(status), **fields}
    kept = {name: value for name, value in changed.items() if value is not None}
    return {**without(status, "operator"), **({"operator": kept} if kept else {})}


def ended_at(ray_job: RayJobView | None, report: Report | None) -> str | None:
    """Return when the driver ended, as reported by the driver or KubeRay; None if unknown."""
    if report is not None and report.state.ended:
        return report.updated_at
    return ray_job.ended_at if ray_job is not None and ray_job.ended_at else None


def merge_patch(old: Status, new: Status) -> Status:
    """Return the JSON merge patch (RFC 7396) between two statuses; empty if they are equal."""
    patch: Status = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif key not in old or old[key] != value:
            patch[key] = value
    return patch
