"""The case `images` of throughput.py with Daft. It decodes and resizes with its own functions."""

import sys

import daft
import numpy as np
import torch
from daft import DataType, Series, col
from models import network

SIZE = 224


@daft.cls
class Scores:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model = network().eval()

    @daft.method.batch(return_dtype=DataType.list(DataType.float32()), batch_size=64)
    @torch.inference_mode()
    def of(self, images: Series) -> list[list[float]]:
        pixels = np.stack(images.to_pylist())
        scores: list[list[float]] = self.model(torch.from_numpy(pixels)).tolist()
        return scores


def main(source: str, output: str) -> None:
    image = col("path").download().decode_image(mode="RGB").resize(SIZE, SIZE)
    files = daft.from_glob_path(f"{source}/*.jpg").select("path").with_column("image", image)
    files = files.with_column("scores", Scores().of(col("image")))
    files.exclude("image").write_parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:3])
