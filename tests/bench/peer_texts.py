"""The case `texts` of throughput.py with the `encode` of sentence-transformers."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer
from texts import BATCH, MODEL, read_texts


def main(source: str, output: str, cpus: str) -> None:
    torch.set_num_threads(int(cpus))
    texts = read_texts(Path(source))
    model = SentenceTransformer(MODEL, device="cpu")
    vectors = model.encode(texts, batch_size=BATCH, normalize_embeddings=True)
    Path(output).mkdir()
    table = pa.table({"text": texts, "embedding": list(vectors)})
    pq.write_table(table, f"{output}/vectors.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
