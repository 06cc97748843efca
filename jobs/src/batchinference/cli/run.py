"""The command `run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchinference.api.job_files import (
    directory_of,
    parameter_values,
    read_file_or_stdin,
    with_absolute_paths,
)
from batchinference.api.job_for_run import job_of_run, trial
from batchinference.api.runner import Runner
from batchinference.cli import exits
from batchinference.cli.installed_packages import pipeline_is_installed
from batchinference.cli.printing import Format, echo, print_data
from batchinference.cli.validate_and_plan import print_problems
from batchinference.cli.verbosity import is_quiet, is_verbose
from batchinference.pipeline.errors import RUN, JobFailure
from batchinference.plan import Plan, parse_plan, plan_for_cluster, requested_plan
from batchinference.rendering.config_map import (
    DIGEST_VARIABLES,
    JOB_PATH,
    PLAN_FILE,
    PLAN_PATH,
    check_mounted_file,
)
from batchinference.rendering.names import dump
from batchinference.shadowing_files import shadowing
from batchinference.spec import BatchInference, SpecError, parse_one
from batchinference.spec.report import REPORT_FILE, JobState, PodPrices, Report, failure_line
from batchinference.text import counted

Publish = Callable[[Report], None]


@dataclass(frozen=True)
class RunOptions:
    """The options of `run`. See the help of the command."""

    address: str | None = None
    report_directory: Path | None = None
    sample: int = 0
    retry_errors: bool = False
    restart: bool = False
    form: Format = Format.TEXT
    """The format in which the report is printed to stdout; TEXT prints no report."""
    settings: Sequence[str] = ()
    """Values of parameters, as NAME=VALUE."""
    limit: int | None = None
    """The number of rows of a trial; None to run the job itself."""


def run_file(file: str, options: RunOptions) -> int:
    """Run the job in a file and return the exit code."""
    directory = directory_of(file)
    if problem := _problem_of_options(options):
        echo(problem, err=True)
        return exits.BAD_INPUT
    if problems := shadowing([str(directory)]):
        echo("\n".join(f"{file}: {problem}" for problem in problems), err=True)
        return exits.BAD_INPUT
    try:
        job, plan = _load(file, directory, options)
    except SpecError as error:
        print_problems(file, error)
        return exits.BAD_INPUT
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    try:
        job, own_only = job_of_run(job, restart=options.restart, retry_errors=options.retry_errors)
        own_only |= options.limit is not None  # a trial may only replace its own output
        report = _run(job, plan, file, options, own_only=own_only)
    except JobFailure as failure:  # no report, for example because Ray did not start
        echo(f"{job.metadata.name}: {failure.message}", err=True)
        return _report_failure(
            exits.code_of(failure.reason), failure.reason, failure.message, options
        )
    if report.state == JobState.SUCCEEDED:
        return exits.SUCCESS
    return _report_failure(_exit_code(report), report.reason, report.message, options)


def _load(file: str, directory: Path, options: RunOptions) -> tuple[BatchInference, Plan]:
    """Return the job in a file and its plan. With `limit`, the job is a trial. Raises SpecError."""
    text = read_file_or_stdin(file)
    check_mounted_file(file, text, os.environ)
    job = with_absolute_paths(parse_one(text, parameter_values(options.settings)), directory)
    if options.limit is not None:
        job = trial(job, options.limit)
    if options.address is None:
        return job, requested_plan(job.spec)
    return job, _mounted_plan(file) or plan_for_cluster(job.spec)


def _mounted_plan(file: str) -> Plan | None:
    """Return the plan that the operator has made for this attempt; None if there is no operator."""
    if file != JOB_PATH or DIGEST_VARIABLES[PLAN_FILE] not in os.environ:
        return None
    text = read_file_or_stdin(PLAN_PATH)
    check_mounted_file(PLAN_PATH, text, os.environ)
    return parse_plan(text)


def _exit_code(report: Report) -> int:
    """Return the exit code of a failed job. If the job was refused before its first pass, this is
    BAD_INPUT. Otherwise, it depends on the reason."""
    code = exits.code_of(report.reason)
    return exits.BAD_INPUT if code == exits.JOB_FAILED and report.pass_number is None else code


def _report_failure(code: int, reason: str | None, message: str | None, options: RunOptions) -> int:
    """Return `code`. On a cluster, first print the reason in a line that the operator reads."""
    if options.report_directory is not None:  # this process is the driver of a job on a cluster
        echo(failure_line(reason, message), err=True)
    return code


def _problem_of_options(options: RunOptions) -> str | None:
    for option, is_set in (("restart", options.restart), ("limit", options.limit is not None)):
        if options.retry_errors and is_set:
            return f"--retry-errors: it excludes --{option}. Remove one of them"
    if (options.address or "").startswith("ray://"):
        return (
            f"--address {options.address}: Ray Client cannot run a job. Run this command on a node "
            "of the cluster with --address auto, or give the HOST:PORT of the cluster's GCS"
        )
    return None


def _run(
    job: BatchInference, plan: Plan, file: str, options: RunOptions, *, own_only: bool
) -> Report:
    from batchinference.api.display import Display
    from batchinference.pipeline.execution.stop_signals import stop_on_signals

    with (
        Display(verbose=is_verbose(), silent=is_quiet()) as display,
        stop_on_signals(lambda line: display.say(f"{job.metadata.name}: {line}")) as stop,
    ):
        if options.limit is not None:
            what = f"the first {counted(options.limit, 'row')}, written to {job.spec.write.path}"
            display.say(f"{job.metadata.name}: trial with {what}")
        publish = _publisher(display.show, options.report_directory)
        on_cluster = options.address is not None and options.report_directory is not None
        quiet = not is_verbose() and not on_cluster
        runner = Runner(
            job, directory_of(file), display.say, publish, stop, quiet=quiet, own_only=own_only,
            prices=PodPrices.of(os.environ),
        )  # fmt: skip
        address = options.address
        report = runner.run_here(plan) if address is None else runner.run_on(address, plan)
    report = report if address else _with_command(report, file, options)
    if options.form is not Format.TEXT:
        print_data(dump(report), options.form)
    has_succeeded = report.state == JobState.SUCCEEDED
    if not (is_quiet() and has_succeeded):
        resumes = options.limit is None and not job.spec.why_not_retried
        display.summarize(report, resumes=resumes, files=runner.files)
    if has_succeeded and options.sample:
        try:
            display.show_sample(job, options.sample)
        except (JobFailure, OSError) as error:  # does not change the exit code
            echo(f"--sample: {error}", err=True)
    return report


def _with_command(report: Report, file: str, options: RunOptions) -> Report:
    """Return the report. The commands that its message recommends get the file and the parameters
    of this run."""
    if not report.message:
        return report
    parameters = (f" --set {shlex.quote(setting)}" for setting in options.settings)
    command = RUN.replace("FILE", shlex.quote(file)) + "".join(parameters)
    return report.model_copy(update={"message": report.message.replace(RUN, command)})


def _publisher(show: Publish, directory: Path | None) -> Publish:
    if directory is None:
        return show
    from batchinference.pipeline.storage.location import Location

    file = Location(str(directory)) / REPORT_FILE

    def publish(report: Report) -> None:
        file.write(report.serialized())
        show(report)

    return publish
