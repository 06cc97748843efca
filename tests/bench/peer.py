"""The job of turnaround.py complete, hand-written with Ray Data."""

import os

import numpy as np
import pyarrow.fs
import ray
import torch
import transformers

MODEL = "/tmp/minilm"


def s3() -> pyarrow.fs.S3FileSystem:
    return pyarrow.fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], region="us-east-1"
    )


class Embed:
    def __init__(self) -> None:
        torch.set_num_threads(1)
        os.makedirs(MODEL, exist_ok=True)
        pyarrow.fs.copy_files(os.environ["PEER_MODEL"], MODEL, s3(), pyarrow.fs.LocalFileSystem())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        self.model = transformers.AutoModel.from_pretrained(MODEL).eval()

    @torch.inference_mode()
    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tokens = self.tokenizer(
            list(batch["text"]), padding=True, truncation=True, return_tensors="pt"
        )
        states = self.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        mean = (states * mask).sum(1) / mask.sum(1)
        batch["embedding"] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return batch


def main() -> None:
    ray.init()
    dataset = ray.data.read_text(os.environ["PEER_INPUT"], filesystem=s3())
    dataset = dataset.map_batches(
        Embed, batch_size=64, num_gpus=1, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=1)
    )
    dataset.write_parquet(os.environ["PEER_OUTPUT"], filesystem=s3())


if __name__ == "__main__":
    main()
