"""Runs the steps of a job over its first rows in this process, and shows the resulting rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Integral
from typing import TYPE_CHECKING

from batchinference.api.display import lines_of_rows, short
from batchinference.api.result_frames import Rows
from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.execution.ray_connection import machine_devices
from batchinference.pipeline.output.python_rows import rows_of_table
from batchinference.pipeline.preview import Outcome, Preview
from batchinference.plan import plan_for_machine
from batchinference.spec import BatchInference
from batchinference.spec.problems import Problem, SpecError, did_you_mean
from batchinference.spec.profiles import GPU
from batchinference.text import in_one_line

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class PreviewRows(Rows):
    """The first rows of a job after its steps. `lines` say what each step did."""

    table: pa.Table = field(repr=False)
    lines: Sequence[str]

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table. Tensors are nested lists."""
        return tensors_to_lists(self.table)

    def __repr__(self) -> str:
        return "\n".join([*self.lines, *lines_of_rows(rows_of_table(self.table))])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(in_one_line(name))}</th>" for name in self.table.column_names)
        rows = (
            "".join(f"<td>{escape(short(value))}</td>" for value in row.values())
            for row in rows_of_table(self.table)
        )
        body = "".join(f"<tr>{cells}</tr>" for cells in rows)
        lines = escape("\n".join(self.lines))
        return f"<pre>{lines}</pre><table><tr>{head}</tr>{body}</table>"


def preview_rows(job: BatchInference, rows: int, step: str | None) -> PreviewRows:
    """Return the first rows of a job after `step`, or the rows to write if `step` is None. Raises
    SpecError if there is no such step, or if `rows` is not a positive number. Also raises
    JobFailure, and errors of storage and libraries."""
    if not isinstance(rows, Integral) or rows < 1:  # includes integers of NumPy
        raise SpecError([Problem("rows", f"expected a whole number from 1, got {rows!r}")])
    preview = preview_of(job if step is None else _until(job, step), rows)
    lines = [line for outcome in preview.run() for line in lines_of(outcome)]
    table = preview.written_rows() if step is None else preview.batch.table
    return PreviewRows(table.slice(0, rows), lines)


def preview_of(job: BatchInference, rows: int) -> Preview:
    """Return the preview of a job, with a plan for the devices of this machine."""
    devices = machine_devices()
    return Preview(job.spec, plan_for_machine(job.spec, int(devices.get(GPU, 0)), devices), rows)


def lines_of(outcome: Outcome) -> Iterator[str]:
    """Yield lines about a step or about reading, with counts, times, a failed row and warnings."""
    load = f" after {outcome.load_seconds:.2f} s of loading" if outcome.load_seconds >= 0.01 else ""
    counts = [f"{outcome.rows} returned"]
    counts += [f"{outcome.filtered} filtered"] if outcome.filtered else []
    counts += [f"{outcome.failed} failed"] if outcome.failed else []
    yield f"{outcome.name}: {', '.join(counts)}, {outcome.seconds:.2f} s{load}"
    if outcome.first_failed:
        yield f"  {in_one_line(outcome.first_failed)}"
    for warning in outcome.warnings:
        yield f"  {in_one_line(str(warning))}"


def _until(job: BatchInference, step: str) -> BatchInference:
    """Return the job without the steps after `step`. Raises SpecError if there is no such step."""
    names = [each.name for each in job.spec.steps]
    if step not in names:
        known = f". Use one of {', '.join(names)}" if names else ". The job has no steps"
        problem = f"there is no step '{step}'{did_you_mean(step, names) or known}"
        raise SpecError([Problem("step", problem)])
    return job.with_spec(steps=job.spec.steps[: names.index(step) + 1])
