"""Renders a report as an HTML page, with charts. The result depends only on the arguments.

All data is untrusted. Jinja escapes every value. Control characters could change the order of the
displayed text, and are removed. The page has no scripts, and no links except to itself. Its content
security policy allows no requests."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from batchinference.credentials import without_credentials
from batchinference.pipeline.html_report.performance_advice import advice, limiting_step
from batchinference.pipeline.output.error_groups import ErrorGroup, fields_of, key_of_row
from batchinference.spec.addresses import is_local, local_path
from batchinference.spec.causes import Cause
from batchinference.spec.durations import duration_text
from batchinference.spec.history import RunRecord, table_of
from batchinference.spec.job import API_VERSION, KIND, BatchInferenceSpec
from batchinference.spec.progress import RowsOverTime
from batchinference.spec.report import JobState, Report
from batchinference.spec.secrets import without_secrets
from batchinference.spec.steps import Step, to_alias
from batchinference.text import byte_size, counted, in_one_line, without_controls

if TYPE_CHECKING:
    from batchinference.pipeline.html_report.sample_rows import SampleRow

WIDTH, HEIGHT = 720, 220
"""The size in pixels of the plot of a line chart, without the labels of its axes."""
TICKS = 4
"""Number of intervals between the labels of the row axis. The time axis has up to one more."""
_STEPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10)
"""The largest value of the row axis is one of these numbers, multiplied by a power of ten."""
_GAPS = [number * unit for unit in (1, 60, 3600) for number in (1, 2, 5, 10, 15, 30)]
"""The possible intervals between labels of the time axis, in seconds."""


@dataclass(frozen=True)
class Tick:
    """A mark of an axis: its position in pixels and its value."""

    at: float
    value: float


@dataclass(frozen=True)
class LineChart:
    """A line through points. `line` and `area` are paths of SVG."""

    line: str
    area: str
    end: tuple[float, float]
    across: list[Tick]
    up: list[Tick]


def rows_chart(history: RowsOverTime) -> LineChart | None:
    """Return the chart of rows over time; None without enough points for a line."""
    pairs = list(zip(history.seconds, history.rows, strict=False))
    if len(pairs) < 2 or pairs[-1][0] <= 0 or pairs[-1][1] <= 0:
        return None
    longest = max(seconds for seconds, _ in pairs)
    top = _rounded_up(max(rows for _, rows in pairs))
    points = [(WIDTH * seconds / longest, HEIGHT * (1 - rows / top)) for seconds, rows in pairs]
    line = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{line} L{points[-1][0]:.1f},{HEIGHT} L{points[0][0]:.1f},{HEIGHT} Z"
    gap = next((gap for gap in _GAPS if gap * (TICKS + 1) >= longest), longest / TICKS)
    times = [gap * n for n in range(int(longest / gap) + 1)]
    across = [Tick(WIDTH * time / longest, time) for time in times]
    up = [Tick(HEIGHT * (1 - n / TICKS), top * n / TICKS) for n in range(TICKS + 1)]
    return LineChart(line, area, points[-1], across, up)


def _rounded_up(value: float) -> float:
    """Return the largest value of the row axis: at least `value`, and with short labels."""
    unit = 10.0 ** math.floor(math.log10(value))
    return max(TICKS, next(step * unit for step in _STEPS if step * unit >= value))


MAX_JOB = 100_000
"""Maximum number of characters of the job file on the page."""


@dataclass(frozen=True)
class PageData:
    """Everything that a page shows."""

    report: Report
    spec: BatchInferenceSpec
    errors: Sequence[ErrorGroup] = ()
    sample: Sequence[SampleRow] = field(default=())
    runs: Sequence[RunRecord] = ()


def render(data: PageData) -> str:
    """Return the HTML of the page. It depends only on `data`."""
    report, spec = data.report, data.spec
    history = report.rows_over_time
    total = sum(times.seconds for times in report.steps.values())
    load = sum(times.load_seconds or 0.0 for times in report.steps.values())
    slowest = limiting_step(report)
    page = page_environment("batchinference.pipeline.html_report").get_template("report.html.j2")
    return page.render(
        report=report,
        succeeded=report.state is JobState.SUCCEEDED,
        cause=Cause.from_name(report.reason),
        chart=rows_chart(history) if history else None,
        history=zip(history.seconds, history.rows, strict=False) if history else (),
        step_seconds=total + load,
        load_seconds=load,
        # None if loading the models took longer than each step
        limiting=slowest if slowest and report.steps[slowest].seconds >= load else None,
        advice=advice(report, spec),
        steps=[
            (step.name, step.kind, _subject(step), _resources(step, report)) for step in spec.steps
        ],
        output=_normalized(report.output),
        read=_input(spec),
        errors=data.errors,
        sample=data.sample,
        columns=list(dict.fromkeys(name for row in data.sample for name in row)),
        runs=table_of(data.runs),
        job=_job_file(report, spec),
    )


@cache
def page_environment(package: str) -> Environment:
    """Return the Jinja environment for the templates in a package. It escapes all values, and
    removes control characters from plain strings."""
    templates = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: without_controls(value) if type(value) is str else value,
    )
    templates.filters |= {"duration": duration_text, "bytes": byte_size, "line": in_one_line}
    templates.filters |= {"fields": fields_of, "row_key": key_of_row}
    templates.filters["rows"] = lambda number: counted(number, "row", ",")
    return templates


def _input(spec: BatchInferenceSpec) -> str:
    """Return the format of the input, and its first paths."""
    paths = list(map(_normalized, getattr(spec.read, "paths", [])))
    shown = ", ".join(paths[:3]) + " …" * (len(paths) > 3)
    text = f"format: {spec.read.format}" + (f"; paths: {shown}" if paths else "")
    return without_credentials(text)


def _normalized(path: str) -> str:
    """Return a path for display. A local path has no `..`."""
    return os.path.normpath(local_path(path)) if is_local(path) else path


def _subject(step: Step) -> str:
    """Return the model, the code or the expression that a step runs."""
    if (summary := step.facts.summary) is not None:
        return without_credentials(summary)
    value = step.model_dump(mode="json", by_alias=True, exclude_unset=True)[to_alias(step.kind)]
    return ", ".join(map(str, value)) if isinstance(value, list) else yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False
    ).strip()  # fmt: skip


def _resources(step: Step, report: Report) -> str:
    """Return the resources, the replicas and the batch size of a step as text."""
    fields = {"batch_size", "replicas", "replicas_per_pod", "replicas_per_device", "resources"}
    settings = step.model_dump(mode="json", by_alias=True, exclude_unset=True, include=fields)
    flat = settings.pop("resources", {}) | settings
    if isinstance(copies := flat.pop("replicas", None), dict):
        flat["replicas"] = "-".join(
            str(copies[bound]) for bound in ("min", "max") if bound in copies
        )
    texts = [f"{name} {value}" for name, value in flat.items()]
    if step.name in report.batch_sizes:
        texts.append(f"ran with batches of {report.batch_sizes[step.name]}")
    if step.name in report.replicas_per_device:
        texts.append(f"ran with {report.replicas_per_device[step.name]} replicas on a device")
    return ", ".join(texts)


def _job_file(report: Report, spec: BatchInferenceSpec) -> str:
    """Return the job as YAML, without secrets and without `cluster`."""
    job = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": report.name},
        "spec": without_secrets(spec),
    }
    text = yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=100)
    text = without_credentials(text)
    cut = f"\n... {counted(len(text) - MAX_JOB, 'more character', ',')}"
    return text if len(text) <= MAX_JOB else text[:MAX_JOB] + cut
