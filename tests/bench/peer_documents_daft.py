"""The job of documents.py with Daft."""

import sys
from typing import Any

import daft
import torch
from daft import DataType, Series, col
from documents import chunks_of
from sentence_transformers import SentenceTransformer
from texts import BATCH, MODEL

CHUNK = DataType.struct(
    {"page": DataType.int64(), "chunk_index": DataType.int64(), "text": DataType.string()}
)


@daft.func(return_dtype=DataType.list(CHUNK), use_process=True)  # PDFium has no threads
def chunks(content: bytes) -> list[dict[str, Any]]:
    return [
        {"page": page, "chunk_index": index, "text": text}
        for page, index, text in chunks_of(content)
    ]


@daft.cls
class Embed:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = SentenceTransformer(MODEL, device="cpu")

    @daft.method.batch(return_dtype=DataType.list(DataType.float32()), batch_size=BATCH)
    def of(self, texts: Series) -> list[list[float]]:
        vectors = self.model.encode(
            texts.to_pylist(), batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        rows: list[list[float]] = vectors.tolist()
        return rows


def main(source: str, output: str) -> None:
    files = daft.from_glob_path(f"{source}/*.pdf").select("path")
    rows = files.with_column("chunk", chunks(col("path").download())).explode("chunk")
    names = ("page", "chunk_index", "text")
    rows = rows.select("path", *(col("chunk").get(name).alias(name) for name in names))
    rows.with_column("embedding", Embed().of(col("text"))).write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:3])
