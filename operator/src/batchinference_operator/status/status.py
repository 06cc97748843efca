"""The whole status of a BatchInference, and the patch that turns the old one into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchinference.spec.report import Report
from batchinference.spec.status import Phase
from batchinference_operator.status.conditions import Verdict, conditions
from batchinference_operator.status.observations import RayJobView

Status = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """What a look at a job has shown. `ray_job` and `report` as far as they were seen."""

    phase: Phase
    verdict: Verdict
    ray_job: RayJobView | None = None
    report: Report | None = None


def build_status(previous: Status, generation: int, finding: Finding, now: str) -> Status:
    """The new status. What cannot be seen any more stays as it was."""
    verdict, ray_job, report = finding.verdict, finding.ray_job, finding.report
    status: Status = {
        **previous,
        "phase": finding.phase.value,
        "observedGeneration": generation,
        "conditions": conditions(verdict, previous.get("conditions", []), generation, now),
    }
    if ray_job is not None:
        status["rayJobName"] = ray_job.name
        status["startTime"] = ray_job.created_at
        if ray_job.cluster:
            status["rayClusterName"] = ray_job.cluster
    if report is not None:
        status |= _of_report(report, previous)
    if verdict.complete or verdict.failed:
        status.setdefault("completionTime", _end(ray_job, report) or now)
        if "progress" in status:
            status["progress"] = _at_the_end(status["progress"], report)
    return status


def _at_the_end(progress: dict[str, Any], report: Report | None) -> dict[str, Any]:
    """The progress of a job that goes on no more: no time is left, and without the driver's last
    word nobody knows how much of it was done."""
    unknown = {"eta"} if report is not None else {"eta", "percent"}
    return {key: value for key, value in progress.items() if key not in unknown}


def _of_report(report: Report, previous: Status) -> Status:
    dumped = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    found: Status = {key: dumped[key] for key in ("progress", "counts", "output") if key in dumped}
    before = previous.get("progress", {}).get("rows", 0)
    if found.get("progress", {}).get("rows", 0) < before and not report.state.ended:
        # a driver that was started anew counts from nothing; progress never goes back
        found.pop("progress", None)
        found.pop("counts", None)
    return found


def _end(ray_job: RayJobView | None, report: Report | None) -> str | None:
    if report is not None and report.state.ended:
        return report.updated_at
    return ray_job.ended_at if ray_job is not None and ray_job.ended_at else None


def merge_patch(old: Status, new: Status) -> Status:
    """The JSON merge patch (RFC 7396) from one status to another; empty when they are equal."""
    patch: Status = {key: None for key in old if key not in new}
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            if inner := merge_patch(old[key], value):
                patch[key] = inner
        elif key not in old or old[key] != value:
            patch[key] = value
    return patch
