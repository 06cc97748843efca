"""docs/policy.md describes each value of the policy, and shows a current message."""

from __future__ import annotations

import re

import yaml

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec import parse
from support.cluster.deployment import CHART
from support.documents.minimal import document
from support.documents.pages import ROOT, blocks

PAGE = "docs/policy.md"


def test_each_policy_value_is_described_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| `?([^|`]+)`?.* \|$", (ROOT / PAGE).read_text(), re.M)
    shown = {"true": True, "false": False, "1000000000": 10**9}
    described = {name: shown.get(default) for name, default in rows}
    defaults = PlatformPolicy().model_dump(by_alias=True)
    assert described == {**defaults, "volumes": None, "annotations": None, "notifications": None}


def test_page_names_the_fields_whose_change_is_checked() -> None:
    template = (CHART / "templates" / "admission-policy.yaml").read_text()
    compared = re.findall(r"object\.spec\.\?(\w+) != oldObject", template)
    checked = re.search(r"is checked only if it changes (.*?) or the", (ROOT / PAGE).read_text())
    assert checked is not None
    assert re.findall(r"`(\w+)`", checked[1]) == compared


def test_page_shows_the_message_of_the_policy() -> None:
    (values,) = blocks(PAGE, "yaml")
    policy = PlatformPolicy.model_validate(yaml.safe_load(values)["policy"])
    (problem,) = policy.check_spec(parse(document(cluster={"image": "docker.io/app:1"})).spec)
    (message,) = blocks(PAGE, "text")
    assert message.strip() == str(problem)
