"""The commands that check a job without running it: `validate`, `plan` and `render`."""

from __future__ import annotations

import secrets
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchinference import __version__
from batchinference.api.files import (
    directory_of,
    parameter_values,
    read_text,
    with_absolute_paths,
)
from batchinference.cli import exits
from batchinference.cli.printing import echo
from batchinference.cli.yaml_output import as_yaml
from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup, plan_for_cluster
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.rendering import Names, attempt_objects, effective, token_secret
from batchinference.rendering.pods import head_size
from batchinference.rendering.policy import parse_policy
from batchinference.shadows import shadowing
from batchinference.spec import (
    KIND,
    BatchInference,
    Problem,
    SpecError,
    load_documents,
    parse,
    parse_cluster,
    parse_one,
)
from batchinference.spec.cluster import Cluster
from batchinference.spec.job import SCHEDULE_KIND, BatchInferenceSpec
from batchinference.spec.parameters import Values
from batchinference.spec.profiles import GPU


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


def print_problems(file: str, error: SpecError) -> None:
    """Print the problems with a file, one per line."""
    for problem in error.problems:
        echo(f"{file}: {problem}", err=True)


def validate_files(files: list[str], settings: Sequence[str] = (), *, deep: bool = False) -> int:
    """Check files, with `deep` also their inputs, models and code, and return the exit code."""
    valid = [_validate_file(file, settings, deep=deep) for file in files]
    return exits.SUCCESS if all(valid) else exits.BAD_INPUT


def _validate_file(file: str, settings: Sequence[str], *, deep: bool) -> bool:
    try:
        values = parameter_values(settings)
        documents = load_documents(read_text(file), (KIND, SCHEDULE_KIND))
    except SpecError as error:
        print_problems(file, error)
        return False
    valid = [
        _validate_document(
            f"{file} ({document['kind']} {number})" if len(documents) > 1 else file,
            document,
            values,
            directory_of(file) if deep else None,
        )
        for number, document in enumerate(documents, start=1)
    ]
    return all(valid)


def _validate_document(
    where: str, document: dict[str, Any], values: Values, directory: Path | None
) -> bool:
    """Print and return whether a document is valid.

    With the directory of its file, also check its input, models and code.
    """
    try:
        if document["kind"] == SCHEDULE_KIND:
            result = _validate_schedule(document, values)
        else:
            job = parse(document, values)
            plan_for_cluster(job.spec)
            if directory is not None:
                _check_deep(job, directory)
            result = f"{job.metadata.name} is valid"
    except SpecError as error:
        print_problems(where, error)
        return False
    echo(f"{where}: {result}")
    return True


def _check_deep(job: BatchInference, directory: Path) -> None:
    """Raise SpecError with all problems of the job's input, columns, models, code and output."""
    if not pipeline_is_installed():
        raise SpecError([])  # pipeline_is_installed has printed the problem
    from batchinference.pipeline.execution.cluster import importable
    from batchinference.pipeline.preflight import preflight

    problems = [Problem("", problem) for problem in shadowing([str(directory)])]
    if not problems:
        importable(str(directory))
        problems = preflight(with_absolute_paths(job, directory).spec)
    if problems:
        raise SpecError(problems)


def _validate_schedule(document: dict[str, Any], values: Values) -> str:
    """Return a message with the next run of a valid schedule. Raises SpecError."""
    from batchinference.spec.schedule import parse_schedule

    schedule = parse_schedule(document)
    cron = schedule.spec.cron
    time = next(cron.times(datetime.now(UTC)))
    try:
        plan_for_cluster(parse(schedule.run(time), values).spec)
    except SpecError as error:
        problems = [Problem(f"spec.template.{each.path}", each.message) for each in error.problems]
        raise SpecError(problems) from None
    return f"{schedule.metadata.name} is valid; next run: {time.astimezone(cron.zone).isoformat()}"


@dataclass(frozen=True)
class Platform:
    """Files with the operator's defaults and the platform's policy."""

    defaults: Path | None
    policy: Path | None


def show_plan(file: str, platform: Platform, settings: Sequence[str] = ()) -> int:
    return _load_and_show(file, platform, settings, _print_plan)


def render_file(file: str, platform: Platform, settings: Sequence[str] = ()) -> int:
    return _load_and_show(file, platform, settings, _print_objects)


