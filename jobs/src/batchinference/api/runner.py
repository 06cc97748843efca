"""Runs a job on a new Ray instance on this machine, or on an existing Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from batchinference.api.notify import notify
from batchinference.api.run_log import RunLog
from batchinference.plan import Plan, ray_cpus, requested_plan
from batchinference.spec import BatchInference
from batchinference.spec.report import PodPrices, Report

if TYPE_CHECKING:
    from batchinference.pipeline.execution.ray_connection import RayFiles
    from batchinference.pipeline.execution.stop_signals import StopSignal
    from batchinference.pipeline.execution.worker_output import WorkerOutput
    from batchinference.pipeline.job import RayContext

USER_FAULTS = ("BadInput", "Interrupted")
"""Reasons of failures for which Ray's logs are not needed."""
SHOWN_LINES = 20
"""Maximum number of lines printed by steps that are shown. The log has all lines."""


@dataclass
class Runner:
    """One run of a job. `directory` has the modules of the user. `say` is called with each line for
    the user, and `publish` with each report. `quiet` hides the output of Ray. With `own_only`, the
    run does not replace output of another job, but fails."""

    job: BatchInference
    directory: Path
    say: Callable[[str], None]
    publish: Callable[[Report], None]
    stop: StopSignal
    quiet: bool = True
    own_only: bool = False
    prices: PodPrices | None = None
    log: RunLog = field(default_factory=RunLog, init=False)
    _report_page: str | None = field(default=None, init=False)
    _logs_stdout: bool = field(default=False, init=False)
    _worker_output: WorkerOutput | None = field(default=None, init=False)
    _shown_lines: int = field(default=0, init=False)
    _warned: set[tuple[str, str | None]] = field(default_factory=set, init=False)
    """The name and the step of each warning that was already shown."""

    def run_here(self, requested: Plan | None = None) -> Report:
        """Check the job, run it on a new Ray instance, and return its final report. If the plan
        `requested` is None, make it from the job."""
        from batchinference.pipeline.execution.ray_connection import ray_files
        from batchinference.pipeline.execution.worker_output import WorkerOutput
        from batchinference.pipeline.steps.import_path import add_import_path

        add_import_path(str(self.directory))
        with ray_files() as files:
            self._worker_output = WorkerOutput(files.logs)
            report = self._run(partial(self._ray, files, requested))
            self._show_output()
            has_failed = report.reason not in (None, *USER_FAULTS)
            files.kept = has_failed and Path(files.ray_directory).exists()
        if files.kept:
            self._say(f"Ray's logs of this run: {files.logs}")
        return self._end(report)

    def _end(self, report: Report) -> Report:
        self.log.store(self.job, report)
        if self.job.spec.notifications:
            notify(self.job, report, self._say, self.stop)
            self.log.store(self.job, report)
        return report

    def _run(self, ray: RayContext) -> Report:
        from batchinference.pipeline.job import JobRun

        publish, prices = self._publish, self.prices
        run = JobRun(self.job, ray, publish, self.stop, self.own_only, prices, self._say)
        report = run.run()
        self._report_page = run.page
        return report

    @property
    def files(self) -> list[tuple[str, str]]:
        """The names and addresses of the report page and of the log, if they were stored."""
        files = (("report", self._report_page), ("log", self.log.uri))
        return [(name, address) for name, address in files if address]

    def _say(self, text: str) -> None:
        self.log.add(text)
        self.say(text)

    def _publish(self, report: Report) -> None:
        self.log.add_state(report)
        for warning in report.warnings:
            if (warning.name, warning.step) not in self._warned:
                self._warned.add((warning.name, warning.step))
                self._say_for_job(f"warning: {warning}")
        self._show_output()
        self.publish(report)
        if not report.state.ended:
            self.log.store_so_far(self.job, report, own_output=self._logs_stdout)

    def _show_output(self) -> None:
        """Log what steps have printed since the last call. Show at most SHOWN_LINES per run."""
        lines: list[str] = []
        if self._worker_output is not None:
            with suppress(OSError):  # Ray may rotate the files
                lines = self._worker_output.new_lines()
        for line in lines:
            self.log.add(line)
            self._shown_lines += 1
            if self._shown_lines <= SHOWN_LINES:
                self.say(line)
            elif self._shown_lines == SHOWN_LINES + 1:
                self.say("[worker] more output of the steps is in the log")

    @contextmanager
    def _ray(self, files: RayFiles, requested: Plan | None) -> Iterator[Plan]:
        """Start Ray, and yield the plan for the devices and the memory of this machine."""
        from batchinference.pipeline.execution.ray_connection import (
            local_ray,
            machine_cpus,
            machine_devices,
        )

        self._say_for_job("starting Ray on this machine")
        requested = requested or requested_plan(self.job.spec)
        plan = requested.on_machine(machine_devices())
        cpus = ray_cpus(plan, machine_cpus())
        directory, check_stop = str(self.directory), self.stop.check
        with local_ray(cpus, directory, files, quiet=self.quiet, check_stop=check_stop) as machine:
            plan = plan.within_memory(machine["memory"])
            for note in plan.notes:
                self._say(note)
            yield plan

    def run_on(self, address: str, plan: Plan) -> Report:
        """Run the job on the Ray cluster at an address and return its final report. Raises
        JobFailure if there is no such cluster, or if the plan does not fit the cluster."""
        from batchinference.pipeline.execution.ray_connection import remote_ray
        from batchinference.pipeline.execution.task_resources import check_nodes

        self._say_for_job(f"connecting to Ray at {address}")
        self._logs_stdout = True  # on a cluster, stdout is the log of the driver
        uses_code = any(step.facts.modules for step in self.job.spec.steps)
        code = str(self.directory) if uses_code else None
        check_stop = self.stop.check
        with remote_ray(address, code, quiet=self.quiet, check_stop=check_stop) as nodes:
            check_nodes(plan, nodes)
            report = self._run(lambda: nullcontext(plan))
        self.log.add_own_output()
        return self._end(report)

    def _say_for_job(self, text: str) -> None:
        self._say(f"{self.job.metadata.name}: {text}")
