"""The job of documents.py, hand-written with Ray Data."""

import sys
from typing import Any

import ray
import torch
from documents import chunks_of
from sentence_transformers import SentenceTransformer
from texts import BATCH, MODEL


def chunks(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"path": row["path"], "page": page, "chunk_index": index, "text": text}
        for page, index, text in chunks_of(row["bytes"])
    ]


class Embed:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = SentenceTransformer(MODEL, device="cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = list(batch["text"])
        vectors = self.model.encode(texts, batch_size=BATCH, normalize_embeddings=True)
        return {**batch, "embedding": vectors}


def main(source: str, output: str, cpus: str) -> None:
    ray.init(num_cpus=int(cpus), log_to_driver=False, include_dashboard=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    files = ray.data.read_binary_files(source, include_paths=True)
    # a CPU for each actor would leave none for reading
    pool = ray.data.ActorPoolStrategy(size=int(cpus))
    embedded = files.flat_map(chunks).map_batches(
        Embed, batch_size=BATCH, compute=pool, num_cpus=0.5
    )
    embedded.write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
