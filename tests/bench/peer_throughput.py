"""The hand-written programs that throughput.py compares the product with, except that of Daft.

python peer_throughput.py NAME INPUT OUTPUT CPUS

A program imports only what it uses, because the time of imports counts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BLOCKS = 64


def nothing(source: str, output: str, cpus: int) -> None:
    """Start Ray, run an empty task and end: what a job on Ray takes at the least."""
    import ray
    import ray.data

    ray.init(num_cpus=cpus)
    ray.get(ray.remote(lambda: None).remote())
    ray.shutdown()


def ray_data(cpus: int) -> Any:
    """Start Ray and return Ray Data."""
    import ray
    import ray.data

    ray.init(num_cpus=cpus, log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray.data


def decoded_images(data: Any, source: str, rows: int) -> Any:
    """Return a data set of Ray Data with images, which tasks decode."""
    from decoding import decode

    paths = sorted(str(path) for path in Path(source).iterdir())
    dataset = data.from_arrow(pa.table({"path": paths})).repartition(BLOCKS)
    # different arguments than the actors' keep Ray Data from fusing both and running them in turn
    return dataset.map_batches(decode, batch_size=rows, max_calls=0)


class Scores:
    """Runs the network and drops the pixels."""

    def __init__(self) -> None:
        import torch
        from models import network

        torch.set_num_threads(1)
        self.network = network().eval()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import torch

        with torch.inference_mode():
            scores = self.network(torch.tensor(batch["image"])).numpy()
        return {"path": batch["path"], "scores": scores}


def images(source: str, output: str, cpus: int) -> None:
    """Read and decode images in tasks of Ray Data. A pool of one actor runs the network."""
    data = ray_data(cpus)
    pool = data.ActorPoolStrategy(size=1)
    dataset = decoded_images(data, source, 32)
    dataset = dataset.map_batches(Scores, batch_size=64, num_cpus=1, compute=pool)
    dataset.write_parquet(output)


def images_loader(source: str, output: str, cpus: int) -> None:
    """Read and decode images in workers of a DataLoader. The main process runs the network."""
    import torch
    from decoding import Images
    from models import network

    files: Any = Images(source)
    loader = torch.utils.data.DataLoader(files, batch_size=64, num_workers=cpus)
    torch.set_num_threads(1)
    model = network().eval()
    with torch.inference_mode():
        scores = np.concatenate([model(pixels).numpy() for pixels in loader])
    write(output, pa.table({"path": list(map(str, files.paths)), "scores": list(scores)}))


def rows(source: str, output: str, cpus: int) -> None:
    from bench_steps import distance

    data = ray_data(cpus)
    from ray.data.expressions import col, lit

    dataset = data.read_parquet(source).map_batches(distance, batch_size=None)
    dataset.filter(expr=col("distance") < lit(0.5)).write_parquet(output)


def small(source: str, output: str, cpus: int) -> None:
    from bench_steps import lengths

    ray_data(cpus).read_text(source).map_batches(lengths).write_parquet(output)


def texts(source: str, output: str, cpus: int) -> None:
    """Compute embeddings with the `encode` of sentence-transformers."""
    import torch
    from sentence_transformers import SentenceTransformer
    from texts import BATCH, MODEL, read_texts

    torch.set_num_threads(cpus)
    lines = read_texts(Path(source))
    model = SentenceTransformer(MODEL, device="cpu")
    vectors = model.encode(lines, batch_size=BATCH, normalize_embeddings=True)
    write(output, pa.table({"text": lines, "embedding": list(vectors)}))


def write(output: str, table: pa.Table) -> None:
    Path(output).mkdir()
    pq.write_table(table, f"{output}/rows.parquet")


PEERS = {one.__name__: one for one in (nothing, images, images_loader, rows, small, texts)}

if __name__ == "__main__":
    name, source, output, cpus = sys.argv[1:]
    PEERS[name](source, output, int(cpus))
