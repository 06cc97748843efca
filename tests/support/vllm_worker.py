"""Computes rows with models of the runtime `vllm` and the real engine, in an environment with vLLM.

Reads requests from the standard input and answers each with a line: both are JSON. Models with the
same engine arguments share one engine, and there is one engine at a time.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from batchinference.pipeline.errors import JobFailure, describe
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import check_runtime
from batchinference.pipeline.runtimes.vllm import engine
from batchinference.pipeline.steps import load_step
from batchinference.pipeline.steps.transform import as_result
from batchinference.spec.steps import Step


def share_engines() -> None:
    """Let models with the same engine arguments share an engine, which ends before another one."""
    start, load = engine._started, engine._loaded
    running: dict[str, Any] = {}
    kept: list[Any] = []

    async def started(*model: Any) -> Any:
        key = json.dumps(engine.arguments_of(*model), sort_keys=True)
        if key not in running:
            engine._ENGINES.clear()  # their models have the engine that ends now
            while running:
                running.popitem()[1].shutdown()
            running[key] = await start(*model)
        return running[key]

    def loaded(*model: Any) -> Any:
        kept.append(load(*model))  # otherwise, the shared engine would end with it
        return kept[-1]

    engine._started, engine._loaded = started, loaded


def answered(request: dict[str, Any]) -> list[Any]:
    """Return the values of all result columns for each row, or the error of the row."""
    step = Step.model_validate(
        {"name": "ask", "model": request["model"], "resources": {"cpu": 1, "gpu": 0}}
    )
    assert step.model is not None
    check_runtime(step.model)
    table = pa.table({name: pa.array(values) for name, values in request["columns"].items()})
    result = as_result(load_step(step, Device())(table))
    names = [name for name in result.table.column_names if name not in table.column_names]
    values = result.table.select(names).to_pylist() if names else []
    rows: list[Any] = [None] * table.num_rows
    for row, value in zip(result.parents.tolist(), values, strict=False):
        rows[row] = value
    for row, error in result.failed.items():
        rows[row] = {"error": describe(error)}
    return rows


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine prints to the standard output
    share_engines()
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"rows": answered(json.loads(line))}
        except JobFailure as failure:
            answer = {"failure": failure.message}
        print(json.dumps(answer, default=plain), file=answers, flush=True)


if __name__ == "__main__":
    main()