def _load_and_show(
    file: str,
    platform: Platform,
    settings: Sequence[str],
    show: Callable[[BatchInference], None],
) -> int:
    """Call `show` with the job and its complete cluster settings, or print its problems.

    Return the exit code. Without a policy file, everything is allowed.
    """
    current_file = str(platform.defaults)
    try:
        defaults = _load_defaults(platform.defaults)
        current_file = str(platform.policy)
        policy = parse_policy(read_text(current_file)) if platform.policy else None
        current_file = file
        job = parse_one(read_text(file), parameter_values(settings))
        if policy and (problems := policy.check(job.spec.cluster)):
            raise SpecError(problems)
        show(effective(job, defaults))
    except SpecError as error:
        print_problems(current_file, error)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _load_defaults(file: Path | None) -> Cluster:
    """Return the operator's defaults. The default image is the pipeline image of this version."""
    defaults = parse_cluster(read_text(str(file))) if file else Cluster()
    image = defaults.image or f"batchinference/pipeline:{__version__}"
    return defaults.model_copy(update={"image": image})


def _print_plan(job: BatchInference) -> None:
    spec, plan = job.spec, plan_for_cluster(job.spec)
    _print_table([
        ("STAGE", "STEPS", "RUNS AS", "BATCH", "CPU", "DEVICES", "GROUP"),
        *(_fused_rows(spec, plan) if plan.fused else _staged_rows(spec, plan)),
    ])  # fmt: skip
    echo("")
    cpus, memory = head_size(spec.cluster)
    _print_table([
        ("GROUP", "CPU", "DEVICES", "MEMORY", "MIN", "MAX"),
        ("head", f"{cpus:g}", "-", memory, "1", "1"),
        *(_group_row(group) for group in plan.groups),
    ])  # fmt: skip
    try:
        attempt_objects(job, _names(job), None)
    except SpecError as error:
        for problem in error.problems:
            echo(f"a cluster would refuse this job: {problem}", err=True)


def _fused_rows(spec: BatchInferenceSpec, plan: Plan) -> list[tuple[str, ...]]:
    """Return the row of a fused job, whose tasks read, run all steps and write."""
    steps = ",".join([spec.read.format, *(step.name for step in spec.steps), spec.write.format])
    default = [step.model.default_batch_size if step.model else None for step in spec.steps]
    given = [step.batch_size for step in spec.steps]
    sizes = dict.fromkeys(str(a or b) for a, b in zip(given, default, strict=True) if a or b)
    batch = ",".join(sizes) or "auto"
    return [("read-write", steps, "tasks", batch, f"{plan.task_cpus:g}", "-", CPU_GROUP)]


def _staged_rows(spec: BatchInferenceSpec, plan: Plan) -> list[tuple[str, ...]]:
    return [
        ("read", spec.read.format, "tasks", "-", f"{TASK_CPUS:g}", "-", CPU_GROUP),
        *(_stage_row(stage, plan.group_of(stage)) for stage in plan.stages),
        ("write", spec.write.format, "tasks", "-", f"{WRITE_CPUS:g}", "-", CPU_GROUP),
    ]


def _stage_row(stage: Stage, group: str) -> tuple[str, ...]:
    steps = ",".join(step.name for step in stage.steps)
    return (stage.name, steps, _runs_as(stage), _batch(stage), f"{stage.cpus:g}", _devices(stage),
            group)  # fmt: skip


def _runs_as(stage: Stage) -> str:
    if stage.replicas is None:
        return "tasks"
    if not stage.needs_pool:
        return "actors"  # as many as the CPUs can run
    least, most = stage.replicas.min, stage.replicas.max
    number = str(most) if least == most else f"{least}-{most}"
    return f"{number} actor" if most == 1 else f"{number} actors"


def _batch(stage: Stage) -> str:
    """Return the rows per batch. A task gets a block, and may split it for its functions."""
    step_sizes = (step.batch_size for step in stage.steps if step.batch_size)
    sizes = dict.fromkeys([stage.batch_size] if stage.batch_size else step_sizes)
    return ",".join(map(str, sizes)) or "block"


def _group_row(group: WorkerGroup) -> tuple[str, ...]:
    cpus, devices = f"{group.cpus:g}", _devices(group)
    return group.name, cpus, devices, group.memory, str(group.min), str(group.max)


def _devices(owner: Stage | WorkerGroup) -> str:
    """Return the devices of a replica or a pod, such as `1 GPU (T4)`."""
    counts = {GPU: owner.gpus, **dict(owner.custom)}
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{shown} ({owner.accelerator})" if owner.accelerator else shown or "-"


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo("  ".join(cells).rstrip())


def _print_objects(job: BatchInference) -> None:
    """Print the job's objects without an owner, for kubectl apply."""
    names = _names(job)
    config_map, ray_job = attempt_objects(job, names, None)
    secret = token_secret(job.metadata.namespace, names, secrets.token_hex(32), None)
    sys.stdout.write(as_yaml([config_map, secret, ray_job]))


def _names(job: BatchInference) -> Names:
    return Names(job.metadata.name, uuid.uuid4().hex, attempt=1)
