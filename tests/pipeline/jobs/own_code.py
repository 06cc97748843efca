"""User code: functions and classes that the jobs of these tests run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from threading import get_ident
from typing import Any
from uuid import uuid4

import numpy as np

Batch = dict[str, np.ndarray]
OBJECT = 5
SLOW_SECONDS = 0.2


def length(batch: Batch) -> Batch:
    batch["length"] = np.array([len(text) for text in batch["text"]])
    return batch


def to_upper(batch: Batch, mark: str = "!") -> Batch:
    batch["text"] = np.array([str(text).upper() + mark for text in batch["text"]])
    return batch


def refuse_bad(batch: Batch) -> Batch:
    """Raise ValueError if a text of the batch starts with `bad`."""
    for text in batch["text"]:
        if str(text).startswith("bad"):
            raise ValueError(f"cannot do {text}")
    return batch


def sleep_for_rows(batch: Batch, seconds: float = 0.05) -> Batch:
    time.sleep(seconds * len(batch["text"]))
    return batch


def burn_cpu(batch: Batch, seconds: float) -> Batch:
    """Use this CPU time for each row."""
    end = time.thread_time() + seconds * len(batch["text"])
    while time.thread_time() < end:
        pass
    return batch


def wait_for(batch: Batch, file: str) -> Batch:
    """Block each batch that contains the text `hold` until a file exists."""
    if "hold" in batch["text"]:
        while not Path(file).exists():
            time.sleep(0.05)
    return batch


def add_bytes(batch: Batch, count: int) -> Batch:
    """Add a column with this many bytes in each row."""
    batch["bytes"] = np.zeros((len(batch["text"]), count), np.uint8)
    return batch


def die_once(batch: Batch, file: str) -> Batch:
    """Kill its own process the first time. A file records that this has happened."""
    if not Path(file).exists():
        Path(file).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def require_concurrent_tasks(batch: Batch, directory: str, tasks: int) -> Batch:
    """Raise TimeoutError unless this many processes run here at the same time."""
    path = Path(directory) / str(os.getpid())
    path.touch()
    deadline = time.monotonic() + 30
    while len(list(path.parent.iterdir())) < tasks:
        if time.monotonic() > deadline:
            raise TimeoutError("alone")
        time.sleep(0.05)
    return batch


class ReportResources:
    """Reports the resources that Ray assigns to this replica, and the threads of its libraries."""

    def __init__(self) -> None:
        import ray
        import torch
        from threadpoolctl import threadpool_info

        blas = {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}
        self._found = {
            "resources": ray.get_runtime_context().get_assigned_resources(),
            "npus": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
            "threads": [torch.get_num_threads(), *blas],
        }

    def __call__(self, batch: Batch) -> Batch:
        return {**batch, "found": np.array([json.dumps(self._found)] * len(batch["text"]))}


class Replica:
    """Notes the part of a device that this replica has. Texts say what it does."""

    def __init__(self, directory: str) -> None:
        import ray

        part = ray.get_runtime_context().get_assigned_resources()["GPU"]
        self._crashed = Path(directory).with_name("crashed")
        note = f"{part:g} of {os.environ['CUDA_VISIBLE_DEVICES']}"
        Path(directory, f"{os.getpid()}").write_text(note)

    def __call__(self, batch: Batch) -> Batch:
        for text in batch["text"]:
            if text == "crash once" and not self._crashed.exists():
                self._crashed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if text.startswith("wait"):
                time.sleep(0.01)
        return batch


def exit_process(batch: Batch) -> Batch:
    if batch:
        sys.exit("enough")
    return batch


class WaitFor:
    def __call__(self, batch: Batch, file: str) -> Batch:
        return wait_for(batch, file)


class Same:
    """Returns the rows unchanged."""

    def __call__(self, batch: Batch) -> Batch:
        return batch


class Scripted:
    """Does what the texts say: `die` kills the process, `fail` raises, and `hold` waits until the
    file `release` exists. Until then, `slow` takes SLOW_SECONDS. Lists the computed texts in
    files."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def __call__(self, batch: Batch) -> Batch:
        texts = batch["text"].tolist()
        if any(text.startswith("die") for text in texts):
            # the thread ends here, as in native code; it would go on after `os.kill`
            signal.pthread_kill(get_ident(), signal.SIGSEGV)
        if any(text.startswith("fail") for text in texts):
            raise ValueError("a bad text")
        while any(text.startswith("hold") for text in texts) and not self._released():
            time.sleep(0.05)
        if not self._released():
            time.sleep(SLOW_SECONDS * sum(text.startswith("slow") for text in texts))
        (self._directory / f"computed-{uuid4().hex}").write_text("\n".join(texts))
        return batch

    def _released(self) -> bool:
        return (self._directory / "release").exists()


