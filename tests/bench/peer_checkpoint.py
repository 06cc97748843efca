"""The job of checkpoint.py, hand-written with Ray Data: `peer_checkpoint.py SOURCE OUTPUT CPUS`.

A fourth argument enables Ray's own checkpoint; it is the checkpoint's path.

Uses version 1 of Ray's Parquet reader. Version 2 packs the small files of this input into one
block, so that nothing is committed before the end, and takes several times as long.
"""

import os
import sys
import time

import pyarrow.fs
import ray
from bench_steps import score
from ray.data import DataContext
from ray.data.checkpoint import CheckpointConfig

BLOCKS = 64


def s3(endpoint: str) -> pyarrow.fs.S3FileSystem:
    return pyarrow.fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1")


def configure(checkpoint: str | None) -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False
    if checkpoint:
        store = s3(os.environ["AWS_ENDPOINT_URL"])
        context.checkpoint_config = CheckpointConfig("id", checkpoint, override_filesystem=store)


def main(source: str, output: str, cpus: str, checkpoint: str | None = None) -> None:
    ray.init(num_cpus=int(cpus), log_to_driver=False, include_dashboard=False)
    began = time.monotonic()
    configure(checkpoint)
    store = s3(os.environ["READ_ENDPOINT"])
    dataset = ray.data.read_parquet(source, filesystem=store, override_num_blocks=BLOCKS)
    dataset = dataset.map_batches(score, batch_size=None)
    dataset.write_parquet(output, filesystem=s3(os.environ["AWS_ENDPOINT_URL"]))
    print(f"seconds={time.monotonic() - began:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
