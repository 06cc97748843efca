"""Resolve constraints.txt anew: lock.py TORCH_VERSION. Needs uv (pip install uv)."""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        pins = Path(directory) / "pins.txt"
        pins.write_text(f"torch=={sys.argv[1]}\n")
        own = Path(directory) / "operator" / "pyproject.toml"
        own.parent.mkdir()
        text = (ROOT / "operator/pyproject.toml").read_text()
        # the package beside it is no matter of the registry
        own.write_text(
            "\n".join(line for line in text.splitlines() if "batchinference==" not in line)
        )
        subprocess.run(
            [
                *(sys.executable, "-m", "uv", "pip", "compile", "--universal", "--upgrade"),
                *("--python-version", "3.11", "--quiet", "--no-header", "--no-annotate"),
                *("--all-extras", "--constraint", str(pins), "--output-file", "constraints.txt"),
                *("jobs/pyproject.toml", str(own), "tests/requirements.txt"),
            ],
            cwd=ROOT,
            check=True,
        )


if __name__ == "__main__":
    main()
