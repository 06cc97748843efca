"""The job of many_files.py, hand-written with Ray Data: `peer_many_files.py SOURCE OUTPUT`.

Ray's newer reader would read all files in one task and write one file at the end, so the first row
would be the last one. The older reader divides the files among tasks.
"""

import os
import sys

import pyarrow.fs
import ray
from bench_steps import distance


def main(source: str, output: str) -> None:
    ray.init(log_to_driver=False, include_dashboard=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.use_datasource_v2 = False
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    store = pyarrow.fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1")
    dataset = ray.data.read_parquet(source.removeprefix("s3://"), filesystem=store)
    dataset = dataset.map_batches(distance, batch_size=None)
    dataset.write_parquet(output.removeprefix("s3://"), filesystem=store)


if __name__ == "__main__":
    main(*sys.argv[1:])
