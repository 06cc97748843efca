"""Model steps: run a model on the input columns, and add its results as columns."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import require_columns, to_batch
from batchinference.pipeline.declared_types import arrow_type
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.expression import UnsuitableTypes, check_text
from batchinference.pipeline.model_turns import OCCUPANCY, TURNS
from batchinference.pipeline.non_finite_counts import NonFiniteOutput, non_finite_values
from batchinference.pipeline.row_warnings import collect_warnings, warn
from batchinference.pipeline.runtimes import Runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import check_runtime, load_runtime
from batchinference.pipeline.runtimes.missing_inputs import missing_inputs, nested_inputs
from batchinference.pipeline.runtimes.model_files import check_folder, check_source
from batchinference.pipeline.runtimes.prompts import values_for_texts
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.pipeline.steps.transform import (
    Transform,
    TransformResult,
    as_result,
    fail_rows,
    split_prepared,
)
from batchinference.pipeline.type_widening import is_list
from batchinference.spec.models import Model
from batchinference.spec.models.base import LABELED, LabelModel, TextModel
from batchinference.spec.models.generation import GeneratingModel
from batchinference.spec.warnings import WarningName


class ModelTransform(Transform):
    """Runs a model on each batch. The constructor loads the model."""

    NEEDS_VALUES = True

    @classmethod
    def check(cls, step: str, settings: Model, *, batch_size: int | str | None = None) -> None:  # noqa: ARG003
        check_runtime(settings)
        storage = settings.facts.storage
        names = ("source", "revision", "factory")
        source, revision, factory = (getattr(settings, name, None) for name in names)
        for extra_location in settings.extra_locations:
            check_source(extra_location, storage=storage)
        if source is not None:
            check_source(source, settings.HUB_FILES, revision, storage)
        check_folder(settings)
        if factory is not None:
            from batchinference.pipeline.steps.code_checks.function_signatures import (
                factory_problem,
            )
            from batchinference.pipeline.steps.code_checks.imports import check_callable

            module = check_callable(step, factory)
            arguments = getattr(settings, "factory_args", None) or {}
            if module and (problem := factory_problem(factory, arguments, module)):
                raise ModelLoad(f"step '{step}': {problem}")

    @classmethod
    def load(cls, step: str, settings: Model, device: Device) -> Transform:
        return cls(step, settings, device)

    @classmethod
    def check_types(cls, step: str, settings: Model, known: pa.Table) -> None:
        for name, column in settings.inputs.items():
            kind = known.schema.field(column).type if column in known.column_names else None
            if kind in (pa.string(), pa.large_string()) and (fix := settings.MEDIA.get(name)):
                problem = f"the input '{name}' is column '{column}', which holds texts"
                raise UnsuitableTypes(f"step '{step}': {problem}. Use a column of {fix}")
        if isinstance(settings, TextModel) and not settings.uses_texts:
            for name in {"text", "text_pair"} & {*settings.inputs}:
                check_text(step, settings.inputs[name], known, f"the input '{name}'")
        for part in nested_inputs(settings).values():
            if part.is_known(known):
                part.arrow(known.select(part.columns).schema)

    def __init__(self, step: str, model: Model, device: Device) -> None:
        self._step = step
        self._model = model
        self.result_columns = ResultColumns(step)
        self._runtime = _load(step, model, device)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, list(self._model.inputs.values()), batch)
        batch, prepared = split_prepared(batch)
        missing = missing_inputs(self._model, batch)
        missing.warn()
        rows = missing.computed(batch.num_rows)
        results, failed = self._run(batch, rows, prepared)
        failed |= missing.failed
        columns = _columns(self._model, results)
        result = self.result_columns.added(batch, columns, failed, missing.skipped)
        return with_non_finite_policy(self._model, result)

    def _run(
        self, batch: pa.Table, rows: np.ndarray, prepared: Mapping[str, pa.ChunkedArray]
    ) -> tuple[Any, dict[int, Exception]]:
        """Run the model on `rows` of a batch. Return the results of those that have not failed, and
        the errors of the failed rows. `prepared` has the tokens of the batch, if there are any."""
        if len(rows) == 0:
            return [], {}
        part = batch.select(sorted(set(self._model.inputs.values())))
        if len(rows) < batch.num_rows:
            part = part.take(rows)
            prepared = {name: column.take(rows) for name, column in prepared.items()}
        run: Any = self._runtime
        run = partial(run, prepared=prepared) if self._model.tokenized_inputs else run
        # an engine or a server computes rows of several threads at once, so threads need no turns
        use = TURNS.preparing() if self._model.IN_PROCESS else OCCUPANCY.computing()
        with collect_warnings() as warnings, use:
            results = run(_inputs(self._model, part))
        for warning in warnings:
            warn(warning.name, row=int(rows[warning.row]), amount=warning.amount)
        if len(results) != len(rows):
            problem = f"the model returned {len(results)} results for a batch of {len(rows)}"
            raise JobFailure(f"step '{self._step}': {problem}")
        if not isinstance(results, list):
            return results, {}
        # a list holds an exception for each row whose error the runtime has caught
        pairs = list(zip(rows.tolist(), results, strict=True))
        failed = {row: result for row, result in pairs if isinstance(result, Exception)}
        return [result for row, result in pairs if row not in failed], failed


def _columns(model: Model, results: Any) -> dict[str, Any]:
    """Return the columns that a model adds: its output, and its other outputs, if any."""
    others = model.extra_outputs
    if isinstance(model, LabelModel) and model.score_output is not None:
        labels = pa.array(results, arrow_type(LABELED)) if isinstance(results, list) else results
        return {model.output: labels.field("label"), model.score_output: labels.field("score")}
    columns = {model.output: [result[0] for result in results] if others else results}
    if isinstance(model, GeneratingModel) and model.answer_schema is not None:
        columns[model.output] = pa.array(columns[model.output], arrow_type(model.answer_type))
    for at, (name, kind) in enumerate(others.items(), 1):
        # with the declared type, because a batch with only nulls does not show the type
        columns[name] = pa.array([result[at] for result in results], arrow_type(kind))
    return columns


def _inputs(model: Model, table: pa.Table) -> dict[str, Any]:
    if model.uses_texts:
        return dict(values_for_texts(model.inputs, table))
    for name, column in model.inputs.items():
        if any(map(_has_null, table.column(column).chunks)):  # NumPy would make it NaN
            raise TypeError(f"input '{name}' has a null in a list. Replace it in a python step")
    columns = to_batch(table)
    return {name: columns[column] for name, column in model.inputs.items()}


def _has_null(values: pa.Array) -> bool:
    while is_list(values.type):
        values = values.flatten()
    return bool(values.null_count)


def with_non_finite_policy(
    model: Model, result: pa.Table | TransformResult
) -> pa.Table | TransformResult:
    """Apply the field `nonFinite` of a model to its result, and return the new result. A row with
    NaN or infinity fails, or gets the warning NonFinite."""
    table = result if isinstance(result, pa.Table) else result.table
    outputs = (model.output, getattr(model, "score_output", None))
    counts = non_finite_values(table.select([n for n in table.column_names if n in outputs]))
    if not counts:
        return result
    parents = as_result(result).parents
    by_parent = {int(parents[row]): count for row, count in counts.items()}
    if (model.non_finite or ("fail" if model.needs_finite else "keep")) == "fail":
        return fail_rows(result, {row: NonFiniteOutput(by_parent[row]) for row in by_parent})
    for row, count in by_parent.items():
        warn(WarningName.NON_FINITE, row=row, amount=count)
    return result


def _load(step: str, model: Model, device: Device) -> Runtime:
    try:
        return load_runtime(model, device)
    except ModelLoad:
        raise
    except Exception as error:
        problem = f"the model cannot be loaded: {type(error).__name__}: {error}"
        raise ModelLoad(f"step '{step}': {problem}") from error
