"""Estimates, from the first rows, what the model steps of a job need for all rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.preview import Outcome, Preview
from batchinference.pipeline.runtimes.kinds import prompt_lengths
from batchinference.pipeline.steps.column_steps import Filter
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step
from batchinference.spec.warnings import WarningName

Range = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """What a model step needs for all rows, if they are like the first rows. A range of tokens is
    the expected number plus or minus two standard errors. None means unknown."""

    step: str
    rows: int
    device_hours: Range | None = None
    input_tokens: Range | None = None
    output_tokens: Range | None = None
    note: str = ""

    def price(self, prices: Sequence[float]) -> Range:
        """Return the lowest and the highest price of the known parts. `prices` are those of a
        device hour, of a million input tokens and of a million output tokens."""
        hours, *tokens = self.device_hours, self.input_tokens, self.output_tokens
        units = zip((hours, *tokens), prices, (1, 1e6, 1e6), strict=True)
        known = [(amount, price / unit) for amount, price, unit in units if amount is not None]
        low, high = (sum(amount[at] * price for amount, price in known) for at in (0, 1))
        return low, high


def estimates(preview: Preview) -> Iterator[Estimate]:
    """Run the steps over the first rows, and yield the estimate of each model step that gets rows.
    Ends at a model step that fails, because later steps need its results. Raises JobFailure, and
    errors of storage and libraries."""
    sample = preview.read().rows
    count = open_input(preview.spec.read).count()
    scale = count.rows / sample if count and sample else 1.0
    note = "" if count else f"the number of rows is unknown: for the first {sample} rows"
    for step in preview.spec.steps:
        rows = len(preview.batch.ids)
        known = Estimate(step.name, round(scale * rows), note=note)
        try:
            outcome = preview.run_step(step) if rows else None
        except JobFailure as failure:
            if step.model is None:
                raise
            yield _of_prompts(preview, step, known, sample, scale, failure)
            return
        if step.model is not None and outcome is not None:
            yield _measured(preview, step, known, sample, scale, outcome)


def _measured(
    preview: Preview, step: Step, known: Estimate, sample: int, scale: float, outcome: Outcome
) -> Estimate:
    amounts = preview.batch.warnings.filter(pc.equal(preview.batch.warnings["step"], step.name))
    sums = amounts.group_by(["name", "id"]).aggregate([("amount", "sum")])
    skipped = sum(each.count for each in outcome.warnings if each.name == WarningName.SKIPPED)
    notes_of_step = (json.loads(note) for name, note in preview.batch.notes if name == step.name)
    reused = sum(note.get("reused", 0) for note in notes_of_step)
    computed = len(pc.unique(pa.array(preview.batch.ids))) - skipped - reused
    input_tokens, output_tokens = (
        _range(sums.filter(pc.equal(sums["name"], kind))["amount_sum"], sample, scale, computed)
        for kind in (TokenKind.INPUT, TokenKind.OUTPUT)
    )
    notes = [known.note] if known.note else []
    notes += ["its cascade will skip some of these rows"] if step.cascade else []
    notes += [f"{outcome.failed} failed: {outcome.first_failed}"] if outcome.failed else []
    devices = step.resources.gpu + sum(step.resources.custom.values()) if step.resources else 0
    stages = [stage for stage in preview.plan.stages if stage.gpus or stage.custom]
    hours: Range | None = (scale * outcome.seconds * devices / 3600,) * 2
    if devices and step.name not in {other.name for stage in stages for other in stage.steps}:
        hours = None
        notes.append(f"this machine lacks its devices ({devices:g}), so its time is unknown")
    return replace(known, device_hours=hours, input_tokens=input_tokens,
                   output_tokens=output_tokens, note="; ".join(notes))  # fmt: skip


def _of_prompts(
    preview: Preview, step: Step, known: Estimate, sample: int, scale: float, failure: JobFailure
) -> Estimate:
    """Return the estimate for a failed model step: only its prompt tokens, if the tokenizer can be
    loaded."""
    known = replace(known, note=f"only its prompts and no later steps: {failure.message}")
    table = preview.batch.table
    if step.when is not None:
        table = table.filter(Filter(step.name, step.when, "when").mask(table))
    lengths = prompt_lengths(step.model, table) if step.model and table.num_rows else None
    return replace(known, input_tokens=_range(lengths or [], sample, scale))


def _range(counts: Iterable[int], sample: int, scale: float, computed: int = 0) -> Range | None:
    """Return the expected lowest and highest number of tokens of all rows. None without `counts`,
    which are the tokens of computed rows. Other rows of the sample count as 0 tokens. Rows that are
    computed together have one count. If at most half of the `computed` rows have a count, each
    computed row gets an equal part of all tokens."""
    tokens = np.array(counts)
    if not len(tokens):
        return None
    if 2 * len(tokens) <= computed:
        tokens = np.full(computed, tokens.sum() / computed)
    tokens = np.pad(tokens, (0, max(0, sample - len(tokens))))
    total, error = tokens.sum(), 2 * tokens.std() * len(tokens) ** 0.5
    return max(0, round(scale * (total - error))), round(scale * (total + error))
