"""Builds the Ray Data operators of a stage with a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset

from batchinference.pipeline.execution.block_codec import decode, encode, has_data
from batchinference.pipeline.execution.control import INTO
from batchinference.pipeline.execution.step_runner import ErrorHandling, StageRunner
from batchinference.pipeline.ray_compat import HighMemoryIssueDetector
from batchinference.pipeline.row_warnings import collect_warnings, warning_table
from batchinference.pipeline.runtimes.vllm_processor import (
    NodeSelectors,
    RetryOptions,
    processor_of,
)
from batchinference.pipeline.runtimes.vllm_row_codec import (
    decode_rows,
    encode_rows,
    requests_of,
    with_results,
)
from batchinference.pipeline.steps import TransformResult, as_result, checked
from batchinference.pipeline.steps.model import without_non_finite
from batchinference.plan import Stage
from batchinference.plan.stages import TASK_CPUS
from batchinference.spec.models import VllmModel


def add_llm(
    dataset: Dataset,
    stage: Stage,
    errors: ErrorHandling,
    nodes: NodeSelectors,
    retries: RetryOptions,
) -> Dataset:
    """Return the dataset with the operators of the stage added."""
    step = stage.steps[0]
    if not isinstance(step.model, VllmModel):
        raise TypeError(f"step '{step.name}' has no model for vLLM")
    common: dict[str, Any] = {
        "batch_size": None,
        "batch_format": "pyarrow",
        "num_cpus": TASK_CPUS,
        "label_selector": nodes.helpers,
        "udf_modifying_row_count": False,
        **retries.of_tasks,
    }
    into = _named(f"{step.name}{INTO}", partial(_encode_requests, step.name, step.model))
    dataset = dataset.map_batches(into, **common)
    _disable_memory_detector(dataset)
    dataset = processor_of(stage, step.model, nodes, retries)(dataset)
    return dataset.map_batches(
        _named(step.name, _decode_results(stage, step.model, errors)), **common
    )


def _disable_memory_detector(dataset: Dataset) -> None:
    """Disable Ray's high memory detector; `execution.task_notes` records the peak memory.

    The detector repeatedly requests the arguments of actors that it never starts, each time with a
    placement group. This would reserve GPUs that are not used (ray#64012)."""
    config = dataset.context.issue_detectors_config
    config.detectors = [
        detector for detector in config.detectors if detector is not HighMemoryIssueDetector
    ]


def _encode_requests(step: str, model: VllmModel, block: pa.Table) -> pa.Table:
    return encode_rows(block, has_data(block), requests_of(step, model, decode(block).table))


def _decode_results(
    stage: Stage, model: VllmModel, errors: ErrorHandling
) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """Return a function that adds the results to the rows and runs the other steps of the stage,
    which drop columns that no later step reads."""
    step = stage.steps[0].name
    others = StageRunner(replace(stage, steps=stage.steps[1:]), errors)

    def run(rows: pa.Table) -> Iterator[pa.Table]:
        block = decode_rows(rows)
        batch, data = decode(block), np.flatnonzero(has_data(block))
        with collect_warnings() as warnings:
            computed = TransformResult(*with_results(model, batch.table, rows.take(pa.array(data))))
            computed = without_non_finite(model, computed)
        result = as_result(checked(computed, warnings, errors.failing))
        of_good = [warning for warning in warnings if warning.row not in result.failed]
        batch = batch.with_warnings(warning_table(step, batch.ids, of_good))
        failed = errors.failed_rows(step, batch, result.failed)
        yield from map(encode, others(batch.derived(result.table, result.parents, failed)))

    return run


def _named(name: str, function: Callable[[pa.Table], Any]) -> Callable[[pa.Table], Any]:
    """Return the function with another name, which Ray Data uses as the operator's name."""

    def run(table: pa.Table) -> Any:
        return function(table)

    run.__name__ = run.__qualname__ = name
    return run
