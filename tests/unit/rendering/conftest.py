"""Fixtures for the jobs that the suite renders: the files in `jobs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec import parse_one
from support.operator.rendered import Rendered, render

HERE = Path(__file__).parent
JOBS = sorted(file.stem for file in (HERE / "jobs").glob("*.yaml"))


@pytest.fixture(params=JOBS)
def job_name(request: pytest.FixtureRequest) -> str:
    """Return the name of each job."""
    return str(request.param)


@pytest.fixture
def rendered(job_name: str) -> Rendered:
    """Return the objects of each job."""
    return render(parse_one((HERE / "jobs" / f"{job_name}.yaml").read_text()))
