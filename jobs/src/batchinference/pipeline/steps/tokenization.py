"""The preparation of a model step: tasks tokenize the texts before an actor pool runs the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchinference.pipeline.arrow import decoded, require_columns, with_nulls
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs
from batchinference.pipeline.steps.transform import Transform
from batchinference.pipeline.type_widening import is_text
from batchinference.spec.models import Model
from batchinference.spec.reserved import PREPARED_PREFIX

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.flat_tokens import FlatTokenizer


class Preparation(Transform):
    """Adds prepared columns: the tokens of the texts that a model gets. The names of these columns
    begin with PREPARED_PREFIX, and only the model step reads the columns. A batch is not changed if
    its inputs are not texts, or if only the replicas of the model can tokenize them."""

    def __init__(self, step: str, model: Model) -> None:
        from batchinference.pipeline.runtimes.flat_tokens import preparing_tokenizers

        self._step, self._model = step, model
        self._columns = [model.inputs[name] for name in model.tokenized_inputs]
        self._tokenizers = preparing_tokenizers(model)  # type: ignore[arg-type]
        self._tokenizer = next(self._tokenizers, None)

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self._step, list(self._model.inputs.values()), batch)
        rows = missing_inputs(self._model, batch).computed(batch.num_rows)
        columns = [decoded(batch.column(name)) for name in self._columns]
        tokenizer = self._current_tokenizer()
        if tokenizer is None or not len(rows) or not all(is_text(c.type) for c in columns):
            return batch
        is_complete = len(rows) == batch.num_rows
        texts: list[Any] = [
            (c if is_complete else c.take(pa.array(rows))).to_pylist() for c in columns
        ]
        for name, values in tokenizer.prepare(*texts).items():
            column = values if is_complete else with_nulls(values, rows, batch.num_rows)
            batch = batch.append_column(PREPARED_PREFIX + name, column)
        return batch

    def _current_tokenizer(self) -> FlatTokenizer | None:
        """Return the first tokenizer that replicas do not refuse; None if all are refused."""
        while self._tokenizer is not None and self._tokenizer.is_refused:
            self._tokenizer = next(self._tokenizers, None)
        return self._tokenizer
