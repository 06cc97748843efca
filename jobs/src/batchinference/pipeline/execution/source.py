"""The datasource of a job for Ray Data."""

from __future__ import annotations

import uuid

from ray.data import DataContext
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from batchinference.pipeline.execution.memory import ReadWatch
from batchinference.pipeline.input.base import ReadRows
from batchinference.pipeline.row_ids import READ_STEP


class RowSource(Datasource):
    """A datasource that yields rows with ids from prepared read tasks."""

    def __init__(self, tasks: list[ReadRows]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        reading = uuid.uuid4().hex
        self._tasks = [ReadWatch(reading, READ_STEP, task) for task in tasks]

    def get_name(self) -> str:
        return "Rows"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: DataContext | None = None,
    ) -> list[ReadTask]:
        metadata = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(task, metadata) for task in self._tasks]
