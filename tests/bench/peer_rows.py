"""The case `rows` of throughput.py, hand-written with Ray Data."""

import sys

import ray
from functions import distance
from ray.data.expressions import col, lit


def main(source: str, output: str, cpus: str) -> None:
    ray.init(num_cpus=int(cpus), log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(source)
    dataset = dataset.map_batches(distance, batch_size=None)
    dataset = dataset.filter(expr=col("distance") < lit(0.5))
    dataset.write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
