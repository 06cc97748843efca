"""The jobs that the suite renders: those of the folder `jobs`."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.spec import parse_one
from support.rendered import Rendered, render

HERE = Path(__file__).parent
JOBS = sorted(file.stem for file in (HERE / "jobs").glob("*.yaml"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="Write tests/unit/rendering/golden anew from what is rendered now.",
    )


@pytest.fixture(params=JOBS)
def job_name(request: pytest.FixtureRequest) -> str:
    """The name of each job in turn."""
    return str(request.param)


@pytest.fixture
def rendered(job_name: str) -> Rendered:
    """The objects of each job in turn."""
    return render(parse_one((HERE / "jobs" / f"{job_name}.yaml").read_text()))


@pytest.fixture
def golden(job_name: str) -> Path:
    """Where the objects of that job are kept."""
    return HERE / "golden" / f"{job_name}.yaml"
