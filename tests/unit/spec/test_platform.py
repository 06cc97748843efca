"""Platform settings: YAML in the form of spec.cluster."""

from __future__ import annotations

import pytest

from batchinference.spec import SpecError, parse_defaults
from batchinference.spec.platform_defaults import PlatformDefaults


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
        ("a: [", "not valid YAML: line 1, column 5: "),
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
