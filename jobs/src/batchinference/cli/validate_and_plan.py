"""The commands `validate` and `plan`, which check a job without running it."""

import secrets
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchinference.api.job_files import (
    directory_of,
    parameter_values,
    read_file_or_stdin,
    with_absolute_paths,
)
from batchinference.cli import exits
from batchinference.cli.installed_packages import pipeline_is_installed
from batchinference.cli.printing import Format, as_data, echo, print_data, print_table
from batchinference.cli.verbosity import note
from batchinference.cli.yaml_output import as_yaml
from batchinference.plan import CPU_GROUP, Plan, Stage, WorkerGroup, plan_for_cluster
from batchinference.plan.column_checks import replaced_columns
from batchinference.plan.stages import TASK_CPUS, WRITE_CPUS
from batchinference.rendering import (
    Names,
    attempt_objects,
    choices_of,
    token_secret,
    with_platform_defaults,
)
from batchinference.rendering.out_of_memory import without_more_memory
from batchinference.rendering.pods import head_size
from batchinference.rendering.policy import parse_policy
from batchinference.shadowing_files import shadowing
from batchinference.spec import (
    KIND,
    BatchInference,
    Problem,
    SpecError,
    load_documents,
    parse,
    parse_defaults,
    parse_one,
)
from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.job import SCHEDULE_KIND, BatchInferenceSpec
from batchinference.spec.parameters import ParameterValues
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.problems import raise_for_problems
from batchinference.spec.profiles import GPU, Profile
from batchinference.text import counted
from batchinference.version import __version__


def print_problems(file: str, error: SpecError) -> None:
    """Print the problems with a file, one per line."""
    for problem in error.problems:
        echo(f"{file}: {problem}", err=True)


@dataclass(frozen=True)
class Checked:
    """The result of checking a file or a document in it. `message` is only set if it is valid."""

    file: str
    valid: bool
    message: str = ""
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


def validate_files(
    files: list[str],
    parameters: Sequence[str] = (),
    *,
    deep: bool = False,
    form: Format = Format.TEXT,
) -> int:
    """Check files, print the results, and return the exit code. With `deep`, also check the inputs,
    models, code and outputs that the files name."""
    checked = []
    for each in (outcome for file in files for outcome in _check_file(file, parameters, deep=deep)):
        checked.append(each)
        if form is Format.TEXT:
            _show_checked(each)
    if form is not Format.TEXT:
        print_data([as_data(each) for each in checked], form)
    return exits.SUCCESS if all(each.valid for each in checked) else exits.BAD_INPUT


def _show_checked(checked: Checked) -> None:
    if checked.valid:
        note(f"{checked.file}: {checked.message}")
    for text in checked.notes:
        note(f"{checked.file}: note: {text}")
    for problem in checked.problems:
        echo(f"{checked.file}: {problem}", err=True)


def _check_file(file: str, parameters: Sequence[str], *, deep: bool) -> Iterator[Checked]:
    """Yield a result for each document of a file. If the file cannot be read or a parameter is
    wrong, yield one result."""
    try:
        values = parameter_values(parameters)
        documents = load_documents(read_file_or_stdin(file), (KIND, SCHEDULE_KIND))
    except SpecError as error:
        yield Checked(file, valid=False, problems=error.problems)
        return
    directory = directory_of(file) if deep else None
    for number, document in enumerate(documents, start=1):
        where = f"{file} ({document['kind']} {number})" if len(documents) > 1 else file
        try:
            message, notes = _check_document(document, values, directory)
            yield Checked(where, valid=True, message=message, notes=notes)
        except SpecError as error:
            yield Checked(where, valid=False, problems=error.problems)


def _check_document(
    document: dict[str, Any], values: ParameterValues, directory: Path | None
) -> tuple[str, list[str]]:
    """Return a message that the document is valid, and notes about its job. With the `directory` of
    the file, also check a job as `_check_deep` does. Raises SpecError."""
    if document["kind"] == SCHEDULE_KIND:
        return _validate_schedule(document, values), []
    job = parse(document, values)
    plan_for_cluster(job.spec)
    if directory is not None:
        notes = _check_deep(job, directory)
    else:
        notes = list(replaced_columns(job.spec, job.spec.read.columns))
    return f"{job.metadata.name} is valid", [*notes, *without_more_memory(job)]


def _check_deep(job: BatchInference, directory: Path) -> list[str]:
    """Check the input, columns, models, code and output of a job, and return notes about the job.
    Raises SpecError with all problems."""
    if not pipeline_is_installed():
        fix = "Install them, or check the fields alone with --fields-only"
        problem = f"the packages that check inputs, models and code are not installed. {fix}"
        raise SpecError([Problem("", problem)])
    from batchinference.pipeline.commit.lease import identity_of
    from batchinference.pipeline.preflight import preflight
    from batchinference.pipeline.steps.import_path import add_import_path

    notes: list[str] = []
    problems = [Problem("", problem) for problem in shadowing([str(directory)])]
    if not problems:
        add_import_path(str(directory))
        spec = with_absolute_paths(job, directory).spec
        problems = preflight(spec, identity_of(job), notes.append)
    raise_for_problems(problems)
    return notes


def _validate_schedule(document: dict[str, Any], values: ParameterValues) -> str:
    """Return a message with the next run of a schedule. Raises SpecError if it is not valid."""
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


