"""The objects of each job in `jobs` equal its file in `golden`.

After an intended change of the rendering, run
`python -m pytest tests/unit/rendering --write-golden` and review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from batchinference.cli.yaml_output import as_yaml
from support.operator.rendered import Rendered

HEADER = "# Written by `python -m pytest tests/unit/rendering --write-golden`; do not edit.\n"


def test_rendered_objects_equal_the_golden_file(
    rendered: Rendered, golden: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--write-golden", default=False):
        golden.write_text(HEADER + as_yaml(rendered.objects))
    assert list(yaml.safe_load_all(golden.read_text())) == rendered.objects


def test_golden_files_and_jobs_match() -> None:
    here = Path(__file__).parent
    kept, jobs = ({file.name for file in (here / name).iterdir()} for name in ("golden", "jobs"))
    assert kept == jobs
