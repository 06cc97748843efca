"""The objects of some jobs in `jobs` equal their files in `golden`. After an intended change of the
rendering, run `python -m pytest tests/unit/rendering --write-golden` and review the diff."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from batchinference.spec import parse_one
from support.operator.rendered import Object, render

HERE = Path(__file__).parent
HEADER = "# Written by `python -m pytest tests/unit/rendering --write-golden`; do not edit.\n"


@pytest.mark.parametrize("job", ["minimal", "everything", "accelerator-types"])
def test_rendered_objects_equal_the_golden_file(job: str, request: pytest.FixtureRequest) -> None:
    """The golden file contains only the digest of the job file, which has its own tests."""
    objects: list[Object] = render(parse_one((HERE / f"jobs/{job}.yaml").read_text())).objects
    del objects[0]["data"]
    golden = HERE / f"golden/{job}.yaml"
    if request.config.getoption("--write-golden"):
        text = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=None, width=100)
        golden.write_text(HEADER + text)
    assert list(yaml.safe_load_all(golden.read_text())) == objects
