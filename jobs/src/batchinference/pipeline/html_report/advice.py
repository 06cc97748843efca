"""States what limits a job and what to change, from its report."""

from __future__ import annotations

from collections.abc import Iterator

from batchinference.pipeline.html_report.bottleneck import bottleneck
from batchinference.pipeline.row_batch import READ_STEP
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report, StepTimes
from batchinference.spec.steps import Step
from batchinference.text import counted

LIMITING = 0.5
"""Minimum share of the measured time of a step that limits the job."""
BUSY, WAITING = 0.7, 0.3
"""CPU seconds per second. Above BUSY, a step computes. Below WAITING, it waits."""
MEASURED = 0.5
"""Minimum share of the rows with measured times. A short job measures only few rows."""
LEAST_SECONDS = 1.0
"""Minimum running time. The times of shorter jobs are not meaningful."""


def limiting_step(report: Report) -> str | None:
    """Return the step with the most measured time; None if no step was measured."""
    return max(report.steps, key=lambda name: report.steps[name].seconds, default=None)


def advice(report: Report, spec: BatchInferenceSpec) -> list[str]:
    """Return advice on what to change, the most important first."""
    return [*_about_rows(report), *_about_steps(report, spec), *_about_machines(report)]


def _about_rows(report: Report) -> Iterator[str]:
    failed = report.counts.failed if report.counts else 0
    if report.state is JobState.SUCCEEDED and failed:
        yield (
            f"{counted(failed, 'row', ',')} failed. Fix the cause, and run "
            "'batchinference retry-errors' with the job file: only these rows run again."
        )


def _about_steps(report: Report, spec: BatchInferenceSpec) -> Iterator[str]:
    name, steps = limiting_step(report), {step.name: step for step in spec.steps}
    total = sum(times.seconds for times in report.steps.values())
    running = report.seconds.get(JobState.RUNNING, 0.0)
    preparing = report.seconds.get(JobState.PREPARING, 0.0)
    if preparing > running > 0:
        yield (
            "Preparing took longer than running. Process more rows in one job, or keep models in "
            "the image or on a volume."
        )
    read = report.counts.read if report.counts else 0
    measured = max((times.rows for times in report.steps.values()), default=0)
    if name is None or running < LEAST_SECONDS or measured < MEASURED * read:
        return
    if found := bottleneck(report, spec):
        yield found
    elif total < LIMITING * running:
        yield (
            f"Reading, steps and writing took {total:.0f} s while the job ran for {running:.0f} s. "
            "Loading models and waiting for rows took the rest. Larger input files and more rows "
            "in one job reduce this share."
        )
    elif name == READ_STEP and report.steps[name].seconds >= LIMITING * total:
        yield (
            f"Reading and decoding limit the job: {report.steps[name].seconds / total:.0%} of the "
            "time. Add CPUs, or read images smaller with the option size."
        )
    elif name in steps and report.steps[name].seconds >= LIMITING * total:
        share = report.steps[name].seconds / total
        change = _change(steps[name], report.steps[name])
        yield f"The step '{name}' limits the job: {share:.0%} of the time of all steps. {change}"


def _change(step: Step, times: StepTimes) -> str:
    """Return advice on how to make a step faster."""
    busy = times.cpu_seconds / times.seconds if times.seconds else 0.0
    gpus = step.resources.gpu if step.resources else 0
    if step.model is not None and step.model.REMOTE:
        return "It waits for the server: increase its concurrency, or the capacity of the server."
    if gpus:
        return (
            "Increase replicas.max if there are more GPUs. If the GPUs are not fully used, "
            "increase batchSize, or give reading and decoding more CPUs."
        )
    if busy >= BUSY:
        device = ", or run the model on a GPU with resources.gpu" if step.model else ""
        return f"It computes all the time: add CPUs{device}."
    if busy <= WAITING:
        return f"Its CPUs are busy for {busy:.0%} of the time: run more of it in parallel."
    return "Add CPUs, so that more of it runs in parallel."


def _about_machines(report: Report) -> Iterator[str]:
    if report.retries:
        yield (
            f"{report.retries:,} tasks ran again because their process died. A lack of memory is "
            "the most frequent cause: increase resources.memory or decrease batchSize."
        )
    if report.memory and report.memory.spilled_bytes:
        yield (
            "Ray's object store was full and wrote to disk. More memory, or more replicas of the "
            "slowest step, avoid this."
        )
