"""The case `images` of throughput.py, hand-written with Ray Data.

One task reads and decodes the bytes. A pool of one actor runs the network and drops the pixels.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import ray
import torch
from decoding import decoded
from models import network

BLOCKS = 64


def decode(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    images = [decoded(Path(path)) for path in batch["path"]]
    return {"path": batch["path"], "image": np.stack(images)}


class Scores:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.network = network().eval()

    @torch.inference_mode()
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        scores = self.network(torch.tensor(batch["image"])).numpy()
        return {"path": batch["path"], "scores": scores}


def main(source: str, output: str, cpus: str) -> None:
    ray.init(num_cpus=int(cpus), log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    paths = sorted(str(path) for path in Path(source).iterdir())
    dataset = ray.data.from_arrow(pa.table({"path": paths})).repartition(BLOCKS)
    # different arguments than the actors' keep Ray Data from fusing both and running them in turn
    dataset = dataset.map_batches(decode, batch_size=32, max_calls=0)
    pool = ray.data.ActorPoolStrategy(size=1)
    dataset = dataset.map_batches(Scores, batch_size=64, num_cpus=1, compute=pool)
    dataset.write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
