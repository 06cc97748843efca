"""Applies the policy for texts that are too long to the tasks that run in the library's pipelines.

The pipelines cut texts themselves, and do not say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from batchinference.pipeline.row_warnings import warn
from batchinference.pipeline.runtimes.text_limits import Windows
from batchinference.pipeline.runtimes.transformers.text_inputs import limit_of
from batchinference.pipeline.text_spans import Span
from batchinference.spec.models import TransformersModel
from batchinference.spec.warnings import WarningName

_HYPOTHESIS = "This example is {}."
"""The library's default for `hypothesis_template`."""


class PipelineTexts:
    """The texts of a pipeline. Changes `options`, so that the pipeline cuts texts that are too long
    at the right side."""

    def __init__(self, model: TransformersModel, pipeline: Any, options: dict[str, Any]) -> None:
        self._task = model.task
        self._tokenizer = pipeline.tokenizer
        chosen = None
        if model.task == "fill-mask":
            options["tokenizer_kwargs"] = {
                "truncation": True,
                **options.get("tokenizer_kwargs", {}),
            }
            chosen = options["tokenizer_kwargs"].get("max_length")
        self._limit = limit_of(self._tokenizer, model, chosen)
        if model.task == "table-question-answering" and pipeline.type != "tapas":
            options.setdefault("truncation", True)
        self._others = 0
        if model.task == "zero-shot-classification":
            template = options.get("hypothesis_template", _HYPOTHESIS)
            labels = (template.format(label) for label in model.candidate_labels)
            pair = self._special(pair=True) - self._special(pair=False)
            self._others = pair + max(map(self._limit.length, labels))

    def _special(self, *, pair: bool) -> int:
        number: int = self._tokenizer.num_special_tokens_to_add(pair=pair)
        return number

    def windows(self, rows: Sequence[Any]) -> Windows | None:
        """Return the windows of the texts of a batch, if texts are divided. Otherwise, report a
        warning for each text that the pipeline is going to cut. Raises TextTooLong for a text that
        is too long, and fails."""
        if self._task == "table-question-answering":
            self._warn_of_tables(rows)
        elif self._limit.divides:
            return self._limit.windows(rows, [self._special(pair=False) + self._others] * len(rows))
        else:
            self._limit.warn(rows, reserved=self._others)
        return None

    def _warn_of_tables(self, rows: Sequence[Any]) -> None:
        lengths = [self._length(row, truncation=False) for row in rows]
        for at in self._limit.check(lengths):
            cut = lengths[at] - self._length(rows[at], truncation=True)
            warn(WarningName.TEXT_CUT, row=at, amount=cut)

    def _length(self, row: Any, *, truncation: bool) -> int:
        if row["table"].empty:
            return 0  # refused by the pipeline
        encoded = self._tokenizer(row["table"], row["query"], truncation=truncation)
        return len(encoded["input_ids"])


Merge = Callable[[Sequence[Any], Sequence[Span]], Any]
"""Returns the pipeline's result for a text from the results for its windows."""


def merged_entities(results: Sequence[Any], spans: Sequence[Span]) -> Any:
    """Return the entities of all windows with their positions in the whole text. In an overlap, the
    entities of its first half are those of the first window."""
    entities: list[dict[str, Any]] = []
    limits = [(one.end + other.start) // 2 for one, other in pairwise(spans)]
    first = 0
    for result, span, limit in zip(results, spans, [*limits, spans[-1].end + 1], strict=True):
        for entity in result:
            start, end = (span.start + int(entity[side]) for side in ("start", "end"))
            if max(first, entities[-1]["end"] if entities else 0) <= start < limit:
                entities.append({**entity, "start": start, "end": end})
        first = limit
    return entities


def merged_scores(results: Sequence[Any], spans: Sequence[Span]) -> Any:
    """Return the mean score of each label over the windows, weighted by their numbers of tokens."""
    weights = [max(1, span.units) for span in spans]
    labels = results[0]["labels"]
    by_label = [dict(zip(one["labels"], one["scores"], strict=True)) for one in results]
    table = np.array([[scores[label] for label in labels] for scores in by_label])
    means = np.average(table, axis=0, weights=weights)
    order = np.argsort(-means, kind="stable")
    return {"labels": [labels[at] for at in order], "scores": means[order].tolist()}


MERGES: dict[str, Merge] = {
    "token-classification": merged_entities,
    "zero-shot-classification": merged_scores,
}
"""How the results for the windows of a text are combined, by task."""
