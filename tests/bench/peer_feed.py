"""The programs that feed.py compares the product with.

python peer_feed.py CASE WAY INPUT OUTPUT CPUS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feed_models import BATCHES, FirstPixels, Zeros
from peer_throughput import decoded_images, ray_data, write
from texts import MODEL


def loader(source: str, output: str, cpus: int) -> None:
    """Decode images in the workers of a DataLoader of PyTorch."""
    import torch
    from decoding import Images

    files: Any = Images(source)
    torch.set_num_threads(1)
    batches = torch.utils.data.DataLoader(files, batch_size=BATCHES["images"], num_workers=cpus)
    model = FirstPixels()
    numbers = [model({"image": images.numpy()})["number"] for images in batches]
    write(output, pa.table({"number": np.concatenate(numbers)}))


def ray_images(source: str, output: str, cpus: int) -> None:
    """Decode images in tasks of Ray Data, and run the model in a pool."""
    dataset = decoded_images(ray_data(cpus), source, BATCHES["images"])
    _in_pool(dataset, FirstPixels, BATCHES["images"]).write_parquet(output)


def ray_texts(source: str, output: str, cpus: int) -> None:
    """Read texts in tasks of Ray Data, and run the model in a pool."""
    dataset = ray_data(cpus).read_parquet(source)
    _in_pool(dataset, Zeros, BATCHES["texts"]).write_parquet(output)


def loop(source: str, output: str, cpus: int) -> None:
    """Read batches of texts with PyArrow, and run the model on them."""
    model = Zeros()
    texts = (_to_numpy(batch) for batch in _batches(source, BATCHES["texts"]))
    write(output, pa.table({"number": np.concatenate([model(batch)["number"] for batch in texts])}))


def tokenizer(source: str, output: str, cpus: int) -> None:
    """Tokenize texts in threads of the tokenizer, and count the tokens."""
    os.environ["RAYON_NUM_THREADS"] = str(cpus)
    import transformers

    encode = transformers.AutoTokenizer.from_pretrained(MODEL)
    texts = (batch["text"].to_pylist() for batch in _batches(source, BATCHES["tokens"]))
    lengths = (map(len, encode(some, truncation=True)["input_ids"]) for some in texts)
    numbers = np.concatenate([np.fromiter(some, np.int64) for some in lengths])
    write(output, pa.table({"number": numbers}))


def _in_pool(dataset: Any, model: type, rows: int) -> Any:
    from ray.data import ActorPoolStrategy

    pool = ActorPoolStrategy(size=1)
    return dataset.map_batches(model, batch_size=rows, num_cpus=0.1, compute=pool)


def _batches(source: str, rows: int) -> Iterator[pa.RecordBatch]:
    for file in sorted(Path(source).iterdir()):
        yield from pq.ParquetFile(file).iter_batches(rows)


def _to_numpy(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column.to_numpy(zero_copy_only=False) for name, column in columns}


PEERS = {
    "images": {"loader": loader, "ray": ray_images},
    "texts": {"ray": ray_texts, "loop": loop},
    "tokens": {"tokenizer": tokenizer},
}

if __name__ == "__main__":
    case, way, source, output, cpus = sys.argv[1:]
    PEERS[case][way](source, output, int(cpus))
