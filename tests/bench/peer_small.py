"""The case `small` of throughput.py, hand-written with Ray Data."""

import sys

import ray
from functions import lengths


def main(source: str, output: str, cpus: str) -> None:
    ray.init(num_cpus=int(cpus), log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    ray.data.read_text(source).map_batches(lengths).write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
