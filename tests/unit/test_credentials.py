"""Credentials are masked in all texts, and refused in the addresses of a specification."""

from __future__ import annotations

import json
import pickle
import string
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchinference import credentials
from batchinference.credentials import (
    LineMasker,
    SecretVariables,
    add_secrets,
    is_credential,
    without_credentials,
)

SHAPES = (
    "postgresql://user:{}@host/db", "cannot reach https://{}@host/v1", "mysql://u:{}@h?x=1",
    "password={}", "Password={};Server=a", "'password': '{}'", '"db_password": "{}"',
    "aws_secret_access_key = {}", "X-Amz-Signature={}&X-Amz-Date=1", "X-Amz-Security-Token={}",
    "https://s3/b?X-Amz-Credential={}", "AccountName=a;AccountKey={};EndpointSuffix=b",
    "Authorization: Bearer {}", "Authorization: Basic {}", "{{'authorization': 'Bearer {}'}}",
    "bearer {}", "api_key={}", "x-api-key: {}", "HF_TOKEN={}", "GITHUB_TOKEN: {}", "token={}",
    "https://a.blob/c?se=1&sig={}&sv=2", "https://f/api?code={}", "https://a/b?key={}",
    "https://a/b?all=1&subscription-key={}", "Ocp-Apim-Subscription-Key: {}", "client_secret={}",
    "session_token={}", "https://a/b?auth={}", "SharedAccessKey={}", "passwd: {}", "PGPASSWORD={}",
)  # fmt: skip
LETTERS = string.ascii_letters + string.digits + "-_.~+/="
SECRETS = st.text(LETTERS, min_size=6, max_size=60).map("S3cr3t".__add__)
OF_A_TOKEN = st.text(string.ascii_letters + string.digits, min_size=20, max_size=60)
PREFIXES = ("hf_", "sk-", "ghp_", "github_pat_", "glpat-", "xoxb-")


@given(SECRETS, st.sampled_from(SHAPES), st.text(max_size=20), st.text(max_size=20))
@example("pa/ss@word:1/2", SHAPES[0], "", "")
def test_credential_of_any_shape_is_masked(
    secret: str, shape: str, before: str, after: str
) -> None:
    if "://{}@" in shape:
        secret = secret.replace("/", "-")  # without a user name, a slash starts the path
    shown = without_credentials(f"{before} {shape.format(secret)} {after}")
    assert secret not in shown
    assert "***" in shown


@given(OF_A_TOKEN, st.sampled_from(PREFIXES), st.sampled_from((" ", "(", "'", '"', "/", "=")))
def test_token_is_masked_by_its_form(secret: str, prefix: str, before: str) -> None:
    assert secret not in without_credentials(f"refused{before}{prefix}{secret}")


@pytest.fixture(autouse=True)
def values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the values that a test adds."""
    monkeypatch.setattr(credentials, "_values", set())


def test_value_of_a_secret_is_masked_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_API_KEY", "canary-of-a-variable")
    monkeypatch.setenv("OWN_TOKEN", "abc")
    monkeypatch.setenv("PWD", "/home/me")
    add_secrets(["canary-that-was-read", "x"])
    text = "/home/me abc x: canary-of-a-variable, [canary-that-was-read]"
    assert without_credentials(text) == "/home/me abc x: ***, [***]"


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\nMIIEcanary+/=\ncanary\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEcanary",
        "tool --password canary --user me",
        *(
            f"{prefix}canary0123456789abcdef"
            for prefix in ("dapi", "ya29.", "npm_", "pypi-", "nvapi-")
        ),
        "sk_live_canary0123456789abcdef",
        "Password for user me: canary",
        "Cookie: session=canary; other=canary",
        "{'Set-Cookie': 'session=canary; other=canary'}",
        "at postgresql://u:p@canary/canary@h",
        "DB_PASS=canary SIGNING_KEY=canary SSH_KEY: canary GH_PAT=canary db_pass=canary",
    ],
)
def test_further_forms_of_credentials_are_masked(text: str) -> None:
    assert "canary" not in without_credentials(text)


def test_names_of_credentials() -> None:
    secret = ("DB_PASS", "db_pass", "SIGNING_KEY", "SSH_KEY", "GH_PAT", "HF_TOKEN", "PGPASSWORD")
    assert all(map(is_credential, secret))
    assert not any(map(is_credential, ("first_pass", "key", "primary_key", "path", "PATH", "pat")))


@pytest.mark.parametrize(
    "form", [str, repr, json.dumps, partial(json.dumps, ensure_ascii=False), quote,
             lambda value: repr(f"{value} it's \""), lambda value: repr([f"{value}\""])],
)  # fmt: skip
def test_secret_is_masked_in_any_form(monkeypatch: pytest.MonkeyPatch, form: Any) -> None:
    value = "canary'\"\\ é/canary"
    monkeypatch.setenv("OWN_VALUE", f" {value}\n")
    pickle.loads(pickle.dumps(SecretVariables(("OWN_VALUE", "UNSET"))))
    assert "canary" not in without_credentials(f"failed: {form(value)}")


def test_unpickled_names_mask_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = pickle.dumps(SecretVariables(("OWN_VALUE",)))
    monkeypatch.setenv("OWN_VALUE", "value-of-another-process")
    pickle.loads(sent)
    assert without_credentials("x value-of-another-process") == "x ***"


def test_private_key_is_masked_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEcanary+/canary", "ca==",
           "-----END RSA PRIVATE KEY-----"]  # fmt: skip
    lines = ["before", f"key: {key[0]}", *(f"(worker) {part}" for part in key[1:3]), *key[3:],
             "after"]  # fmt: skip
    shown = list(map(LineMasker(), lines))
    assert shown[2:4] == ["(worker) ***", "(worker) ***"]
    assert (shown[0], shown[-1]) == ("before", "after")
    monkeypatch.setenv("OWN_TOKEN", "\n".join(key))
    assert without_credentials(key[1]) == "***"


def test_names_and_the_rest_of_a_text_remain() -> None:
    cases = {
        "at https://u:p@host/x?a=1": "at https://***@host/x?a=1",
        "'http://h/b?se=1&sig=abc%2F=&sv=2'": "'http://h/b?se=1&sig=***&sv=2'",
        "AccountName=a;AccountKey=x==;B=c": "AccountName=a;AccountKey=***;B=c",
        "{'password': 'a b', 'user': 'me'}": "{'password': '***', 'user': 'me'}",
        "Authorization: Bearer abc, status 401": "Authorization: ***, status 401",
    }
    assert {text: without_credentials(text) for text in cases} == cases


@pytest.mark.parametrize(
    "text",
    [
        "max_new_tokens=256, pad_token: <pad>, eos_token_id=2",
        "exit code: 1, status code=500, sorted(key=len)",
        "KeyError: 'key'", "hf_hub_download() from sk-learn of task-specific models",
        "https://host:8080/path?page=2&tokens=5 and s3://bucket/a@b",
        "the model has 512 positions: shorten the prompt",
        "abfss://container@account.dfs.core.windows.net/path",
    ],
)  # fmt: skip
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert without_credentials(text) == text


@pytest.mark.parametrize(
    "part",
    [
        *("://u:p", "://@ ://", "://a@", "password", "bearer ", "x", "[?&key=", '"', "sk-"),
        *("--token ", "password for x ", "-----BEGIN ", "eyJaaaaa.", "token      ", "a-"),
    ],
)
def test_long_text_is_searched_in_linear_time(part: str) -> None:
    """With quadratic time, the test would far exceed its timeout."""
    without_credentials(part * (200_000 // len(part)))
