"""Ray's own checkpoint with the faults of faults.py: `faulty_peer.py SOURCE OUTPUT CHECKPOINT`.

The pipeline is hand-written with Ray Data. Subclasses of Ray's datasink and checkpoint writer call
`at`, and otherwise behave like their base classes. FILE_NAMES selects the scheme of the file names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import ray
from fault_scenarios import CHILDREN_PER_BLOCK, FILES
from faults import at
from peer_checkpoint import configure, s3
from ray.data import DataContext
from ray.data._internal.datasource.parquet_datasink import ParquetDatasink
from ray.data._internal.execution.interfaces import TaskContext
from ray.data._internal.planner.plan_write_op import PENDING_CHECKPOINTS_KWARG_NAME
from ray.data.block import Block
from ray.data.checkpoint.checkpoint_writer import (
    BatchBasedCheckpointWriter,
    CheckpointWriter,
    PendingCheckpoint,
)
from ray.data.datasource import FilenameProvider

CPUS, WRITE_CPUS = 8, 0.5


class FaultyWriter(BatchBasedCheckpointWriter):
    def commit_checkpoint(self, pending: PendingCheckpoint) -> None:
        super().commit_checkpoint(pending)
        context = TaskContext.get_current()
        if context is not None:  # the late worker has no task context
            at("committed", context.task_idx)


class FaultySink(ParquetDatasink):
    def write(self, blocks: Iterable[Block], ctx: Any) -> None:
        at("begun", ctx.task_idx)
        there = list(blocks)  # consuming the blocks writes the pending checkpoint
        known = SimpleNamespace(task_idx=ctx.task_idx, kwargs=dict(ctx.kwargs))
        at("prepared", ctx.task_idx, partial(finish_task, self, there, known, self._data_context))
        self._write(there, ctx)

    def _write(self, blocks: list[Block], ctx: Any) -> None:
        at("puts", ctx.task_idx)
        super().write(blocks, ctx)
        at("put", ctx.task_idx)


def finish_task(sink: FaultySink, blocks: list[Block], ctx: Any, context: DataContext) -> None:
    """Do the rest of a write task that is prepared."""
    sink._write(blocks, ctx)
    assert context.checkpoint_config is not None
    writer = FaultyWriter(context.checkpoint_config)
    for pending in ctx.kwargs[PENDING_CHECKPOINTS_KWARG_NAME]:
        writer.commit_checkpoint(pending)


class Unpadded(FilenameProvider):
    """Custom file names whose task numbers are not padded with zeros."""

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        return f"{write_uuid}_{task_index}.parquet"


class Beyond(FilenameProvider):
    """Ray's default file names as in a job with more than a million tasks: task 1 gets the number
    100,000, and tasks 10 to 19 get 1,000,000 and the numbers after it."""

    def get_filename_for_task(self, write_uuid: str, task_index: int) -> str:
        number = {1: 100_000, **{task: 999_990 + task for task in range(10, 20)}}
        return super().get_filename_for_task(write_uuid, number.get(task_index, task_index))


NAMES = {"": FilenameProvider, "unpadded": Unpadded, "beyond": Beyond}


def exploded(table: pa.Table) -> pa.Table:
    parts = table.column("parts").combine_chunks()
    rows = table.drop_columns(["parts"]).take(parts.value_parent_indices())
    return rows.append_column("parts", parts.flatten())


def main(source: str, output: str, checkpoint: str) -> None:
    ray.init(num_cpus=CPUS, log_to_driver=False, include_dashboard=False)
    configure(checkpoint)
    CheckpointWriter.create = staticmethod(FaultyWriter)  # type: ignore[method-assign]
    store = s3(os.environ["AWS_ENDPOINT_URL"])
    dataset = ray.data.read_parquet(source, filesystem=store, override_num_blocks=FILES)
    if "EXPLODE" in os.environ:
        dataset = dataset.map_batches(exploded, batch_size=None, batch_format="pyarrow")
        dataset = dataset.repartition(target_num_rows_per_block=CHILDREN_PER_BLOCK)
    names = NAMES[os.environ.get("FILE_NAMES", "")](file_format="parquet")
    sink = FaultySink(output, filesystem=store, filename_provider=names)
    # different arguments than the steps keep Ray Data from fusing the write into their tasks
    dataset.write_datasink(sink, ray_remote_args={"num_cpus": WRITE_CPUS})


if __name__ == "__main__":
    main(*sys.argv[1:])
