"""What is kept of the Hub."""

from __future__ import annotations

import shutil
from pathlib import Path


def kept_on_the_hub(cache: Path, model: str, revision: str, folder: Path) -> None:
    """A folder's files as the Hub's cache holds those of a model at a branch or tag."""
    kept = cache / f"models--{model.replace('/', '--')}"
    commit = revision.encode().hex().ljust(40, "0")
    (kept / "refs").mkdir(parents=True, exist_ok=True)
    (kept / "refs" / revision).write_text(commit)
    shutil.copytree(folder, kept / "snapshots" / commit)
