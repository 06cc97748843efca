"""The packages that jobs import, and the extras that install them."""

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
"""The packages whose versions `doctor` and reports state, with the extra of each, if there is
one."""
