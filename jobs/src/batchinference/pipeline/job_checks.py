"""Checks a job before it starts: the models and the code of its steps, paths, columns and types."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.input import JobInput
from batchinference.pipeline.input.file_input import FileInput, known_columns
from batchinference.pipeline.output.key_types import key_problems
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.steps.column_checks import code_problems, type_problems
from batchinference.pipeline.steps.schema_inference import columns_after_all
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.type_widening import shape_of
from batchinference.plan.column_checks import check_columns, partition_problems
from batchinference.spec import addresses
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.problems import Problem
from batchinference.spec.read import Read, ReadFiles, ReadVersioned


class UnsuitableColumns(BadInput):
    """The job cannot use columns of its input. Each has a problem in `problems`."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems

    def __reduce__(self) -> tuple[type[UnsuitableColumns], tuple[list[Problem]]]:
        return UnsuitableColumns, (self.problems,)


def check_job(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise ModelLoad if a step cannot be loaded, as far as this is known without loading it. Raise
    BadOutput if the job must not write to its output paths."""
    for step in spec.steps:
        check_step(step)
    check_errors_path(layout)
    check_caches(spec, layout)
    check_paths(spec.read, layout)


def check_paths(read: Read, layout: Layout) -> None:
    """Raise BadOutput if an output path contains a path of the input, has an unexpanded variable,
    or is a Windows path. Call it before checks of existing content, whose advice would be wrong."""
    uri, local = layout.output.uri, layout.output.local
    variable = addresses.unexpanded_variable(uri) if local else ""
    variable = variable or (addresses.reference_in(uri) if "{{" in uri else "")
    if variable and not (local and layout.output.exists()):
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' has the variable {variable}, which is not "
            f"expanded. {addresses.fix_of_variable(variable)}"
        )
    if layout.output.local and addresses.is_windows_path(uri):
        raise BadOutput(
            f"spec.write.path: '{layout.output.uri}' is a path of Windows. Write a path with '/'"
        )
    if not isinstance(read, ReadFiles | ReadVersioned):
        return
    for path in read.locations.values():
        source = Location(path, read.storage)
        for field, target in (("write", layout.output), ("errors", layout.errors)):
            is_same = source.path.rstrip("/") == target.path.rstrip("/")
            if target.contains(source) or (is_same and source.in_store_of(target)):
                raise _contains_input(field, target, source.uri)


def _contains_input(field: str, target: Location, source: str) -> BadOutput:
    """Return the error for an output path (of `write` or of `errors`) that contains an input."""
    return BadOutput(
        f"spec.{field}.path: '{target.uri}' contains the input '{source}', and a job removes files "
        "from its output. Choose another path"
    )


def check_errors_path(layout: Layout) -> None:
    """Raise BadOutput if readers of the output would read the error records as output. They skip
    names that begin with an underscore or a dot."""
    output, errors = layout.output, layout.errors
    parent, child = output.path.rstrip("/") + "/", f"{errors.path}/"
    if not (child.startswith(parent) and errors.in_store_of(output)):
        return
    if not any(part.startswith(("_", ".")) for part in child.removeprefix(parent).split("/")):
        raise BadOutput(
            f"spec.errors.path: '{errors.uri}' is below write.path '{output.uri}', so readers "
            "would read error records as output. Choose another errors.path, or remove the field"
        )


def check_caches(spec: BatchInferenceSpec, layout: Layout) -> None:
    """Raise BadOutput if a cache is inside the output, where readers would read its files."""
    for cache in filter(None, (step.cache for step in spec.steps)):
        if layout.output.contains(Location(cache.path, cache.storage) / "file"):
            raise BadOutput(
                f"spec.steps.cache.path: '{cache.path}' is in write.path '{layout.output.uri}'. "
                "Choose another path"
            )


def check_input(spec: BatchInferenceSpec, source: JobInput, layout: Layout) -> None:
    """Raise BadOutput if an input file is in an output path, where passes remove files. Raise
    UnsuitableColumns if a column is missing or unsuitable. Raise BadInput if more files are ignored
    than the job accepts. Also raise it if first rows are needed, but each read may return
    others."""
    targets = (("write", layout.output), ("errors", layout.errors))
    for field, target in targets if spec.write.mode != "addColumn" else ():
        if (inside := source.path_inside(target)) is not None:
            raise _contains_input(field, target, inside)
    source.ignored.check(spec.errors.warnings)
    for field in () if source.repeatable else spec.first_rows_columns:
        raise BadInput(
            f"spec.{field}: rows of {spec.read.format} may differ each time that they are read, so "
            "that no rows can be computed first. Remove the field, or read files"
        )
    columns = source.columns()
    problems = [*check_columns(spec, columns), *code_problems(spec.steps, columns)]
    if not problems:
        types = source.types() if isinstance(source, FileInput) else {}
        problems = list(type_problems(spec.steps, types))
    if not problems:
        written = columns_after_all(spec.steps, known_columns(source))
        shapes = {field.name: shape_of(field.type) for field in written}
        problems = [
            *partition_problems(spec.write, shapes),
            *key_problems(spec.write, written),
            *_gate_problems(spec, written),
        ]
    if problems:
        raise UnsuitableColumns(problems)


def _gate_problems(spec: BatchInferenceSpec, columns: pa.Schema) -> Iterator[Problem]:
    """Yield a problem if the gate can never be computed from the columns of the output."""
    if spec.gate is None:
        return
    from batchinference.pipeline.first_rows.gate import type_problem  # few jobs have a gate

    if problem := type_problem(spec.gate, spec.write, columns):
        yield Problem("spec.gate.expect", problem)
