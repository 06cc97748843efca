"""Each job of docs/jobs.md runs as it stands."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image
from skimage import data

from support.documentation import blocks, jobs, name_of
from support.documents import Document
from support.outputs import rows_of

PAGE = "docs/jobs.md"
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")
EXPECTED = {"reading": 3, "torch-model": 3, "steps": 2, "bad-rows": 2}
"""Rows that each job writes."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files that the page names."""
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "may.csv").write_text("item;price\npen;2\nink;7\n")
    (tmp_path / "sales" / "june.csv").write_text("item;price\npaper;4\n")
    (tmp_path / "photos").mkdir()
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(tmp_path / "photos" / f"{name}.jpg")
    for topic, lines in {
        "cats": "# cats\ncats sleep long\nmeow\n",
        "dogs": "dogs run a lot\n",
    }.items():
        (tmp_path / "texts" / topic).mkdir(parents=True)
        (tmp_path / "texts" / topic / "notes.txt").write_text(lines)
    (tmp_path / "events.jsonl").write_text('{"id": 1}\n{"id": \n{"id": 3}\n')
    (tmp_path / "steps.py").write_text("\n".join(blocks(PAGE, "python")))
    return tmp_path


def test_the_page_has_the_jobs_that_are_expected() -> None:
    assert [name_of(job) for job in jobs(PAGE)] == list(EXPECTED)


@pytest.mark.parametrize("job", jobs(PAGE), ids=name_of)
def test_a_job_of_the_page_runs(job: Document, directory: Path) -> None:
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    program = Path(sys.executable).parent / "batchinference"
    done = subprocess.run(
        [program, "run", file], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(written(directory / job["spec"]["write"]["path"])) == EXPECTED[name_of(job)]


def written(output: Path) -> list[Document]:
    packed = [gzip.decompress(file.read_bytes()) for file in output.glob("*.jsonl.gz")]
    lines = b"".join(packed).splitlines()
    return rows_of(output) + [json.loads(line) for line in lines]
