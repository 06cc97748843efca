"""The models of gpu.py, and the programs that it compares them with.

python gpu_models.py write CASE DIRECTORY           save the model of a case
python gpu_models.py resident CASE MODEL INPUT      print rows per second of the model alone
python gpu_models.py loop CASE MODEL INPUT OUTPUT   do the work of a case without Ray
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
from decoding import SIZE, Images
from sentence_transformers import SentenceTransformer
from texts import MODEL, read_texts

BATCHES = {"vit": 256, "minilm": 512, "encode": 512}
MEASURED = 40
"""The number of batches that the model alone computes."""


class OneGibPerRow(torch.nn.Module):
    """Returns its input, and needs 1 GiB of device memory for each row meanwhile."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scratch = torch.zeros((len(x), 2**28), device=x.device)
        return x + scratch[:, : x.shape[1]]


def one_gib_per_row() -> OneGibPerRow:
    return OneGibPerRow()


def write(case: str, directory: str) -> None:
    """Save ViT-B/16 with random weights, or a link to MiniLM."""
    if case != "vit":
        Path(directory).symlink_to(MODEL)
        return
    torch.manual_seed(0)
    network = transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False)
    network.save_pretrained(directory)
    transformers.ViTImageProcessor().save_pretrained(directory)


def resident(case: str, model: str, source: str) -> None:
    """Print the rows per second of the model on batches that are in the memory of the GPU. The
    second pass is measured, because the first one sets up kernels for the shapes of the batches."""
    compute, batches, rows = (_vit if case == "vit" else _minilm)(model, source)
    _computed(compute, batches)
    print(rows / _computed(compute, batches))


@torch.inference_mode()
def _computed(compute: Callable[[Any], Any], batches: list[Any]) -> float:
    """Compute all batches and return the seconds that it took."""
    torch.cuda.synchronize()
    began = time.monotonic()
    for batch in batches:
        compute(batch)
    torch.cuda.synchronize()
    return time.monotonic() - began


def _vit(model: str, source: str) -> tuple[Callable[[Any], Any], list[Any], int]:
    """Return the model, its batches and their number of rows."""
    network = _vision_model(model)
    shape = (BATCHES["vit"], 3, SIZE, SIZE)
    pixels = torch.rand(shape, device="cuda").bfloat16()
    batches = [pixels] * MEASURED
    return (
        (lambda batch: network(batch).last_hidden_state.mean(dim=1)),
        batches,
        len(pixels) * MEASURED,
    )


def _vision_model(model: str) -> torch.nn.Module:
    options = {"dtype": torch.bfloat16, "add_pooling_layer": False}
    network: torch.nn.Module = transformers.ViTModel.from_pretrained(model, **options)
    return network.cuda().eval()


def _minilm(model: str, source: str) -> tuple[Callable[[Any], Any], list[Any], int]:
    """Return the model, batches of tokens that are sorted by length, and their number of rows."""
    network, size = _encoder(model), BATCHES["minilm"]
    texts = sorted(read_texts(Path(source))[: MEASURED * size], key=len)
    parts = (network.preprocess(texts[at : at + size]) for at in range(0, len(texts), size))
    batches = [
        {name: t.cuda() for name, t in part.items() if isinstance(t, torch.Tensor)}
        for part in parts
    ]
    return (lambda batch: network(dict(batch))), batches, len(texts)


def _encoder(model: str) -> SentenceTransformer:
    types = {"dtype": torch.bfloat16}
    return SentenceTransformer(model, device="cuda", model_kwargs=types).eval()


def loop(case: str, model: str, source: str, output: str) -> None:
    """Do the work of a case: a DataLoader for images, `encode` for texts."""
    rows, vectors = (_loop_images if case == "vit" else _loop_texts)(model, source)
    Path(output).mkdir()
    table = pa.table({"row": rows, "embedding": list(vectors)})
    pq.write_table(table, f"{output}/vectors.parquet")


def _loop_images(model: str, source: str) -> tuple[list[str], np.ndarray]:
    """Return paths and embeddings. The pixels are normalized on the GPU."""
    files: Any = Images(source)
    network, workers = _vision_model(model), os.cpu_count() or 1
    loader = torch.utils.data.DataLoader(
        files, batch_size=BATCHES["vit"], num_workers=workers, pin_memory=True
    )
    result = []
    with torch.inference_mode():
        for images in loader:
            pixels = images.cuda(non_blocking=True).permute(0, 3, 1, 2).bfloat16() / 127.5 - 1
            result.append(network(pixels).last_hidden_state.mean(dim=1).float())
    return list(map(str, files.paths)), torch.cat(result).cpu().numpy()


def _loop_texts(model: str, source: str) -> tuple[list[str], np.ndarray]:
    texts = read_texts(Path(source))
    size = BATCHES["minilm"]
    return texts, _encoder(model).encode(texts, batch_size=size, normalize_embeddings=True)


if __name__ == "__main__":
    {"write": write, "resident": resident, "loop": loop}[sys.argv[1]](*sys.argv[2:])
