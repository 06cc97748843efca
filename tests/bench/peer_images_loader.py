"""The case `images` of throughput.py as a loop over a DataLoader of PyTorch.

Its workers read and decode. The main process runs the network.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from decoding import decoded
from models import network


class Images(torch.utils.data.Dataset[np.ndarray]):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> np.ndarray:
        return decoded(self._paths[number])


@torch.inference_mode()
def main(source: str, output: str, cpus: str) -> None:
    paths = sorted(Path(source).iterdir())
    loader = torch.utils.data.DataLoader(Images(paths), batch_size=64, num_workers=int(cpus))
    torch.set_num_threads(1)
    model = network().eval()
    scores = np.concatenate([model(images).numpy() for images in loader])
    Path(output).mkdir()
    table = pa.table({"path": list(map(str, paths)), "scores": list(scores)})
    pq.write_table(table, f"{output}/scores.parquet")


if __name__ == "__main__":
    main(*sys.argv[1:])
