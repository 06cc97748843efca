"""The part of a model step that runs in tasks, before a pool: it converts texts to tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from batchinference.pipeline.arrow import decoded, require_columns, with_nulls
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs
from batchinference.pipeline.steps import Transform
from batchinference.spec.models import Model
from batchinference.spec.reserved import PREPARED_PREFIX

if TYPE_CHECKING:
    from batchinference.pipeline.runtimes.flat_tokens import FlatTokenizer

_TEXTS = (pa.string(), pa.large_string())


class Preparation(Transform):
    """Adds the tokens of the texts that a model computes, in hidden columns that only the step of
    the model sees. Rows are left as they are if their inputs are no texts."""

    def __init__(self, step: str, model: Model) -> None:
        from batchinference.pipeline.runtimes.flat_tokens import preparing_tokenizers

        self._step, self._model = step, model
        self._columns = [model.inputs[name] for name in model.tokenized_inputs]
        self._others = preparing_tokenizers(model)  # type: ignore[arg-type]
        self._tokenizer = next(self._others, None)

    def __call__(self, batch: pa.Table) -> pa.Table:
        require_columns(self._step, list(self._model.inputs.values()), batch)
        rows = missing_inputs(self._model, batch).computed(batch.num_rows)
        columns = [decoded(batch.column(name)) for name in self._columns]
        tokenizer = self._current_tokenizer()
        if tokenizer is None or not len(rows) or any(c.type not in _TEXTS for c in columns):
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
        """Return the tokenizer; None if the replicas must tokenize."""
        while self._tokenizer is not None and self._tokenizer.is_refused:
            self._tokenizer = next(self._others, None)
        return self._tokenizer


def is_prepared(name: str) -> bool:
    """Return whether a column is from a preparation."""
    return name.startswith(PREPARED_PREFIX)


def split_prepared(table: pa.Table) -> tuple[pa.Table, dict[str, pa.ChunkedArray]]:
    """Return a table without the columns of a preparation, and these columns."""
    names = [*filter(is_prepared, table.column_names)]
    prepared = {name.removeprefix(PREPARED_PREFIX): table.column(name) for name in names}
    return (table.drop_columns(names) if names else table), prepared
