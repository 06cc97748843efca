"""The cache of the Hugging Face Hub."""

from __future__ import annotations

import shutil
from pathlib import Path


def add_to_hub_cache(cache: Path, model: str, revision: str, folder: Path) -> None:
    """Add the files of a folder to the Hub's cache as a model at a branch or tag."""
    kept = cache / f"models--{model.replace('/', '--')}"
    commit = revision.encode().hex().ljust(40, "0")
    (kept / "refs").mkdir(parents=True, exist_ok=True)
    (kept / "refs" / revision).write_text(commit)
    shutil.copytree(folder, kept / "snapshots" / commit)
