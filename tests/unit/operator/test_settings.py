"""The settings of the operator: environment, key file and defaults file."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.admission_queue import Concurrency
from batchinference_operator.reconcile.cluster_tokens import cluster_tokens
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.settings import MIN_KEY_BYTES, OperatorSettings
from support.operator.objects import job_body

PREFIX = "BATCHINFERENCE_OPERATOR_"
KEY = b"8f14e45fceea167a5a36dedd4bea2543"
OTHER_KEY = b"c9f0f895fb98ab9159f51fd0297e236d"
JOB = JobView.of(job_body())


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unset all settings except a valid key file."""
    for name in OperatorSettings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)
    (tmp_path / "key").write_bytes(KEY)
    monkeypatch.setenv(PREFIX + "TOKEN_KEY_FILE", str(tmp_path / "key"))


def settings_with_defaults(tmp_path: Path, text: str) -> OperatorSettings:
    path = tmp_path / "defaults.yaml"
    path.write_text(text)
    return OperatorSettings(defaults_file=path)


def test_only_the_key_file_is_required() -> None:
    settings = OperatorSettings()
    assert settings.namespace_list == []
    assert (settings.workers, settings.health_port) == (16, 8080)
    assert (settings.qps, settings.burst) == (500, 1000)
    assert (settings.log_format, settings.log_level) == ("json", "INFO")
    assert settings.for_reconcile().defaults == PlatformDefaults()
    assert settings.for_reconcile().token_key == KEY


def test_key_file_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREFIX + "TOKEN_KEY_FILE")
    with pytest.raises(ValidationError, match="token_key_file"):
        OperatorSettings()


def test_all_settings_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "defaults.yaml").write_text("image: registry/pipeline:1\n")
    for name, value in {
        "DEFAULTS_FILE": str(tmp_path / "defaults.yaml"),
        "NAMESPACES": "team-a, team-b,",
        "WORKERS": "4",
        "MAX_RUNNING": "20",
        "MAX_RUNNING_PER_NAMESPACE": "5",
        "QPS": "20.5",
        "BURST": "30",
        "HEALTH_PORT": "9090",
        "LOG_FORMAT": "plain",
        "LOG_LEVEL": "DEBUG",
    }.items():
        monkeypatch.setenv(PREFIX + name, value)
    settings = OperatorSettings()
    assert settings.namespace_list == ["team-a", "team-b"]
    assert (settings.workers, settings.health_port) == (4, 9090)
    assert (settings.qps, settings.burst) == (20.5, 30)
    assert (settings.log_format, settings.log_level) == ("plain", "DEBUG")
    assert settings.for_reconcile().defaults.image == "registry/pipeline:1"
    assert settings.for_reconcile().concurrency == Concurrency(20, 5)


@pytest.mark.parametrize(
    ("namespaces", "expected"),
    [("", []), (" ", []), (",", []), ("a", ["a"]), (" a ,, b", ["a", "b"])],
    ids=["empty", "blank", "comma", "one", "untidy"],
)
def test_namespaces_are_separated_by_commas(namespaces: str, expected: list[str]) -> None:
    assert OperatorSettings(namespaces=namespaces).namespace_list == expected


@pytest.mark.parametrize("workers", ["0", "-1", "257", "many"])
def test_invalid_number_of_workers_is_refused(
    monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    monkeypatch.setenv(PREFIX + "WORKERS", workers)
    with pytest.raises(ValidationError, match="workers"):
        OperatorSettings()


@pytest.mark.parametrize("content", [b"", b"\n", b"z" * (MIN_KEY_BYTES - 1), b" zzz" + b" " * 40])
def test_short_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ValueError, match=f"holds fewer than {MIN_KEY_BYTES} bytes") as refusal:
        OperatorSettings().for_reconcile()
    assert "zzz" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"k" * 64, b"Summer2026!" * 4, b"0123456789abcdef" * 2])
@pytest.mark.parametrize("name", ["key", "previousKey"])
def test_key_that_is_easy_to_guess_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"{name} holds .* easy to guess; generate one"
    ) as refusal:
        OperatorSettings(previous_token_key_file=tmp_path / "previousKey").for_reconcile()
    assert content.decode() not in str(refusal.value)


def test_key_excludes_a_trailing_newline(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert OperatorSettings().for_reconcile().token_key == KEY


def test_random_bytes_may_end_with_white_space(tmp_path: Path) -> None:
    content = hashlib.sha256(KEY).digest()[1:] + b"\n"
    (tmp_path / "key").write_bytes(content)
    assert OperatorSettings().for_reconcile().token_key == content


def test_tokens_of_the_previous_key_are_known_after_a_rotation(tmp_path: Path) -> None:
    settings = OperatorSettings(previous_token_key_file=tmp_path / "previousKey")
    (former,) = cluster_tokens(settings.for_reconcile(), JOB, "job-1")
    (tmp_path / "previousKey").write_bytes(KEY)
    (tmp_path / "key").write_bytes(OTHER_KEY)
    current, previous = cluster_tokens(settings.for_reconcile(), JOB, "job-1")
    assert current != previous == former


def test_token_differs_by_namespace_name_uid_and_attempt() -> None:
    settings = OperatorSettings().for_reconcile()
    jobs = [JOB, replace(JOB, namespace="b"), replace(JOB, name="b"), replace(JOB, uid="b")]
    tokens = {cluster_tokens(settings, job, name) for job in jobs for name in ("job-1", "job-2")}
    assert len(tokens) == 8
    about = (
        f"batchinference.dev/ray-cluster-token/v1\n{JOB.namespace}\n{JOB.name}\n{JOB.uid}\njob-1"
    )
    known = hmac.new(KEY, about.encode(), "sha256").hexdigest()
    assert cluster_tokens(settings, JOB, "job-1") == (known,), (
        "another version of the operator has the same"
    )


@pytest.mark.parametrize("text", ["", "{}", "# nothing\n"], ids=["empty", "braces", "comment"])
def test_empty_defaults_are_no_defaults(tmp_path: Path, text: str) -> None:
    assert settings_with_defaults(tmp_path, text).for_reconcile().defaults == PlatformDefaults()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("imagePullPolicy: Sometimes", ["imagePullPolicy", "Sometimes", "IfNotPresent"]),
        ("head: {memory: lots}", ["head.memory", "lots"]),
        ("imagePullPolici: Always", ["imagePullPolici", "imagePullPolicy"]),
        ("head: {cpu: -1}", ["head.cpu", "-1"]),
        ("workers: {min: 5, max: 2}", ["workers", "min (5) is above max (2)"]),
        ("[image]", ["expected a mapping, got a list"]),
        ("just text", ["expected a mapping, got 'just text'"]),
        ("image: [", ["defaults.yaml: not valid YAML: line 1"]),
        ("env: [{name: A, value: {x: hunter2}}]", ["env"]),
    ],
    ids=["choice", "quantity", "typo", "number", "pair", "list", "text", "yaml", "password"],
)
def test_invalid_defaults_are_refused_with_file_field_and_value(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    with pytest.raises(ValueError, match=r"defaults\.yaml") as refusal:
        settings_with_defaults(tmp_path, text).for_reconcile()
    message = str(refusal.value)
    assert [each for each in expected if each not in message] == []
    assert "hunter2" not in message
