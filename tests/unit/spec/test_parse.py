"""Loading YAML: each text yields a job or a readable error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec import SpecError, load_documents, parse, parse_one
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.refusals import refused_text, short
from support.documents.yaml_files import read_yaml
from support.tiers import examples

JOB = """\
apiVersion: batchinference.dev/v1beta1
kind: BatchInference
metadata:
  name: job
spec:
  read: {format: text, paths: [in]}
  write: {format: parquet, path: out}
"""
TEXTS = read_yaml(Path(__file__).with_name("yaml_texts.yaml"))
NOT_FOUND = "kind: expected BatchInference, got"
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\n"
EXPECTED = "expected 'apiVersion: batchinference.dev/v1beta1' and 'kind: BatchInference', got"


@pytest.mark.parametrize(
    "text",
    [
        JOB,
        "\ufeff" + JOB,
        JOB.replace("\n", "\r\n"),
        "# a comment\n---\n" + JOB + "...\n",
        "%YAML 1.1\n---\n" + JOB,
        json.dumps(document()),
        "---\n---\n" + JOB + "---\n",
        OTHER + "---\n" + JOB + "---\n" + OTHER,
    ],
    ids=["plain", "mark", "crlf", "comment", "directive", "json", "empty documents", "others"],
)
def test_yaml_job_is_found_among_other_objects(text: str) -> None:
    assert parse_one(text).metadata.name == "job"


def test_yaml_stream_keeps_the_order_of_jobs() -> None:
    names = ["first", "second", "third"]
    text = "---\n".join(JOB.replace("name: job", f"name: {name}") for name in names)
    assert [parse(result).metadata.name for result in load_documents(text)] == names


def test_yaml_with_several_jobs_is_refused_where_one_is_expected() -> None:
    nameless = JOB.replace("\n  name: job", " [x]")
    text = "---\n".join([JOB, JOB.replace("name: job", "name: b"), nameless])
    assert refused_text(text) == "expected one BatchInference, found 3: job, b, without a name"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (empty, f"{NOT_FOUND} an empty document")
            for empty in ("", "\n\n", "# nothing\n", "---\n---\n", "null")
        ),
        (OTHER, f"{NOT_FOUND} ConfigMap"),
        (OTHER + "---\nkind: Pod\n", f"{NOT_FOUND} ConfigMap, Pod"),
        ("kind: batchInference\n", f"{NOT_FOUND} batchInference; did you mean 'BatchInference'?"),
        ("kind:\n", f"{NOT_FOUND} None"),
        (
            "kind: List\nitems: []\n",
            f"{NOT_FOUND} List. Write its items as documents, with a line --- between them",
        ),
        ("Kind: BatchInference\n", f"{EXPECTED} 'Kind'. Write kind"),
        ("kind: [a]\n", f"{NOT_FOUND} ['a']"),
        ("- a\n- b\n", f"{EXPECTED} a list"),
        ("some words", f"{EXPECTED} a text"),
        ("42", f"{EXPECTED} a number"),
        ("yes", f"{EXPECTED} a boolean"),
        ("2026-01-02", f"{EXPECTED} a value of type date"),
        ("spec: {}\n", f"{EXPECTED} a mapping without kind"),
        ("{}", f"{EXPECTED} a mapping without kind"),
        (JOB + "---\n- a\n", f"{EXPECTED} a list"),
    ],
)
def test_yaml_without_a_job_is_refused(text: str, message: str) -> None:
    assert refused_text(text) == message


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS["invalid"],
        "a:\n  b: 1\n c: 2\n" + "#" * 9000,
        "a: 'b' c\n" + "#" * 9000,
        "a: \ud800",
        "[" * 5000,
        "{a: " * 3000 + "1" + "}" * 3000,
        "- " * 5000 + "a",
        "a: " + "9" * 5000,
        "a: 0x" + "f" * 5000,
    ],
    ids=short,
)
def test_invalid_yaml_is_refused(text: str, messages: Messages) -> None:
    result = refused_text(text)
    messages.check(result)
    assert "\n" not in result


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("a: b\nlabels: [" + "label 0, " * 50 + "}}", 21),
        ("a: [" + "a," * 4000 + "}", 5),
        ("a: [" + "a," * 30_000 + "}", 1),
        ("a: [}\n- " + "[" * 29 + "]" * 29, 21),
        ("a: [}\n- " + "[" * 300, 1),
        ("a: [}\n" + "- " * 3000, 3),
    ],
    ids=short,
)
def test_invalid_yaml_is_parsed_a_few_times_only(
    text: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, load = list[str](), yaml.load_all
    monkeypatch.setattr(yaml, "load_all", lambda text, kind: load(texts.append(text) or text, kind))
    refused_text(text)
    assert 1 <= len(texts) <= limit


@pytest.mark.parametrize(
    "text",
    [
        JOB + "kind: BatchInference\n",
        JOB.replace("paths: [in]", "paths: [in], paths: [in]"),
        JOB.replace("  name: job", "  name: job\n  'name': other"),
        JOB + "status: {1: a, 1: b}\n",
        JOB + "status: [{a: [{b: 1, b: 1}]}]\n",
        OTHER + "kind: Pod\n",
    ],
)
def test_yaml_duplicate_key_is_refused(text: str, messages: Messages) -> None:
    messages.check(refused_text(text))


def test_yaml_keys_of_different_type_or_case_are_distinct() -> None:
    (result,) = load_documents("kind: BatchInference\nstatus: {1: a, '1': b, Kind: c, kind: d}\n")
    assert result["status"] == {1: "a", "1": "b", "Kind": "c", "kind": "d"}


@pytest.mark.parametrize(("text", "status"), TEXTS["merges"].items())
def test_yaml_merge_keys_are_overridden(text: str, status: Any) -> None:
    (result,) = load_documents(f"kind: BatchInference\n{text}\n")
    assert result["status"] == status


def test_yaml_anchors_share_fields_between_steps() -> None:
    shared = """
