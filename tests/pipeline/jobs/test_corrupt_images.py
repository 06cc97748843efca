"""Ten thousand images, 37 of which cannot be decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.documents.minimal import document
from support.inputs.corrupt_images import CORRUPT, IMAGES, SIDE, ten_thousand_images
from support.jobs.on_ray import errors_of, run_job
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")


def test_corrupt_images_are_the_only_errors(tmp_path: Path) -> None:
    corrupt = ten_thousand_images(tmp_path / "in")
    options = {"size": [SIDE, SIDE], "includePaths": True}
    job = document(
        "corrupt",
        read={"format": "images", "paths": [str(tmp_path / "in")], "options": options},
        steps=[
            {"name": "brightness", "python": {"callable": "own_code:brightness"}},
            {"name": "slim", "dropColumns": ["image"]},
        ],
        write={"format": "parquet", "path": str(tmp_path / "out")},
        errors={"maxPercent": 1},
    )
    run = run_job(job)
    assert run.report.message is None
    assert run.counts == (IMAGES, IMAGES - CORRUPT, CORRUPT, 0)
    prefix = str(tmp_path / "in") + "/"
    errors = errors_of(tmp_path / "out")
    assert sorted(error["path"].removeprefix(prefix) for error in errors) == corrupt
    assert {error["step"] for error in errors} == {"read"}
    written = {row["path"].removeprefix(prefix) for row in rows_of(tmp_path / "out")}
    assert len(written) == IMAGES - CORRUPT
    assert not written & set(corrupt)