def scripted(batch: Batch, directory: str) -> Batch:
    return Scripted(directory)(batch)


class Die:
    def __call__(self, batch: Batch) -> Batch:
        os.kill(os.getpid(), signal.SIGKILL)
        return batch


class DieInConstructor:
    def __init__(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, batch: Batch) -> Batch:
        return batch


class FailInConstructor:
    def __init__(self) -> None:
        raise ValueError("no weights")

    def __call__(self, batch: Batch) -> Batch:
        return batch


class Suffix:
    """Appends a constant to each text, and adds the id of the process."""

    def __init__(self, suffix: str = "?") -> None:
        self._suffix = suffix

    def __call__(self, batch: Batch) -> Batch:
        batch["text"] = np.array([str(text) + self._suffix for text in batch["text"]])
        batch["process"] = np.full(len(batch["text"]), os.getpid())
        return batch


def words(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"word": word} for word in row["text"].split()]


def letters(row: dict[str, Any]) -> dict[str, Any]:
    if row["word"] == "bad":
        raise ValueError("a bad word")
    return {"letters": list(row["word"])}


class Brightness:
    """Adds the mean of the pixels of each image."""

    def __call__(self, batch: Batch) -> Batch:
        means = [float(np.mean(image)) for image in batch["image"]]
        return {**batch, "brightness": np.array(means)}


def add_columns_of_many_types(batch: Batch) -> Batch:
    """Add columns whose types would change in a conversion to Python objects and back."""
    rows = len(batch["text"])
    batch["small"] = np.array([len(text) for text in batch["text"]], np.int32)
    batch["vector"] = np.ones((rows, 3), dtype=np.float32)
    batch["pixels"] = np.zeros((rows, 2, 2, 3), dtype=np.uint8)
    batch["moment"] = np.full(rows, np.datetime64("2026-01-02T03:04:05", "ms"))
    batch["other"] = np.full(rows, True)
    return batch


def typed(batch: Batch) -> Batch:
    """Add columns of several types, and tensors of one and two dimensions."""
    lengths = np.array([len(text) for text in batch["text"]])
    rows = len(lengths)
    return {
        **batch,
        "small": lengths.astype(np.int8),
        "single": lengths.astype(np.float32),
        "flag": lengths > 1,
        "day": np.full(rows, np.datetime64("2026-01-02", "us")),
        "vector": np.full((rows, 3), 0.5, np.float32),
        "matrix": np.repeat(lengths, 4).reshape(rows, 2, 2),
    }


def kind_of_length(batch: Batch) -> dict[str, Any]:
    kinds = {1: "one a", 2: None, 3: "more %"}
    return {**batch, "kind": [kinds[len(text)] for text in batch["text"]]}


def null_or_empty(batch: Batch) -> dict[str, Any]:
    return {**batch, "other": [{1: None, 2: "NA", 3: ""}[len(text)] for text in batch["text"]]}


def refuse_long(batch: Batch) -> Batch:
    if any(len(text) > 2 for text in batch["text"]):
        raise ValueError("too long")
    return batch


def without_ids(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "custom_id"}


def fail_at_row(batch: Batch, directory: str, at: str) -> Batch:
    """Fail like a broken device at a row as soon as there is a commit of other rows, unless the
    file `repaired` exists."""
    path, texts = Path(directory), batch["text"].tolist()
    if not (path / "repaired").exists() and at in texts:
        deadline = time.monotonic() + 60
        while not list(path.glob("out/_batchinference/attempts/*/0*.json")):
            if time.monotonic() > deadline:
                raise RuntimeError("CUDA error: nobody else commits anything")
            time.sleep(0.05)
        raise RuntimeError("CUDA error: the device is gone")
    return batch


def codes(batch: Batch) -> Batch:
    """Add the characters of each text as numbers, for `own_models:scripted`."""
    return {**batch, "codes": np.array([list(text.encode().ljust(16)) for text in batch["text"]])}


def same(batch: Batch) -> Batch:
    """Return the rows unchanged."""
    return batch
