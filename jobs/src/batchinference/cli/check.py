"""Commands that run nothing: validate, plan, render."""

from __future__ import annotations

import secrets
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import ValidationError

from batchinference import __version__
from batchinference.cli import exits
from batchinference.cli.files import read_jobs, read_text
from batchinference.cli.yaml_output import as_yaml
from batchinference.plan import Plan, plan_for_cluster
from batchinference.rendering import Names, config_map, effective, ray_job, token_secret
from batchinference.spec import BatchInference, Problem, SpecError, parse_one
from batchinference.spec.cluster import Cluster
from batchinference.spec.problems import problems_of


def complain(file: str, error: SpecError) -> None:
    """Print what is wrong with a file, one line a fault."""
    for problem in error.problems:
        typer.echo(f"{file}: {problem}", err=True)


def validate_files(files: list[str]) -> int:
    code = exits.SUCCESS
    for file in files:
        try:
            for job in read_jobs(file):
                plan_for_cluster(job.spec)
                typer.echo(f"{file}: {job.metadata.name} is valid")
        except SpecError as error:
            complain(file, error)
            code = exits.BAD_INPUT
    return code


def show_plan(file: str) -> int:
    try:
        job = parse_one(read_text(file))
        _print_plan(job, plan_for_cluster(job.spec))
    except SpecError as error:
        complain(file, error)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _print_plan(job: BatchInference, plan: Plan) -> None:
    rows = [("STAGE", "STEPS", "RUNS AS", "BATCH", "CPU", "GPU", "GROUP")]
    rows.append(("read", job.spec.read.format, "tasks", "-", "1", "0", "cpu"))
    for stage in plan.stages:
        pool = stage.replicas
        rows.append((
            stage.name,
            ",".join(step.name for step in stage.steps),
            f"{pool.min}-{pool.max} actors" if pool else "tasks",
            str(stage.batch_size or "block"),
            f"{stage.cpus:g}",
            str(stage.gpus),
            plan.group_of(stage),
        ))  # fmt: skip
    rows.append(("write", job.spec.write.format, "tasks", "-", "1", "0", "cpu"))
    _print_table(rows)
    typer.echo("")
    groups = [("WORKER GROUP", "CPU", "GPU", "MEMORY", "MIN", "MAX")]
    for group in plan.groups:
        cpus, gpus = f"{group.cpus:g}", str(group.gpus)
        groups.append((group.name, cpus, gpus, group.memory, str(group.min), str(group.max)))
    _print_table(groups)


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def render_file(file: str, defaults: Path | None) -> int:
    try:
        job = parse_one(read_text(file))
        objects = _render(job, _load_defaults(defaults))
    except SpecError as error:
        complain(file, error)
        return exits.BAD_INPUT
    sys.stdout.write(as_yaml(objects))
    return exits.SUCCESS


def _load_defaults(file: Path | None) -> Cluster:
    if file is None:
        return Cluster(image=f"batchinference/pipeline:{__version__}")
    try:
        return Cluster.model_validate(yaml.safe_load(read_text(str(file))) or {})
    except ValidationError as error:
        raise SpecError(problems_of(error, Cluster)) from None
    except yaml.YAMLError as error:
        raise SpecError([Problem(str(file), f"not valid YAML: {error}")]) from None


def _render(job: BatchInference, defaults: Cluster) -> list[dict[str, Any]]:
    """The job's objects without an owner, ready for kubectl apply."""
    complete = effective(job, defaults)
    names = Names(job.metadata.name, uuid.uuid4().hex, attempt=1)
    return [
        config_map(complete, names, None),
        token_secret(complete, names, secrets.token_hex(32), None),
        ray_job(complete, names, None),
    ]
