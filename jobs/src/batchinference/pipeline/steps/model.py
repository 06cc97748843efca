"""Model steps: pass columns to the inputs of a runtime and add its output as a column."""

from __future__ import annotations

import pyarrow as pa

from batchinference.pipeline.arrow import require_columns, to_batch
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes import Runtime, load_runtime
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.steps import TransformResult
from batchinference.pipeline.steps.result_columns import ResultColumns
from batchinference.spec.models import Model
from batchinference.spec.steps import Step


class ModelTransform:
    """Runs a model on each batch. The constructor loads the model."""

    def __init__(self, step: Step, device: Device) -> None:
        if step.model is None:
            raise ValueError(f"step '{step.name}' has no model")
        self._step = step.name
        self._model = step.model
        self._made = ResultColumns(step.name)
        self._runtime = _load(step.name, step.model, device)

    def __call__(self, batch: pa.Table) -> pa.Table | TransformResult:
        require_columns(self._step, list(self._model.inputs.values()), batch)
        columns = to_batch(batch.select(sorted(set(self._model.inputs.values()))))
        inputs = {name: columns[column] for name, column in self._model.inputs.items()}
        results = self._runtime(inputs)
        if len(results) != batch.num_rows:
            raise JobFailure(
                f"step '{self._step}': the model returned {len(results)} results for a batch of "
                f"{batch.num_rows}"
            )
        failed: dict[int, Exception] = {}
        if isinstance(results, list):  # a runtime that detects errors per row
            failed = {
                row: result for row, result in enumerate(results) if isinstance(result, Exception)
            }
            results = [result for result in results if not isinstance(result, Exception)]
        return self._made.added(batch, {self._model.output: results}, failed)


def _load(step: str, model: Model, device: Device) -> Runtime:
    try:
        return load_runtime(model, device)
    except ModelLoad:
        raise
    except Exception as error:
        raise ModelLoad(
            f"step '{step}': the model cannot be loaded: {type(error).__name__}: {error}"
        ) from error
