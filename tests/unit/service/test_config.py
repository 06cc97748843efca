"""Settings of the service: invalid ones are named before a batch needs them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from batchinference.service.api_error import ApiError
from batchinference.service.api_keys import Keys
from batchinference.service.batch_files import open_store
from batchinference.service.config import parse_config
from batchinference.spec import SpecError
from support.service.running import ANSWER

GOOD: dict[str, Any] = {"name": "a", "spec": {"steps": [ANSWER]}}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "path"),
        ({"path": "ftp://a/b"}, "path"),
        ({"path": "s3://a/b", "maxLines": 0}, "maxLines"),
        ({"path": "s3://a/b", "models": [{"name": "a"}]}, "models[0].spec"),
        ({"path": "s3://a/b", "models": [GOOD, GOOD]}, "models"),
        (
            {"path": "s3://a/b", "models": [GOOD, {"name": "b", "spec": {"read": {}}}]},
            "models[1].spec.read",
        ),
        (
            {"path": "s3://a/b", "models": [{"name": "b", "spec": {"steps": [{"name": "x"}]}}]},
            "models[0].spec.steps[0]",
        ),
    ],
)
def test_the_first_invalid_setting_is_named(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_config(json.dumps(settings))
    assert refused.value.problems[0].path == path


def test_the_spec_of_a_model_may_set_everything_else() -> None:
    spec = {
        "steps": [ANSWER],
        "errors": {"maxRows": 5},
        "deadlines": {"stall": "1h", "total": "9h"},
    }
    models = [{"name": "a", "spec": spec}]
    storage = {"endpoint": "http://s3", "region": "r"}
    text = json.dumps({"path": "s3://a/b", "storage": storage, "models": models})
    config = parse_config(text)
    made = config.spec_of(config.models[0], "s3://a/in", "s3://a/out", "2h")
    assert made["errors"] == {"maxRows": 5}
    assert made["deadlines"] == {"stall": "1h", "total": "2h"}
    assert made["read"]["storage"] == made["write"]["storage"] == storage
    assert config.models[0].spec == spec


def test_a_store_needs_credentials_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "credentials").write_text("[default]\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(OSError, match="s3://a/b"):
        open_store(parse_config(json.dumps({"path": "s3://a/b"})))


def test_only_hashes_of_keys_give_access(tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"key").hexdigest()
    for name, content in {
        "..data": hashed,
        "team": hashed,
        "Team.a": hashed,
        "team.a": "key",
        "team.b": hashlib.sha256(b"other").hexdigest(),
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "team.c").write_bytes(hashlib.sha256(b"key").digest())
    keys = Keys(tmp_path)
    assert keys.namespace_of("Bearer other") == "team"
    with pytest.raises(ApiError):
        keys.namespace_of("Bearer key")


def test_a_key_of_two_namespaces_gives_access_to_none(tmp_path: Path) -> None:
    for name, key in {"a.x": "both", "b.x": "both", "a.y": "one", "a.z": "one"}.items():
        (tmp_path / name).write_text(hashlib.sha256(key.encode()).hexdigest())
    keys = Keys(tmp_path)
    assert keys.namespace_of("Bearer one") == "a"
    with pytest.raises(ApiError):
        keys.namespace_of("Bearer both")
