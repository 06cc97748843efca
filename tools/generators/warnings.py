"""Generates docs/warnings.md: the catalogue of warnings."""

from __future__ import annotations

from batchinference.spec.warnings import WarningName

_INTRODUCTION = """# Warnings

A *warning* says that the output differs from the input: a file was not read, a text was cut, a
picture was rotated. The row is in the output, or a filter has removed it, so it is no failed row.
The list of warnings is generated from the code by `make generate`.

Each warning is counted, with one example: once for each step and input row, even if this row became
several rows. Only if these are in several tasks, each task may count it. The same figures are

- in the summary that `batchinference run` prints, and in the result of `batchinference verify`
- in `report.json` and the HTML report next to the output (`warnings`), and in `batchinference
  status`
- in `status.warnings` and `status.counts.warned` of a BatchInference, and in the Event
  `Succeeded`
- in the metric `batchinference_warnings_total`

A row that fails has an [error record](jobs.md#bad-rows) instead of warnings, unless other rows that
were made from the same input row remain. A row that is computed again, because its task was lost or
the job was resumed, is counted once.

## Not accepting a warning

`errors.warnings` names the warnings that a job does not accept:

```yaml
errors:
  maxRows: 100
  warnings:
  - {name: TextCut, action: fail}           # each of these rows becomes a failed row
  - {name: Rotated, maxPercent: 5}          # more of them fail the job
  - {name: FilesIgnored, maxRows: 0}        # the job is refused if a file would be ignored
```

With `action: fail`, rows with the warning are failed rows, and the limits on failed rows apply to
them. `maxRows` and `maxPercent` limit the warning in each step: if a step has more, the job fails
with the cause `TooManyErrors`, as for failed rows. Warnings about files are known before the first
row is read. So their `action: fail`, and a limit that they exceed, refuse the job before it starts.

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
