"""`batchinference plan --format yaml`: the objects that the operator would create for a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from batchinference import __version__
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step
from support.program import Invoke, WriteJob

Render = Callable[..., list[Document]]


@pytest.fixture
def render(invoke: Invoke, write_job: WriteJob) -> Render:
    """Return the rendered objects of a job."""

    def run(*arguments: str, job: Document | None = None) -> list[Document]:
        result = invoke("plan", write_job(job or document("mine")), "-o", "yaml", *arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        return list(yaml.safe_load_all(result.stdout))

    return run


def image(objects: list[Document]) -> str:
    head = objects[2]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    return str(head["spec"]["containers"][0]["image"])


def token(objects: list[Document]) -> str:
    return str(objects[1]["stringData"]["auth_token"])


def test_plan_as_data_has_config_map_secret_and_ray_job(
    render: Render, invoke: Invoke, write_job: WriteJob
) -> None:
    objects = render()
    listed = json.loads(invoke("plan", write_job(document("mine")), "-o", "json").stdout)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    for result in (objects, listed["items"]):
        assert [one["kind"] for one in result] == ["ConfigMap", "Secret", "RayJob"]
    config_map, secret, ray_job = objects
    cluster = ray_job["spec"]["rayClusterSpec"]
    assert config_map["metadata"]["name"] in repr(cluster["headGroupSpec"])
    assert secret["metadata"]["name"] == cluster["authOptions"]["secretName"]
    assert all("ownerReferences" not in one["metadata"] for one in objects)


def test_plan_as_data_creates_a_new_token_and_new_names_each_time(render: Render) -> None:
    first, second = render(), render()
    assert token(first) != token(second)
    assert len(token(first)) >= 32
    assert token(first) not in repr([first[0], first[2]])
    for index in (0, 1):
        assert first[index]["metadata"]["name"] != second[index]["metadata"]["name"]


def test_plan_as_data_uses_the_images_of_this_version_by_default(
    render: Render, directory: Path
) -> None:
    default = f"batchinference/pipeline:{__version__}"
    assert image(render()) == default
    on_gpus = document(steps=[model_step(resources={"gpu": 1})])
    for content in ("", "workers: {max: 3}\n"):
        (directory / "defaults.yaml").write_text(content)
        objects = render("--defaults", "defaults.yaml", job=on_gpus)
        assert image(objects) == default, content
        groups = objects[2]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        images = [one["template"]["spec"]["containers"][0]["image"] for one in groups]
        assert images == [default, f"{default}-cuda"], content


def test_policy_of_the_platform_refuses_jobs_but_not_its_defaults(
    invoke: Invoke, write_job: WriteJob, directory: Path, messages: Messages
) -> None:
    (directory / "defaults.yaml").write_text("image: platform:1\n")
    (directory / "policy.yaml").write_text("images: [registry.example/]\n")
    platform = ["--defaults", "defaults.yaml", "--policy", "policy.yaml"]
    assert invoke("plan", write_job(document()), *platform).exit_code == 0
    file = write_job(document(cluster={"image": "own:2"}))
    result = invoke("plan", file, *platform)
    assert (result.exit_code, result.stderr) == (
        2,
        "job.yaml: spec.cluster.image: 'own:2' is not allowed by the platform (policy.images: "
        "registry.example/). Change or remove it, or ask the platform team\n",
    )
    (directory / "policy.yaml").write_text("image: []\n")
    messages.check(invoke("plan", file, *platform).stderr.strip())


@pytest.mark.parametrize(
    "content",
    [b"imge: a\n", b"workers: {max: 0}\n", b"- a\n", b"a: [\n", b"\xff\xfe\n", None],
    ids=["unknown field", "invalid value", "list", "invalid YAML", "binary", "missing"],
)
def test_invalid_platform_defaults_are_refused(
    invoke: Invoke, write_job: WriteJob, directory: Path, content: bytes | None, messages: Messages
) -> None:
    if content is not None:
        (directory / "defaults.yaml").write_bytes(content)
    result = invoke("plan", write_job(document()), "-o", "yaml", "--defaults", "defaults.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    messages.check(result.stderr)
    assert len(result.stderr.splitlines()) == 1
