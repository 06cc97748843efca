"""Platform settings: YAML in the form of spec.cluster, with defaults and limits of sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchinference.rendering import with_platform_defaults
from batchinference.spec import SpecError, parse_defaults
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.mutable_spec import MutableSpec
from support.documents.minimal import Document, python_step
from support.documents.parsed import job
from support.documents.yaml_files import read_yaml
from support.operator.rendered import render


def refused(text: str) -> str:
    with pytest.raises(SpecError) as refusal:
        parse_defaults(text)
    return str(refusal.value)


def test_platform_settings_are_parsed() -> None:
    text = "image: platform:1\nprofiles: {T4: {nodeSelector: {gpu: t4}}}\n"
    settings = parse_defaults(text)
    assert settings.image == "platform:1"
    assert settings.profiles["T4"].node_selector == {"gpu": "t4"}


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n", "---\n", "null"], ids=repr)
def test_platform_text_without_settings_yields_defaults(text: str) -> None:
    assert parse_defaults(text) == PlatformDefaults()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("imge: a", "imge: unknown field; did you mean 'image'?"),
        ("workers: {max: 0}", "workers.max: expected at least 1, got 0"),
        ("profiles: {T4: {device: NPU}}", "profiles.T4.device: expected a PyTorch device type"),
        ("- image", "expected a mapping, got a list"),
        ("a: [", "not valid YAML: line 1: the '[' is not closed"),
        ("image: a\nimage: b", "not valid YAML: line 2, column 1: the key 'image' is given twice"),
        ("image: a\n---\nimage: b", "expected one document, found 2"),
    ],
)
def test_platform_settings_are_refused(text: str, message: str) -> None:
    assert refused(text).startswith(message)


def test_platform_problems_are_reported_together() -> None:
    assert len(refused("imge: a\nhead: {cpu: 0}").splitlines()) == 2


def test_platform_secret_in_invalid_yaml_is_not_shown() -> None:
    assert "hunter2" not in refused("env: [{name: PASSWORD, value: 'hunter2}]")


PLATFORM = read_yaml(Path(__file__).with_name("platform_sections.yaml"))


@pytest.mark.parametrize("case", PLATFORM["sections"], ids=str)
def test_sections_of_a_job_get_the_defaults_and_limits_of_the_platform(case: Document) -> None:
    """In each attempt, and while a job runs: deadlines and TTLs of a running job can be changed."""
    section, own, expected = case["section"], case["own"], case["expected"]
    defaults = PlatformDefaults.model_validate(PLATFORM["platform"])
    rendered = with_platform_defaults(job(**{section: own}), defaults).spec
    running = MutableSpec.of({section: own}, defaults)
    for result in (getattr(rendered, section), getattr(running, section)):
        dumped = result.model_dump(by_alias=True, exclude_none=True)
        assert {name: dumped[name] for name in expected} == expected


def disk_of(pod: Document) -> tuple[str | None, str | None]:
    """Return the request and the limit of the disk space of a pod."""
    resources = pod["spec"]["containers"][0]["resources"]
    request, limit = (resources[kind].get("ephemeral-storage") for kind in ("requests", "limits"))
    return request, limit


@pytest.mark.parametrize(
    ("own", "head", "worker"),
    [
        ({}, ("0", "10Gi"), ("0", "10Gi")),
        ({"ephemeralStorage": "2Gi"}, ("2Gi", "2Gi"), ("2Gi", "2Gi")),
        ({"ephemeralStorage": "1Ti", "head": {"ephemeralStorage": "3Gi"}},
         ("3Gi", "3Gi"), ("10Gi", "10Gi")),
        ({"head": {"ephemeralStorage": "11Gi"}}, ("10Gi", "10Gi"), ("0", "10Gi")),
    ],
)  # fmt: skip
def test_disk_space_of_pods_is_limited(own: Document, head: str, worker: str) -> None:
    """A limit is no request: pods that use little disk space fit on any node."""
    platform = parse_defaults("image: a\nlimits: {ephemeralStorage: 10Gi}")
    assert [*map(disk_of, render(job(cluster=own), platform).pods)] == [head, worker]


GIB_10 = {"ephemeralStorage": "10Gi"}


@pytest.mark.parametrize(
    ("cluster", "limit", "expected"),
    [
        ({}, None, [(None, None), ("15Gi", None), ("30Gi", None)]),
        (GIB_10, None, [("10Gi", "10Gi"), ("25Gi", "25Gi"), ("40Gi", "40Gi")]),
        ({"head": GIB_10}, "20Gi", [("10Gi", "10Gi"), ("15Gi", "20Gi"), ("20Gi", "20Gi")]),
    ],
)
def test_pods_request_disk_space_for_the_models_of_their_steps(
    cluster: Document, limit: str | None, expected: list[tuple[str, str]]
) -> None:
    """A pod of the group `cpu` runs all steps of the group, and other pods run one of theirs."""
    sizes = {"tag": (0, "5Gi"), "embed": (1, "20Gi"), "rank": (1, "30Gi"), "count": (0, "10Gi")}
    steps = [
        python_step(name, resources={"gpu": gpu, "ephemeralStorage": size})
        for name, (gpu, size) in sizes.items()
    ]
    platform = PlatformDefaults.model_validate(
        {"image": "a", "limits": {"ephemeralStorage": limit} if limit else {}}
    )
    pods = render(job(steps=steps, cluster=cluster), platform).pods
    assert [*map(disk_of, pods)] == expected


def test_file_mode_in_a_patch_may_be_octal() -> None:
    secret = "{name: v, secret: {secretName: s, defaultMode: 0400}}"
    text = f"patches: [{{groups: [head], pod: {{spec: {{volumes: [{secret}]}}}}}}]"
    assert "256" in str(parse_defaults(text).patches)
