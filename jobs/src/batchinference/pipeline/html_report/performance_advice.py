"""Says what limits a job and what to change, from the times and counts in its report.

Advice about times needs measured times that prove it. Divisors are rounded to microseconds, because
a division by a shorter time may overflow."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from batchinference.pipeline.row_batch import READ_STEP, WRITE_STEP
from batchinference.pipeline.step_time import preparation_of
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.report import JobState, Report
from batchinference.spec.steps import Step
from batchinference.text import counted

BUSY = 0.7
"""CPUs or writers limit the job only if they are busy for at least this share of the time."""
STARVED = 0.3
"""Replicas do not limit the job if they wait for at least this share of the time."""
FED = 0.2
"""Replicas limit the job only if they wait for at most this share of the time."""
ACTIVE = 0.5
"""A pool or a server limits the job only if it takes at least this share of the time. Short jobs
spend more time on loading models and waiting for nodes."""
MEASURED = 0.5
"""The minimum share of rows with measured times. A short job measures few rows."""
MIN_SECONDS = 1.0
"""The minimum running time for advice. Times of shorter jobs are not meaningful."""


def limiting_step(report: Report) -> str | None:
    """Return the step with the longest measured time; None if no step was measured."""
    return max(report.steps, key=lambda name: report.steps[name].seconds, default=None)


def advice(report: Report, spec: BatchInferenceSpec) -> list[str]:
    """Return advice on what to change, the most important advice first."""
    return [*_row_advice(report), *_time_advice(report, spec), *_machine_advice(report)]


def _row_advice(report: Report) -> Iterator[str]:
    failed = report.counts.failed if report.counts else 0
    if report.state is JobState.SUCCEEDED and failed:
        yield (
            f"{counted(failed, 'row', ',')} failed. Fix the cause, and run "
            "'batchinference run --retry-errors' with the job file: only these rows run again."
        )


def _time_advice(report: Report, spec: BatchInferenceSpec) -> Iterator[str]:
    running = report.seconds.get(JobState.RUNNING, 0.0)
    if report.seconds.get(JobState.PREPARING, 0.0) > running > 0:
        yield (
            "Preparing took longer than running. Process more rows in one job, or keep models in "
            "the image or on a volume."
        )
    read = report.counts.read if report.counts else 0
    measured = max((times.rows for times in report.steps.values()), default=0)
    if not report.steps or running < MIN_SECONDS or measured < MEASURED * read:
        return
    total = sum(times.seconds for times in report.steps.values())
    if text := bottleneck(report, spec):
        yield text
    elif total < ACTIVE * running:
        yield (
            f"Reading, steps and writing took {total:.0f} s while the job ran for {running:.0f} s. "
            "Loading models and waiting for rows took the rest. Larger input files and more rows "
            "in one job reduce this share."
        )


def _machine_advice(report: Report) -> Iterator[str]:
    if report.retries:
        yield (
            f"{report.retries:,} tasks ran again because their process died. A lack of memory is "
            "the most frequent cause. Increase resources.memory or decrease batchSize."
        )
    if report.memory and report.memory.spilled_bytes:
        yield (
            "Ray's object store was full and wrote to disk. More memory, or more replicas of the "
            "slowest step, avoid this."
        )


@dataclass(frozen=True)
class Load:
    """How busy the CPUs and the writers were while a job ran for `seconds`."""

    seconds: float
    cpus: float
    writers: int
    parts: dict[str, float]
    """The CPU seconds of reading and of each step that runs in tasks."""
    writing: float
    """The seconds in which writers were busy, added up over all writers."""

    @property
    def cpu_seconds(self) -> float:
        """The sum of `parts`."""
        return _to_microseconds(sum(self.parts.values()))

    @property
    def cpu_share(self) -> float:
        """The share of the CPU time in which CPUs were busy, at most 1."""
        return min(1.0, self.cpu_seconds / (self.cpus * self.seconds))

    @property
    def writer_share(self) -> float:
        """The share of the time in which the writers were busy."""
        return self.writing / (self.writers * self.seconds)


def bottleneck(report: Report, spec: BatchInferenceSpec) -> str | None:
    """Return what limits the job and what to add; None if the report does not show this."""
    if text := _server_advice(report, spec):
        return text
    pools = [step for step in spec.steps if _has_pool(step, report)]
    load = measured_load(report, spec)
    if load is None or len(pools) > 1:
        return None
    return " ".join(_pool_advice(pools[0], report, load) if pools else _task_advice(load)) or None


def _server_advice(report: Report, spec: BatchInferenceSpec) -> str | None:
    """Return advice if requests to a server take most of the measured time, else None."""
    total = _to_microseconds(sum(times.seconds for times in report.steps.values()))
    slowest = next((step for step in spec.steps if step.name == limiting_step(report)), None)
    if slowest is None or slowest.model is None or not slowest.model.REMOTE or not total:
        return None
    share = report.steps[slowest.name].seconds / total
    if share < ACTIVE:
        return None
    return (
        f"The server limits: {_percent(share)} of the measured time are requests of the step "
        f"'{slowest.name}'. Increase its concurrency, or the capacity of the server."
    )


def measured_load(report: Report, spec: BatchInferenceSpec) -> Load | None:
    """Return the load of a job; None if reading, a step or the capacity was not measured."""
    seconds, capacity = report.seconds.get(JobState.RUNNING, 0.0), report.capacity
    loaded = [step for step in spec.steps if step.facts.tunable]
    measured = READ_STEP in report.steps and all(step.name in report.steps for step in loaded)
    if not (measured and capacity and seconds > 0 and capacity.cpus > 0 and capacity.writers > 0):
        return None
    writing = report.steps.get(WRITE_STEP)
    written = writing.seconds if writing else 0.0
    return Load(seconds, capacity.cpus, capacity.writers, dict(_parts(report, spec)), written)


def _parts(report: Report, spec: BatchInferenceSpec) -> Iterator[tuple[str, float]]:
    """Yield the CPU seconds of reading and of each step that runs in tasks. A task has as many CPUs
    as its largest step needs."""
    tasks = [step for step in spec.steps if not _has_pool(step, report)]
    wide = [_cpus(step) for step in tasks if step.facts.in_actors]
    width = max([1.0, *wide])
    yield READ_STEP, width * report.steps[READ_STEP].seconds
    for step in tasks:
        if step.name in report.steps:
            yield step.name, max(width, _cpus(step)) * report.steps[step.name].seconds
    for name in map(preparation_of, (step.name for step in spec.steps)):
        if name in report.steps:
            yield name, width * report.steps[name].seconds


def _cpus(step: Step) -> float:
    return step.resources.cpu if step.resources else 1.0


def _has_pool(step: Step, report: Report) -> bool:
    """Return whether a step has its own actors, according to the spec and the report."""
    resources = step.resources
    needs = resources is not None and (resources.gpu or resources.memory or resources.custom)
    times = report.steps.get(step.name)
    waited = times is not None and times.wait_seconds is not None
    separate = step.model is not None and not step.model.IN_PROCESS
    return bool(step.replicas or needs or waited or separate)


def _pool_seconds(step: Step, report: Report) -> tuple[float, float, float] | None:
    """Return the seconds in which the replicas of a step computed, waited for rows, and waited to
    pass on results. None if these were not measured, or if replicas wait for a server or for
    devices that the report does not count."""
    times, asked = report.steps.get(step.name), step.resources
    remote = step.model is not None and step.model.REMOTE
    if times is None or times.wait_seconds is None or remote:
        return None
    gpus = report.capacity.gpus if report.capacity else 0
    if asked and (asked.custom or asked.gpu > gpus):
        return None
    busy = times.seconds if times.compute_seconds is None else times.compute_seconds
    return _to_microseconds(busy), times.wait_seconds, times.blocked_seconds or 0.0


def _pool_advice(step: Step, report: Report, load: Load) -> Iterator[str]:
    seconds, gpus = _pool_seconds(step, report), step.resources.gpu if step.resources else 0
    if seconds is None or (busy := seconds[0]) <= 0:
        return
    busy_share, wait_share, _ = (part / sum(seconds) for part in seconds)
    if wait_share >= STARVED and load.cpu_share >= BUSY and gpus:
        missing = math.ceil(load.cpu_seconds / (busy * gpus) * wait_share - 1e-9)
        yield (
            f"The CPUs limit: the GPU waits {_percent(wait_share)} of the time in the step "
            f"'{step.name}'. Add {counted(missing, 'CPU', ',')} per GPU."
        )
        yield _largest_part(load)
    elif 1 - busy_share >= STARVED and load.writer_share >= BUSY:
        yield from _writing_advice(load)
    elif 1 - busy_share <= FED and busy >= ACTIVE * load.seconds:
        subject = "GPUs" if gpus else "replicas"
        change = "Increase replicas.max" if gpus or step.replicas else "Add CPUs"
        yield (
            f"The {subject} limit: they compute {_percent(busy_share)} of the time in the "
            f"step '{step.name}'. {change}."
        )


def _task_advice(load: Load) -> Iterator[str]:
    if load.writer_share >= BUSY and load.writer_share > load.cpu_share:
        yield from _writing_advice(load)
    elif load.cpu_share >= BUSY:
        yield f"The CPUs limit: {_percent(load.cpu_share)} of their time is taken. Add CPUs."
        yield _largest_part(load)


def _writing_advice(load: Load) -> Iterator[str]:
    busy = min(1.0, load.writer_share) * load.writers
    yield (
        f"Writing limits: {busy:.1f} of at most {counted(load.writers, 'file', ',')} are written "
        "at the same time. Add CPUs to write more of them."
    )


def _largest_part(load: Load) -> str:
    """Return a sentence about the part of the job that takes the most CPU time."""
    name = max(load.parts, key=lambda part: load.parts[part])
    subject = "Reading and decoding take" if name == READ_STEP else f"The step '{name}' takes"
    return f"{subject} {_percent(load.parts[name] / load.cpu_seconds)} of this time."


def _to_microseconds(seconds: float) -> float:
    return round(seconds, 6)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
