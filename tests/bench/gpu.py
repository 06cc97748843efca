"""Compares rows per second on one GPU with the model alone and with a loop without Ray.

    vit      40,000 JPEGs of 400 x 300 pixels: decode, resize to 224 x 224, embeddings with ViT-B/16
             in bf16 (random weights), Parquet
    minilm   200,000 texts of 5 to 40 words: embeddings with MiniLM in bf16, Parquet
    encode   the same with the runtime sentenceTransformers instead of transformers
    memory   a batch with more rows than the GPU has GiB of memory, each of which needs 1 GiB

The model alone computes batches that are already in the memory of the GPU. The loop is a DataLoader
or the `encode` of sentence-transformers. The time of a run over FEW rows is subtracted on both
sides. The case `memory` fails unless all rows are written. `make gpu` runs this; `gpu.py vit` runs
one case.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import torch
import yaml
from gpu_models import BATCHES
from rounds import ROUNDS, sized
from stop_signals import exit_on_signals
from throughput import FEW, HERE, images, run
from throughput import texts as write_texts

from support.documents.minimal import Document, document

TEXTS = (write_texts, sized(200_000))
INPUTS = {"vit": (images, sized(40_000)), "minilm": TEXTS, "encode": TEXTS}
BATCHINFERENCE = [sys.executable, "-m", "batchinference"]
MODELS: dict[str, Document] = {
    "vit": {
        "runtime": "transformers",
        "task": "image-feature-extraction",
        "inputs": {"image": "image"},
    },
    "minilm": {
        "runtime": "transformers",
        "task": "feature-extraction",
        "inputs": {"text": "text"},
        "normalize": True,
    },
    "encode": {"runtime": "sentenceTransformers", "inputs": {"text": "text"}, "normalize": True},
}
READS: dict[str, Document] = {
    "vit": {"format": "images", "options": {"size": [224, 224], "includePaths": True}},
    "minilm": {"format": "text"},
    "encode": {"format": "text"},
}


def job(case: str, source: Path, output: Path, model: Path) -> Document:
    network = {**MODELS[case], "source": str(model), "dtype": "bfloat16", "output": "embedding"}
    embed = {
        "name": "embed",
        "model": network,
        "batchSize": BATCHES[case],
        "resources": {"cpu": 1, "gpu": 1},
    }
    slim = [{"name": "slim", "dropColumns": ["image"]}] if case == "vit" else []
    return document(
        case,
        read={**READS[case], "paths": [str(source)]},
        steps=[embed, *slim],
        write={"format": "parquet", "path": str(output)},
    )


def command_of(who: str, case: str, source: Path, output: Path, model: Path) -> list[str]:
    if who == "loop":
        return [*program("loop", case), str(model), str(source), str(output)]
    return batchinference(job(case, source, output, model), output.with_suffix(".yaml"))


def program(*arguments: str) -> list[str]:
    return [sys.executable, str(HERE / "gpu_models.py"), *arguments]


def batchinference(content: Document, file: Path) -> list[str]:
    file.write_text(yaml.safe_dump(content))
    return [*BATCHINFERENCE, "run", str(file)]


def seconds(command: list[str]) -> float:
    began = time.monotonic()
    run(command)
    return time.monotonic() - began


def measure(case: str, work: Path) -> None:
    """Print the rows per second of the job, of the loop and of the model alone."""
    write, rows = INPUTS[case]
    source, few, model = work / "in", work / "few", work / "model"
    for directory, count in ((source, rows), (few, FEW)):
        directory.mkdir()
        write(directory, count)
    run(program("write", case, str(model)))
    times: dict[str, list[float]] = {"ours": [], "loop": []}
    for number in range(ROUNDS):
        for who, used in times.items():
            output = work / f"{who}-{number}"
            full = seconds(command_of(who, case, source, output, model))
            written = pads.dataset(output).count_rows()
            assert written == rows, written
            start = seconds(command_of(who, case, few, work / f"few-{who}-{number}", model))
            used.append(full - start)
            print(f"{case} {number + 1}: {who} {full:.1f} s, of which {start:.1f} s start")
    report = printed([*BATCHINFERENCE, "status", str(work / "ours-0")])
    print(next(line for line in report.splitlines() if line.startswith("steps")))
    rates = {who: rows / statistics.median(used) for who, used in times.items()}
    alone = float(printed(program("resident", case, str(model), str(source))).splitlines()[-1])
    for who, rate in rates.items():
        print(f"{case} {who} {rate:.0f} rows/s, {rate / alone:.2f} of the model alone", flush=True)
    print(f"{case} model alone {alone:.0f} rows/s", flush=True)


def printed(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def check_memory(work: Path) -> None:
    """Run a job whose batch does not fit into the memory of the GPU, so that it must be divided."""
    source, output = work / "in", work / "out"
    source.mkdir()
    rows = torch.cuda.get_device_properties(0).total_memory // 2**30 + 1
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 4 * rows, pa.float32()), 4)
    pq.write_table(pa.table({"x": vectors}), source / "rows.parquet")
    step = {
        "name": "large",
        "model": {
            "runtime": "torch",
            "factory": "gpu_models:one_gib_per_row",
            "inputs": {"x": "x"},
            "output": "y",
        },
        "batchSize": rows,
        "resources": {"gpu": 1},
    }
    content = document(
        "memory",
        read={"format": "parquet", "paths": [str(source)]},
        steps=[step],
        write={"format": "parquet", "path": str(output)},
    )
    run(batchinference(content, work / "memory.yaml"))
    table = pads.dataset(output).to_table()
    assert table["y"].to_pylist() == table["x"].to_pylist() == [[0.5] * 4] * rows
    print(f"memory: {rows} rows of 1 GiB written")


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("make gpu: PyTorch finds no GPU. Run it on a machine with a CUDA GPU")
    for case in sys.argv[1:] or [*INPUTS, "memory"]:
        with tempfile.TemporaryDirectory() as directory:
            if case == "memory":
                check_memory(Path(directory))
            else:
                measure(case, Path(directory))


if __name__ == "__main__":
    exit_on_signals()
    main()
