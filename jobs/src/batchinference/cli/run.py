"""The commands `run` and `retry-errors`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from batchinference.cli import exits
from batchinference.cli.check import complain
from batchinference.cli.files import (
    directory_of,
    parameter_values,
    read_text,
    with_absolute_paths,
)
from batchinference.cli.preview import preview_of
from batchinference.cli.printing import echo
from batchinference.plan import (
    Plan,
    parse_plan,
    plan_for_cluster,
    plan_for_machine,
    ray_cpus,
)
from batchinference.rendering.objects import (
    DIGEST_VARIABLES,
    JOB_PATH,
    PLAN_FILE,
    PLAN_PATH,
    check_mounted_file,
)
from batchinference.shadows import shadowing
from batchinference.spec import BatchInference, SpecError, parse_one
from batchinference.spec.profiles import GPU
from batchinference.spec.report import REPORT_FILE, JobState, Report, last_word

_EXITS = {"BadInput": exits.BAD_INPUT, "Interrupted": exits.INTERRUPTED}
Publish = Callable[[Report], None]


@dataclass(frozen=True)
class RunOptions:
    address: str | None = None
    report_directory: Path | None = None
    sample: int = 0
    verbose: bool = False
    retry_errors: bool = False
    restart: bool = False
    preview: int = 0
    settings: Sequence[str] = ()
    """Values of parameters, as NAME=VALUE."""


def run_file(file: str, options: RunOptions) -> int:
    """Run the job in a file and return the exit code."""
    directory = directory_of(file)
    if problem := _conflict(options):
        echo(problem, err=True)
        return exits.BAD_INPUT
    if problems := shadowing([str(directory)]):
        echo("\n".join(f"{file}: {problem}" for problem in problems), err=True)
        return exits.BAD_INPUT
    try:
        text = read_text(file)
        check_mounted_file(file, text, os.environ)
        job = with_absolute_paths(parse_one(text, parameter_values(options.settings)), directory)
        if options.address is None:
            plan = plan_for_machine(job.spec)
        else:
            plan = _mounted_plan(file) or plan_for_cluster(job.spec)
    except SpecError as error:
        complain(file, error)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    from batchinference.pipeline.errors import JobFailure

    try:
        with TemporaryDirectory(prefix="batchinference-") as temporary:
            job = _as_requested(job, options, temporary)
            report = _run(job, plan, directory, options)
    except JobFailure as failure:  # no report, for example because Ray did not start
        echo(f"{job.metadata.name}: {failure.message}", err=True)
        return _failed(failure.reason, failure.message, options)
    if report.state == JobState.SUCCEEDED:
        return exits.SUCCESS
    return _failed(report.reason, report.message, options)


def _mounted_plan(file: str) -> Plan | None:
    """Return the plan that the operator made for this attempt; None for any other job."""
    if file != JOB_PATH or DIGEST_VARIABLES[PLAN_FILE] not in os.environ:
        return None
    text = read_text(PLAN_PATH)
    check_mounted_file(PLAN_PATH, text, os.environ)
    return parse_plan(text)


def _failed(reason: str | None, message: str | None, options: RunOptions) -> int:
    if options.report_directory is not None:  # this process is the driver on a cluster
        echo(last_word(reason, message), err=True)
    return exit_code(reason)


def _conflict(options: RunOptions) -> str | None:
    """Return why a job cannot run with these options; None if it can."""
    if (options.address or "").startswith("ray://"):
        return (
            f"--address {options.address}: Ray Client cannot run a job. Run this command on a node "
            "of the cluster with --address auto, or give the HOST:PORT of the cluster's GCS"
        )
    if options.preview and options.address is not None:
        return "--preview runs on this machine only. Remove --address"
    return None


def _as_requested(job: BatchInference, options: RunOptions, temporary: str) -> BatchInference:
    if options.preview:
        return preview_of(job, options.preview, temporary)
    if options.restart:
        return _restarted(job)
    return _with_retry(job) if options.retry_errors else job


def _with_retry(job: BatchInference) -> BatchInference:
    """Return the job with retries of its failed rows enabled.

    Raises BadInput if the job cannot retry rows, or has no output yet.
    """
    from batchinference.pipeline.commit.layout import Layout
    from batchinference.pipeline.commit.lease import read_lease
    from batchinference.pipeline.errors import BadInput

    if why := job.spec.why_not_retried:
        raise BadInput(f"retry-errors: {why}")
    layout = Layout.of(job.spec)
    lease = read_lease(layout)
    if lease is None or lease.key != layout.key:
        raise BadInput(f"'{layout.output.uri}' holds no output of this job: run it first")
    errors = job.spec.errors.model_copy(update={"retry": True})
    update = {"errors": errors, "resume": True}
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})


def _restarted(job: BatchInference) -> BatchInference:
    """Return the job with fields that start it over, whatever it has written.

    Raises BadInput if the job adds to the rows of other runs."""
    from batchinference.pipeline.errors import BadInput

    write = job.spec.write
    if write.mode == "append":
        raise BadInput(
            "--restart: write.mode append keeps the rows of earlier runs (append). Set write.mode "
            "to overwrite to replace all of them, or resume to false to repeat an unfinished run"
        )
    errors = job.spec.errors.model_copy(update={"retry": False})
    write = write.model_copy(update={"mode": "overwrite"})
    update = {"resume": False, "write": write, "errors": errors}
    return job.model_copy(update={"spec": job.spec.model_copy(update=update)})


def pipeline_is_installed() -> bool:
    """Return whether jobs can run here. If not, print what to install."""
    import batchinference.pipeline  # noqa: F401 - removes environment variables before Ray reads them

    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        from batchinference.pipeline.errors import PIPELINE_EXTRA, missing_package

        echo(f"{missing_package('running a job', 'ray', PIPELINE_EXTRA)} ({error})", err=True)
        return False
    return True


def _run(job: BatchInference, plan: Plan, directory: Path, options: RunOptions) -> Report:
    from batchinference.cli.display import Display
    from batchinference.pipeline.execution.cluster import (
        connected,
        embedded,
        machine_cpus,
        ray_files,
    )
    from batchinference.pipeline.execution.resources import check_nodes
    from batchinference.pipeline.execution.stop_signals import stop_on_signals
    from batchinference.pipeline.job import JobRun

    with (
        Display(verbose=options.verbose) as display,
        stop_on_signals(lambda line: display.say(f"{job.metadata.name}: {line}")) as stop,
    ):
        publish = _publisher(display.show, options.report_directory)
        if options.address is not None:
            display.say(f"{job.metadata.name}: connecting to Ray at {options.address}")
            code = str(directory) if _uses_code(job) else None
            quiet = not options.verbose and options.report_directory is None
            with connected(options.address, code, quiet=quiet) as nodes:
                check_nodes(plan, nodes)
                report = JobRun(job, plan, publish, stop).run()
        else:
            display.say(f"{job.metadata.name}: starting Ray on this machine")
            with ray_files() as files:
                cpus, quiet = ray_cpus(plan, machine_cpus()), not options.verbose
                with embedded(cpus, str(directory), files, quiet=quiet) as found:
                    gpus, memory = int(found.get(GPU, 0)), found["memory"]
                    plan = plan_for_machine(job.spec, gpus, found, memory)
                    for note in plan.notes:
                        display.say(note)
                    report = JobRun(job, plan, publish, stop).run()
                ended = exits.SUCCESS if report.reason is None else exit_code(report.reason)
                files.kept = ended == exits.JOB_FAILED
            if files.kept:
                display.say(f"Ray's logs of this run: {files.logs}")
    if options.preview:
        report = report.model_copy(update={"output": "none (--preview)"})
    display.summarize(report, resumes=not job.spec.why_not_retried)
    if report.state == JobState.SUCCEEDED and (rows := options.preview or options.sample):
        display.show_sample(job, rows)
    return report


def _publisher(show: Publish, directory: Path | None) -> Publish:
    if directory is None:
        return show
    from batchinference.pipeline.storage.location import Location

    place = Location(str(directory)) / REPORT_FILE

    def publish(report: Report) -> None:
        place.write(report.serialized())
        show(report)

    return publish


def exit_code(reason: str | None) -> int:
    """Return the exit code for the reason of a failure."""
    return _EXITS.get(reason or "", exits.JOB_FAILED)


def _uses_code(job: BatchInference) -> bool:
    """Return whether a step uses code that may be in the directory of the job."""
    steps = job.spec.steps
    return any(step.python or (step.model and step.model.factory_or_none) for step in steps)
