"""`batchinference.Job`: the same models, checks and documents as the YAML file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import batchinference
from batchinference import Job
from batchinference.spec import SpecError
from batchinference.spec.read import CsvOptions, ReadCsv
from batchinference.spec.steps import Step
from batchinference.spec.write import WriteParquet
from plugins.messages import Messages
from support.documents.minimal import document

READ = {"format": "csv", "paths": ["a.csv"], "options": {"limit": 10}}
WRITE = {"format": "parquet", "path": "out"}
STEPS = [{"name": "slim", "selectColumns": ["text"]}]


def test_models_mappings_and_yaml_make_the_same_job(tmp_path: Path) -> None:
    by_mappings = Job(READ, WRITE, STEPS, name="pets", errors={"maxRows": 1}, directory=tmp_path)
    by_models = Job(
        ReadCsv(format="csv", paths=["a.csv"], options=CsvOptions(limit=10)),
        WriteParquet(format="parquet", path="out"),
        [Step(name="slim", selectColumns=["text"])],
        name="pets",
        errors={"maxRows": 1},
        directory=tmp_path,
    )
    (tmp_path / "job.yaml").write_text(by_models.to_yaml())
    assert by_mappings.to_dict() == document(
        "pets", read=READ, steps=STEPS, write=WRITE, errors={"maxRows": 1}
    )
    assert by_mappings == by_models == Job.from_yaml(tmp_path / "job.yaml")


def test_relative_paths_are_in_the_directory_of_the_job(tmp_path: Path) -> None:
    job = Job(READ, WRITE, directory=tmp_path)
    assert job.absolute.spec.write.path == str(tmp_path / "out")
    assert Job(READ, {**WRITE, "path": Path("out")}).directory == Path.cwd()


def test_parameters_of_a_file_are_arguments(tmp_path: Path) -> None:
    write = {**WRITE, "path": "out/{{ params.day }}"}
    job = document(parameters=[{"name": "day"}], write=write)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    read = Job.from_yaml(tmp_path / "job.yaml", day="monday")
    assert read.resource.spec.write.path == "out/monday"


def test_job_has_the_same_problems_as_its_file() -> None:
    with pytest.raises(SpecError) as raised:
        Job({**READ, "path": "a"}, WRITE, [{"name": "slim", "selectColumn": []}])
    paths = [problem.path for problem in raised.value.problems]
    assert paths == ["spec.read.path", "spec.steps[0].selectColumn"]


WRONG_CALLS: dict[str, Callable[[], object]] = {
    "steps as a mapping": lambda: Job(READ, WRITE, {"name": "good", "filter": "stars > 3"}),
    "steps as a text": lambda: Job(READ, WRITE, "stars > 3"),
    "no steps": lambda: Job(READ, WRITE, None),  # type: ignore[arg-type]
    "run of a file": lambda: batchinference.run("job.yaml"),  # type: ignore[arg-type]
    "submit of a mapping": lambda: batchinference.submit({}),  # type: ignore[arg-type]
    "no rows": lambda: Job(READ, WRITE).preview(0),
    "rows as a text": lambda: Job(READ, WRITE).preview("5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_wrong_call_names_its_argument(call: Callable[[], object], messages: Messages) -> None:
    with messages.raises(SpecError):
        call()


def test_api_is_imported_when_it_is_first_used() -> None:
    code = "import batchinference, sys; print('pydantic' in sys.modules, batchinference.Job)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False <class 'batchinference.api.job.Job'>\n"
    assert set(batchinference.__all__) < set(dir(batchinference))
    with pytest.raises(AttributeError, match="has no attribute 'Jobs'"):
        batchinference.Jobs  # noqa: B018
