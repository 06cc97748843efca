"""What each job of the folder `jobs` becomes, as it is kept in the folder `golden`.

A change of the rendering shows here in full. When it is meant, write the files anew with
`python -m pytest tests/unit/rendering --write-golden`, and read what git says has changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from batchinference.cli.yaml_output import as_yaml
from support.rendered import Rendered

HEADER = "# Written by `python -m pytest tests/unit/rendering --write-golden`; do not edit.\n"


def test_a_job_becomes_the_objects_that_are_kept(
    rendered: Rendered, golden: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--write-golden", default=False):
        golden.write_text(HEADER + as_yaml(rendered.objects))
    assert list(yaml.safe_load_all(golden.read_text())) == rendered.objects


def test_every_file_that_is_kept_belongs_to_a_job() -> None:
    here = Path(__file__).parent
    kept, jobs = ({file.name for file in (here / name).iterdir()} for name in ("golden", "jobs"))
    assert kept == jobs
