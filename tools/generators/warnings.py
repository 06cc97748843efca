"""Generates docs/warnings.md: the catalogue of warnings."""

from __future__ import annotations

from batchinference.spec.warnings import WarningName

_INTRODUCTION = """# Warnings

This page lists what a job may leave out, cut or change, and how to refuse it. Such a row is in the
output, or was filtered, so it is no [failed row](errors.md#failed-rows).

Each warning is counted once for each step and input row, with one example: in the summary of `run`,
`status`, `verify`, [the report](report.md), and on a cluster in `status.warnings`, the Event
`Succeeded` and the metric `batchinference_warnings_total`.

## Not accepting a warning

```yaml
errors:
  maxRows: 100
  warnings:
  - {name: TextCut, action: fail}           # each of these rows becomes a failed row
  - {name: Rotated, maxPercent: 5}          # more of them in a step fail the job
  - {name: FilesIgnored, maxRows: 0}        # the job is refused if a file would be ignored
```

The limits of failed rows apply to rows with `action: fail`. A limit that is exceeded fails the job
as `TooManyErrors`. Warnings about files refuse the job before it starts.

## Find the rows of a warning

A warning has a count and one example, not a list of rows. To find **answers that end in the
middle** (`AnswerCut`), set `details: about` in the model step before the run. Then rows with
`about.finish_reason == 'length'` are cut
([Answers](answers.md#several-answers-tokens-and-probabilities)). An **empty answer** is no warning:
look for `answer == ''`.

To compute only these rows again, write a second job. It reads the output, keeps the rows with a
[`filter`](steps.md#expressions), and has another `write.path` and the better prompt or limit:

```yaml
read: {format: parquet, paths: [./out]}
steps:
- {name: bad, filter: about.finish_reason == 'length' or answer == ''}
```

## All warnings

| name | counts | adds up | what has happened | what to do |
| --- | --- | --- | --- | --- |
"""


def warnings_page() -> str:
    """Return docs/warnings.md."""
    rows = "".join(
        f"| `{name.value}` | {name.unit}s | {name.amount} | {name.meaning} | {name.fix} |\n"
        for name in WarningName
    )
    return _INTRODUCTION + rows
