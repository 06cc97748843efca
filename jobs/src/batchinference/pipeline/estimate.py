"""Estimates what the model steps of a job need for all rows, from its first rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.file_input import open_input
from batchinference.pipeline.preview import Outcome, Preview
from batchinference.pipeline.runtimes import prompt_lengths
from batchinference.pipeline.steps.filter import Filter
from batchinference.spec.progress import TokenKind
from batchinference.spec.steps import Step

Range = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """What a model step needs for all rows: ranges of two standard errors to each side, if the rows
    are like the first ones. None stands for what is unknown, and `note` says why."""

    step: str
    rows: int
    device_hours: Range | None = None
    input_tokens: Range | None = None
    output_tokens: Range | None = None
    note: str = ""

    def price(self, prices: Sequence[float]) -> Range:
        """Return the lowest and the highest price of what is known, from the prices of a device
        hour and of a million input and output tokens."""
        hours, *tokens = self.device_hours, self.input_tokens, self.output_tokens
        units = zip((hours, *tokens), prices, (1, 1e6, 1e6), strict=True)
        known = [(of, price / unit) for of, price, unit in units if of is not None]
        low, high = (sum(of[at] * price for of, price in known) for at in (0, 1))
        return low, high


def estimates(preview: Preview) -> Iterator[Estimate]:
    """Run the steps over the first rows, and yield the estimate of each model step. Ends after a
    model that cannot be loaded here: the next steps need its results. Raises JobFailure, and errors
    of storage and libraries."""
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
    used = preview.batch.warnings.filter(pc.equal(preview.batch.warnings["step"], step.name))
    sums = used.group_by(["name", "id"]).aggregate([("amount", "sum")])
    reads, makes = (
        _range(sums.filter(pc.equal(sums["name"], kind))["amount_sum"].to_numpy(), sample, scale)
        for kind in (TokenKind.INPUT, TokenKind.OUTPUT)
    )
    notes = [known.note] if known.note else []
    notes += ["its cascade will skip some of these rows"] if step.cascade else []
    notes += [f"{outcome.failed} failed: {outcome.first_failed}"] if outcome.failed else []
    wanted = step.resources.gpu + sum(step.resources.custom.values()) if step.resources else 0
    stages = [stage for stage in preview.plan.stages if stage.gpus or stage.custom]
    hours: Range | None = (scale * outcome.seconds * wanted / 3600,) * 2
    if wanted and step.name not in {one.name for stage in stages for one in stage.steps}:
        hours = None
        notes.append(f"this machine lacks its devices ({wanted:g}), so its time is unknown")
    return replace(known, device_hours=hours, input_tokens=reads, output_tokens=makes,
                   note="; ".join(notes))  # fmt: skip


def _of_prompts(
    preview: Preview,
    step: Step,
    known: Estimate,
    sample: int,
    scale: float,
    failure: JobFailure,
) -> Estimate:
    """Return the tokens of the prompts of a model that cannot be loaded here, if its tokenizer
    can."""
    known = replace(known, note=f"only its prompts and no later steps: {failure.message}")
    table = preview.batch.table
    if step.when is not None:
        table = table.filter(Filter(step.name, step.when, "when").mask(table))
    lengths = prompt_lengths(step.model, table) if step.model and table.num_rows else None
    return replace(known, input_tokens=_range(np.array(lengths or []), sample, scale))


def _range(tokens: np.ndarray, sample: int, scale: float) -> Range | None:
    """Return the lowest and the highest number of tokens to expect, from those of some rows of the
    sample. A step has not computed its other rows."""
    if not len(tokens):
        return None
    tokens = np.pad(tokens, (0, max(0, sample - len(tokens))))
    total, error = tokens.sum(), 2 * tokens.std() * len(tokens) ** 0.5
    return max(0, round(scale * (total - error))), round(scale * (total + error))
