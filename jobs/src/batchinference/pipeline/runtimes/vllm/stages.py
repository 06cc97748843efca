"""Ray's stages as a job needs them.

By themselves they end the job for a row that they cannot prepare, blame rows for adapters that
cannot be fetched, and lose on the way why a model cannot be loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.ray_compat.llm import StatefulStageUDF
from batchinference.pipeline.row_ids import describe
from batchinference.pipeline.runtimes.vllm.model_files import (
    Adapters,
    NoAdapter,
    files_beside,
    files_of,
)
from batchinference.pipeline.runtimes.vllm.requests import ADAPTER
from batchinference.pipeline.runtimes.vllm.row_codec import ERROR
from batchinference.spec.models import VllmModel

Row = dict[str, Any]


class IsolatingStage(StatefulStageUDF):
    """Stands before a class of Ray's, which prepares rows or runs the engine."""

    step: ClassVar[str]
    spec: ClassVar[VllmModel]
    lack: ClassVar[str]
    """What may be why the model cannot be loaded."""

    def __init__(self, **arguments: Any) -> None:
        # raised at the first batch: an error of a constructor loses its cause on the way
        self._failure: JobFailure | None = None
        try:
            super().__init__(**self._with_files(arguments))
        except Exception as error:  # noqa: BLE001 - whatever a library raises
            self._failure = load_failure(self.step, self.spec, error, self.lack)

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what the stage loads, on its own machine."""
        folder = files_beside(self.spec)
        if "model_config_kwargs" in arguments:
            config = {**arguments["model_config_kwargs"], "model": folder}
            return {**arguments, "model_config_kwargs": config}
        return {**arguments, "model": folder}

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        if self._failure is not None:
            raise self._failure
        async for made in super().__call__(batch):
            yield made

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        for made in await self._isolated(rows):
            yield made

    async def _isolated(self, rows: list[Row]) -> list[Row]:
        """What becomes of the rows. Those that raise are halved until the row stands alone."""
        try:
            return await self._run(rows)
        except Exception as error:
            if not is_about_the_row(error):
                message = f"step '{self.step}' cannot go on: {describe(error)}"
                raise JobFailure(message) from error
            if len(rows) == 1:
                return [self._failed(rows[0], error)]
        half = len(rows) // 2
        return [*await self._isolated(rows[:half]), *await self._isolated(rows[half:])]

    async def _run(self, rows: list[Row]) -> list[Row]:
        stage: Any = super()  # Ray's type of this method is that of one without `yield`
        return [made async for made in stage.udf(rows)]

    def _failed(self, row: Row, error: Exception) -> Row:
        return {self.IDX_IN_BATCH_COLUMN: row[self.IDX_IN_BATCH_COLUMN], ERROR: describe(error)}


class GuardedEngine(IsolatingStage):
    """Stands before the class that runs the engine, and gives it the adapters as folders."""

    model: str
    """What Ray takes for the model itself."""

    def _with_files(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._adapters = Adapters(self.spec)
        return {**arguments, "model": files_of(self.spec)}

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        ready = []
        for row in rows:
            try:
                row["model"] = await self._model_of(row.pop(ADAPTER, None))
                ready.append(row)
            except NoAdapter as error:
                yield self._failed(row, error)
        # the engine itself says which rows it refuses; what it raises is about none
        for made in await self._run(ready):
            yield made

    async def _model_of(self, adapter: Any) -> Any:
        """What Ray takes for an adapter: a folder; for none, what it takes for the model."""
        if adapter is None:
            return self.model
        try:
            return await asyncio.to_thread(self._adapters.folder, adapter)
        except NoAdapter:
            raise
        except Exception as error:
            raise JobFailure(
                f"step '{self.step}': the adapter '{adapter}' cannot be fetched: {describe(error)}"
            ) from error


def guarded(kind: Any, guard: type[IsolatingStage], step: str, spec: VllmModel, lack: str) -> Any:
    """Ray's class of a stage, guarded. It keeps its name, by which Ray calls the operator."""
    return type(kind.__name__, (guard, kind), {"step": step, "spec": spec, "lack": lack})


def load_failure(step: str, spec: VllmModel, error: Exception, lack: str = "") -> JobFailure:
    if isinstance(error, JobFailure):
        return error
    named = f"step '{step}': the model '{spec.source}' cannot be loaded{lack}"
    return ModelLoad(f"{named}: {describe(error)}")
