"""`make screenshots`: run a job over pictures, and write images of its HTML report to
docs/images.

The job runs on Ray. A few of its pictures are truncated, and a few are too dark."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from PIL import Image

from support.browser import DESKTOP, PHONE, ROOT, chromium, opened, save_image
from support.inputs.photographs import photograph
from support.models import tiny_transformers
from support.program import run_program

PICTURES, TRUNCATED, DARK = 400, 5, 12
SHOTS = {
    "report-light": ("light", DESKTOP),
    "report-dark": ("dark", DESKTOP),
    "report-phone": ("light", PHONE),
}
HEIGHT, PHONE_HEIGHT = 1900, 1500
STEPS = """
import numpy as np


def sharpness(batch):
    grey = [np.asarray(image, np.float32).mean(axis=-1) for image in batch["image"]]
    edges = [np.abs(np.diff(each, axis=0)).mean() for each in grey]
    return {**batch, "sharpness": np.array(edges, np.float32).round(2)}
"""
MODEL = {
    "runtime": "transformers",
    "task": "image-feature-extraction",
    "source": "./clip",
    "inputs": {"image": "image"},
    "output": "embedding",
}
JOB = {
    "apiVersion": "batchinference.dev/v1beta1",
    "kind": "BatchInference",
    "metadata": {"name": "photos"},
    "spec": {
        "read": {"format": "images", "paths": ["./photos"],
                 "options": {"size": [224, 224], "includePaths": True}},
        "steps": [
            {"name": "sharpness", "python": {"callable": "pictures:sharpness"}},
            {"name": "clear", "filter": "sharpness > 1"},
            {"name": "embed", "model": MODEL},
        ],
        "write": {"format": "parquet", "path": "./out",
                  "columns": ["image", "path", "sharpness", "embedding"]},
        "errors": {"maxPercent": 5},
    },
}  # fmt: skip


def write_photos(folder: Path) -> None:
    """Write parts of a few photographs. Some are truncated or dark."""
    folder.mkdir()
    sources = [photograph(name) for name in ("astronaut", "coffee", "chelsea", "rocket")]
    random = np.random.default_rng(3)
    for number in range(PICTURES):
        full = sources[number % len(sources)]
        top, left = (int(random.integers(0, size - 250)) for size in full.shape[:2])
        part = full[top : top + 250, left : left + 250]
        if PICTURES // 2 <= number < PICTURES // 2 + DARK:
            part = part // 100
        buffer = io.BytesIO()
        Image.fromarray(part).save(buffer, "jpeg")
        content = buffer.getvalue()
        cut = len(content) // 2 if number % (PICTURES // TRUNCATED) == 50 else len(content)
        (folder / f"photo-{number:04d}.jpg").write_bytes(content[:cut])


def run(folder: Path) -> Path:
    """Run the job in a folder, and return its page."""
    write_photos(folder / "photos")
    (folder / "clip").mkdir()
    tiny_transformers.write("clip", folder / "clip")
    (folder / "pictures.py").write_text(STEPS)
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB, sort_keys=False))
    done = run_program("run", str(folder / "job.yaml"))
    page = folder / "out/_batchinference/report.html"
    if done.exit_code or not page.exists():
        sys.exit(f"the job has failed: {done.output}")
    page.write_text(page.read_text().replace(f"{folder}/", "./"))
    return page


def take(browser: Any, page: Path, name: str) -> None:
    """Write an image of the beginning of a page."""
    scheme, size = SHOTS[name]
    height = PHONE_HEIGHT if size is PHONE else HEIGHT
    with opened(browser, page, scheme, size) as shown:
        full = shown.evaluate("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(height, full)}
        content = shown.screenshot(full_page=True, clip=clip)
    save_image(content, name)


def take_rows(browser: Any, page: Path) -> None:
    """Write an image of the section with rows of the output."""
    with opened(browser, page, "light", DESKTOP) as shown:
        save_image(shown.locator("section[aria-labelledby=sample]").screenshot(), "report-rows")


def main() -> None:
    (ROOT / "docs/images").mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="screenshots-") as folder, chromium() as browser:
        page = run(Path(folder))
        for name in SHOTS:
            take(browser, page, name)
        take_rows(browser, page)


if __name__ == "__main__":
    main()
