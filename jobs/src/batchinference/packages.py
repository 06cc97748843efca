"""Packages whose versions `doctor` and reports show, and the extras that install them."""

from __future__ import annotations

EXTRAS = {
    "ray": "pipeline",
    "pyarrow": "pipeline",
    "numpy": "pipeline",
    "pillow": "pipeline",
    "torch": "pipeline",
    "transformers": "pipeline",
    "torchvision": "vision",
    "aiohttp": "runtimes",
    "onnxruntime": "runtimes",
    "soundfile": "formats",
    "kubernetes": "cluster",
    "vllm": None,
}
"""The extra that installs each package; None if no extra installs it."""