def show_plan(
    file: str,
    defaults_file: Path | None,
    policy_file: Path | None,
    parameters: Sequence[str] = (),
    form: Format = Format.TEXT,
) -> int:
    """Print the plan of a job. In the formats JSON and YAML, print the objects that the operator
    would create for the job. Return the exit code. Without a policy file, everything is allowed."""
    current_file = str(defaults_file)
    try:
        defaults = _load_defaults(defaults_file)
        current_file = str(policy_file)
        policy = parse_policy(read_file_or_stdin(current_file)) if policy_file else None
        current_file = file
        job = parse_one(read_file_or_stdin(file), parameter_values(parameters))
        if policy:
            raise_for_problems(policy.check_spec(job.spec))
        job = with_platform_defaults(job, defaults)
        if form is Format.TEXT:
            _print_plan(job, defaults)
        else:
            _print_objects(job, defaults, form)
    except SpecError as error:
        print_problems(current_file, error)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _load_defaults(file: Path | None) -> PlatformDefaults:
    """Return the defaults in a file; empty defaults without a file. Defaults without an image get
    the same images as the defaults of the chart."""
    defaults = parse_defaults(read_file_or_stdin(str(file))) if file else PlatformDefaults()
    if defaults.image is not None:
        return defaults
    image = f"batchinference/pipeline:{__version__}"
    gpu = Profile(image=f"{image}-cuda")
    return with_defaults(defaults, PlatformDefaults(image=image, profiles={GPU: gpu}))


def _print_plan(job: BatchInference, platform: PlatformDefaults) -> None:
    problems: list[Problem] = []
    try:
        attempt_objects(job, _names(job), None, platform=platform)
    except SpecError as error:
        problems = error.problems
    show_stages_and_groups(job.spec, plan_for_cluster(job.spec))
    for problem in problems:
        echo(f"a cluster would refuse this job: {problem}", err=True)
    for text in without_more_memory(job):
        note(f"note: {text}")
    for choice in choices_of(job):
        if choice.choices > 1 or choice.device_hour:
            echo(f"\ndevices: {choice}" if choice.number == 1 else f"devices: {choice}")


def _print_objects(job: BatchInference, platform: PlatformDefaults, form: Format) -> None:
    names = _names(job)
    config_map, ray_job = attempt_objects(job, names, None, platform=platform)
    secret = token_secret(job.metadata.namespace, names, secrets.token_hex(32), None)
    objects = [config_map, secret, ray_job]
    if form is Format.JSON:
        print_data({"apiVersion": "v1", "kind": "List", "items": objects}, form)
        return
    sys.stdout.write(as_yaml(objects))


def _names(job: BatchInference) -> Names:
    return Names(job.metadata.name, uuid.uuid4().hex, attempt=1)


STAGES = ("STAGE", "STEPS", "RUNS AS", "BATCH", "CPU", "DEVICES", "GROUP")
GROUPS = ("GROUP", "CPU", "DEVICES", "MEMORY", "MIN", "MAX")
Row = tuple[str, ...]


def show_stages_and_groups(spec: BatchInferenceSpec, plan: Plan) -> None:
    """Print the stages of a plan, and its groups of pods, beginning with the head pod."""
    stages = [_single_stage(spec, plan)] if plan.single_segment else _stages(spec, plan)
    print_table([STAGES, *stages])
    echo("")
    cpus, memory = head_size(spec.cluster)
    print_table([GROUPS, ("head", f"{cpus:g}", "-", memory, "1", "1"), *map(_group, plan.groups)])


def _single_stage(spec: BatchInferenceSpec, plan: Plan) -> Row:
    """Return the row for the only stage of a plan without pools. The tasks of this stage read, run
    all steps and write."""
    steps = ",".join([spec.read.format, *(step.name for step in spec.steps), spec.write.format])
    defaults = (step.model.default_batch_size if step.model else None for step in spec.steps)
    sizes = [step.batch_size or size for step, size in zip(spec.steps, defaults, strict=True)]
    batch = _listed(sizes) or "auto"
    return "read-write", steps, "tasks", batch, f"{plan.task_cpus:g}", "-", CPU_GROUP


def _stages(spec: BatchInferenceSpec, plan: Plan) -> Iterator[Row]:
    yield "read", spec.read.format, "tasks", "-", f"{TASK_CPUS:g}", "-", CPU_GROUP
    for stage in plan.stages:
        steps = ",".join(step.name for step in stage.steps)
        # each step may divide the block of a task into batches
        sizes = [stage.batch_size] if stage.batch_size else [one.batch_size for one in stage.steps]
        batch, group = _listed(sizes) or "block", plan.group_of(stage)
        yield stage.name, steps, _runs_as(stage), batch, f"{stage.cpus:g}", _devices(stage), group
    yield "write", spec.write.format, "tasks", "-", f"{WRITE_CPUS:g}", "-", CPU_GROUP


def _listed(sizes: Sequence[object]) -> str:
    """Return the distinct batch sizes as text, without sizes that are not set."""
    return ",".join(dict.fromkeys(str(size) for size in sizes if size))


def _runs_as(stage: Stage) -> str:
    """Return `tasks`, `actors`, or a text such as `1-4 actors`."""
    if stage.replicas is None:
        return "tasks"
    if not stage.needs_pool:
        return "actors"  # as many as the CPUs can run
    low, high = stage.replicas.min, stage.replicas.max
    return f"{'' if low == high else f'{low}-'}{counted(high, 'actor')}"


def _group(group: WorkerGroup) -> Row:
    sizes = f"{group.cpus:g}", _devices(group), group.memory
    return group.name, *sizes, str(group.min), str(group.max)


def _devices(owner: Stage | WorkerGroup) -> str:
    """Return the devices of a replica or a pod, such as `1 GPU (T4)`."""
    counts = {GPU: owner.gpus, **dict(owner.custom)}
    shown = ", ".join(f"{count:g} {name}" for name, count in counts.items() if count)
    return f"{shown} ({owner.accelerator})" if owner.accelerator else shown or "-"
