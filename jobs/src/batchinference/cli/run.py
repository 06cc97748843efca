"""The command `run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from batchinference.cli import exits
from batchinference.cli.check import complain
from batchinference.cli.files import directory_of, read_text, with_absolute_paths
from batchinference.plan import Plan, cpus_needed, plan_for_cluster, plan_for_machine
from batchinference.spec import BatchInference, SpecError, parse_one
from batchinference.spec.profiles import GPU
from batchinference.spec.report import REPORT_FILE, JobState, Report

_EXITS = {"BadInput": exits.BAD_INPUT, "Interrupted": exits.INTERRUPTED}
Publish = Callable[[Report], None]


@dataclass(frozen=True)
class RunOptions:
    address: str | None = None
    report_directory: Path | None = None
    sample: int = 0
    verbose: bool = False
    retry_errors: bool = False


def run_file(file: str, options: RunOptions) -> int:
    """Run the job of a file; the exit code tells how it went."""
    try:
        job = parse_one(read_text(file))
        if options.address is None:
            plan = plan_for_machine(job.spec)
        else:
            plan = plan_for_cluster(job.spec)
    except SpecError as error:
        complain(file, error)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    from batchinference.pipeline.failures import JobFailure

    directory = directory_of(file)
    job = with_absolute_paths(job, directory)
    try:
        if options.retry_errors:
            job = _with_retry(job)
        report = _run(job, plan, directory, options)
    except JobFailure as failure:  # without Ray there is no run to report on
        typer.echo(f"{job.metadata.name}: {failure.message}", err=True)
        return exit_code(failure.reason)
    return exits.SUCCESS if report.state == JobState.SUCCEEDED else exit_code(report.reason)


def _with_retry(job: BatchInference) -> BatchInference:
    """The job with its bad rows tried again. Raises BadInput where there can be none."""
    from batchinference.pipeline.failures import BadInput
    from batchinference.pipeline.layout import Layout
    from batchinference.pipeline.owner import owner_of

    if why := job.spec.why_not_retried:
        raise BadInput(f"retry-errors: {why}")
    layout = Layout.of(job.spec)
    owner = owner_of(layout)
    if owner is None or owner.key != layout.key:
        raise BadInput(f"'{layout.output.uri}' holds no output of this job: run it first")
    errors = job.spec.errors.model_copy(update={"retry": True})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"errors": errors})})


def pipeline_is_installed() -> bool:
    """Whether jobs can be run here; where not, what to install is said."""
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        from batchinference.pipeline.libraries import PIPELINE_EXTRA, missing

        typer.echo(f"{missing('running a job', 'ray', PIPELINE_EXTRA)} ({error})", err=True)
        return False
    return True


def _run(job: BatchInference, plan: Plan, directory: Path, options: RunOptions) -> Report:
    from batchinference.cli.display import Display
    from batchinference.pipeline.engine import connected, embedded
    from batchinference.pipeline.job import JobRun
    from batchinference.pipeline.nodes import check_nodes
    from batchinference.pipeline.supervise import stop_on_signals

    with Display() as display, stop_on_signals() as stop:
        publish = _publisher(display.show, options.report_directory)
        if options.address is not None:
            display.say(f"{job.metadata.name}: connecting to Ray at {options.address}")
            with connected(options.address) as nodes:
                check_nodes(plan, nodes)
                report = JobRun(job, plan, publish, stop).run()
        else:
            display.say(f"{job.metadata.name}: starting Ray on this machine")
            with embedded(cpus_needed(plan), str(directory), quiet=not options.verbose) as found:
                plan = plan_for_machine(job.spec, int(found.get(GPU, 0)), found, found["memory"])
                for note in plan.notes:
                    display.say(note)
                report = JobRun(job, plan, publish, stop).run()
    display.summarize(report)
    if report.state == JobState.SUCCEEDED and options.sample:
        display.show_sample(job, options.sample)
    return report


def _publisher(show: Publish, directory: Path | None) -> Publish:
    if directory is None:
        return show
    from batchinference.pipeline.storage import Address

    place = Address(str(directory)) / REPORT_FILE

    def publish(report: Report) -> None:
        place.write(report.serialized())
        show(report)

    return publish


def exit_code(reason: str | None) -> int:
    """What the program ends with after a failure."""
    return _EXITS.get(reason or "", exits.JOB_FAILED)