apiVersion: batchinference.dev/v1beta1
kind: BatchInference
metadata: {name: job}
spec:
  read: {format: text, paths: [in]}
  steps:
  - {name: first, python: &own {callable: "m:C", constructorArgs: {a: 1}}}
  - {name: second, python: {<<: *own, callable: "m:D"}}
  write: {format: parquet, path: out}
"""
    first, second = (step.python for step in parse_one(shared).spec.steps)
    assert first
    assert second
    assert (first.callable, second.callable) == ("m:C", "m:D")
    assert first.constructor_args == second.constructor_args == {"a": 1}


@pytest.mark.parametrize("written", TEXTS["names of another type"])
def test_yaml_name_of_another_type_is_refused(written: str, messages: Messages) -> None:
    text = JOB.replace("name: job", f"name: {written}")
    messages.check(refused_text(text))


def test_yaml_aliases_do_not_enlarge_a_message() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 12)]
    text = "\n".join(["kind: BatchInference", "l0: &l0 x", *levels, "spec: *l11", ""])
    assert len(refused_text(text)) < 2000


@given(st.text(alphabet=st.sampled_from("ab:,-[]{}&*!|>'\"#%@`?<\n\t 0123456789._~=+xeTZ\\")))
@settings(max_examples=examples(600), deadline=None)
def test_yaml_random_text_loads_or_raises_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        load_documents("kind: BatchInference\nstatus: " + text)
    with contextlib.suppress(SpecError):
        parse_one(text)


@given(st.text())
@settings(max_examples=examples(500), deadline=None)
def test_yaml_random_unicode_loads_or_raises_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        parse_one(text)


LIST = "[{}]".format(",".join(["*a{0}"] * 9))
MAPPING = "{{{{{}}}}}".format(",".join(f"k{number}: *a{{0}}" for number in range(9)))
MERGED = "{{<<: " + LIST + ", k{0}: 1}}"
PLACES = ("read.format", "read.options", "steps", "cluster.env", "cluster.volumes", "parameters",
          "cluster.tolerations", "cluster.affinity", "write.path", "write", "errors")  # fmt: skip


@pytest.mark.parametrize("grows", [LIST, MAPPING, MERGED], ids=["list", "mapping", "merge"])
@pytest.mark.parametrize("keys", PLACES)
def test_aliases_that_grow_exponentially_are_refused(keys: str, grows: str) -> None:
    """With exponential time, the test would far exceed its timeout."""
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{number + 1}: &a{number + 1} {grows.format(number)}" for number in range(30)]
    path = keys.split(".")
    nested = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(["spec", *path]))
    with pytest.raises(SpecError, match=r"not valid YAML: .*more than"):
        load_documents(OTHER + "\n".join(lines) + "\n" + nested.rstrip() + " *a30\n")


@pytest.mark.parametrize("merged", [101, 5])
def test_number_of_merged_keys_is_limited(merged: int) -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(10_005 - merged))
    lists = ", ".join([f"{{a{number}: 1}}" for number in range(merged)])
    with pytest.raises(SpecError, match="more than 100"):
        load_documents(f"kind: a\nb: {{<<: [{lists}], {keys}, z: 1}}\n")
