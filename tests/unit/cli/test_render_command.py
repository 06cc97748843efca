"""`batchinference render`: the objects that the operator would create for a job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from batchinference import __version__
from batchinference.spec import parse_one
from support.documents.minimal import Document, document
from support.documents.parsed import filter_step

Invoke = Callable[..., Result]
WriteJob = Callable[..., str]
Render = Callable[..., list[Document]]


@pytest.fixture
def render(invoke: Invoke, write_job: WriteJob) -> Render:
    """The objects of a job."""

    def run(*arguments: str, job: Document | None = None) -> list[Document]:
        result = invoke("render", write_job(job or document("mine")), *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        return list(yaml.safe_load_all(result.stdout))

    return run


def image(objects: list[Document]) -> str:
    head = objects[2]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    return str(head["spec"]["containers"][0]["image"])


def token(objects: list[Document]) -> str:
    return str(objects[1]["stringData"]["auth_token"])


def test_the_objects_are_what_a_ray_job_needs_and_the_ray_job(render: Render) -> None:
    objects = render()
    assert [one["kind"] for one in objects] == ["ConfigMap", "Secret", "RayJob"]
    config_map, secret, ray_job = objects
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert config_map["metadata"]["name"] in repr(cluster["headGroupSpec"])
    assert secret["metadata"]["name"] == cluster["authOptions"]["secretName"]


def test_config_map_holds_the_job(render: Render) -> None:
    job = document("mine", steps=[filter_step(expression="text != 'für'")])
    there = parse_one(render(job=job)[0]["data"]["job.yaml"])
    assert there.metadata.name == "mine"
    assert there.spec.steps[0].filter == "text != 'für'"


def test_rendered_objects_have_no_owner(render: Render) -> None:
    assert all("ownerReferences" not in one["metadata"] for one in render())


def test_the_token_is_long_and_new_each_time(render: Render) -> None:
    first, second = render(), render()
    assert token(first) != token(second)
    assert len(token(first)) >= 32
    assert token(first) not in repr([first[0], first[2]])


def test_second_rendering_has_other_names(render: Render) -> None:
    first, second = render(), render()
    for index in (0, 1):
        names = [objects[index]["metadata"]["name"] for objects in (first, second)]
        assert names[0] != names[1]


def test_default_image_is_the_pipeline_of_this_version(render: Render) -> None:
    assert image(render()) == f"batchinference/pipeline:{__version__}"


def test_operator_defaults_are_applied(render: Render, directory: Path) -> None:
    (directory / "defaults.yaml").write_text("image: platform:1\nserviceAccountName: batch\n")
    objects = render("--defaults", "defaults.yaml")
    assert image(objects) == "platform:1"
    own = document("mine", cluster={"image": "own:2"})
    assert image(render("--defaults", "defaults.yaml", job=own)) == "own:2"


@pytest.mark.parametrize("content", ["", "workers: {max: 3}\n"], ids=["empty", "without an image"])
def test_defaults_without_image_keep_the_default_image(
    render: Render, directory: Path, content: str
) -> None:
    (directory / "defaults.yaml").write_text(content)
    assert image(render("--defaults", "defaults.yaml")) == f"batchinference/pipeline:{__version__}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            b"imge: a\n", "imge: unknown field; did you mean 'image'?", id="unknown field"
        ),
        pytest.param(
            b"workers: {max: 0}\n",
            "workers.max: Input should be greater than or equal to 1, got 0",
            id="wrong value",
        ),
        pytest.param(b"- a\n", "expected a mapping, got a list", id="no mapping"),
        pytest.param(b"a: [\n", "not valid YAML: ", id="no YAML"),
        pytest.param(b"\xff\xfe\n", "cannot be read: ", id="no text"),
    ],
)
@pytest.mark.parametrize("command", ["render", "plan"])
def test_invalid_defaults_name_their_file(
    invoke: Invoke,
    write_job: WriteJob,
    directory: Path,
    content: bytes,
    message: str,
    command: str,
) -> None:
    (directory / "defaults.yaml").write_bytes(content)
    result = invoke(command, write_job(document()), "--defaults", "defaults.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"defaults.yaml: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_missing_defaults_file_is_refused(invoke: Invoke, write_job: WriteJob) -> None:
    result = invoke("render", write_job(document()), "--defaults", "nowhere.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("nowhere.yaml: cannot be read: ")


def test_conflict_of_defaults_and_job_is_reported(
    invoke: Invoke, write_job: WriteJob, directory: Path
) -> None:
    (directory / "defaults.yaml").write_text("workers: {max: 2}\n")
    file = write_job(document(cluster={"workers": {"min": 5}}))
    result = invoke("render", file, "--defaults", "defaults.yaml")
    assert (result.exit_code, result.stderr) == (
        2,
        "job.yaml: spec.cluster.workers: with the platform's defaults: min (5) is above max (2)\n",
    )


def test_unrunnable_job_is_not_rendered(invoke: Invoke, write_job: WriteJob) -> None:
    job = document(read={"format": "text", "paths": ["./a", "b"]})
    result = invoke("render", write_job(job))
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(": ")[:2] for line in result.stderr.splitlines()] == [
        ["job.yaml", "spec.read.paths[0]"],
        ["job.yaml", "spec.read.paths[1]"],
    ]


def test_the_yaml_is_for_people(invoke: Invoke, write_job: WriteJob) -> None:
    job = document("mine", steps=[filter_step(expression="text != 'für'")])
    text = invoke("render", write_job(job)).stdout
    assert text.count("\n---\n") == 2
    assert "  job.yaml: |\n    apiVersion: batchinference.dev/v1alpha1\n" in text
    assert "&id" not in text


def test_stdin_is_read_for_a_dash(invoke: Invoke) -> None:
    result = invoke("render", "-", stdin=yaml.safe_dump(document()))
    assert len(list(yaml.safe_load_all(result.stdout))) == 3
