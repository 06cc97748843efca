"""Loading YAML: each text yields a job or a readable error."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec import SpecError, load_documents, parse, parse_one
from support.documents.minimal import document
from support.documents.refusals import refused_text, short
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
    assert [parse(found).metadata.name for found in load_documents(text)] == names


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
        ("kind: batchInference\n", f"{NOT_FOUND} batchInference"),
        ("kind:\n", f"{NOT_FOUND} None"),
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
    ("text", "reason"),
    [
        ("a: [", "line 1, column 5: expected the node content, but found '<stream end>'"),
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("a:\n  b: 1\n   c: 2", "line 3, column 5: mapping values are not allowed here"),
        (
            "a:\n  b: [1]\n   c: 2",
            "line 3, column 4: the line begins in column 4, but the keys of the block that "
            "begins in line 2 begin in column 3. Indent them alike",
        ),
        (
            "a:\n  b: 1\n c: 2",
            "line 3, column 2: the line begins in column 2, but the keys of the block that "
            "begins in line 1 begin in column 1. Indent them alike",
        ),
        (
            "a:\n  - b\n - c",
            "line 3, column 2: the line begins in column 2, but the keys of the block that "
            "begins in line 1 begin in column 1. Indent them alike",
        ),
        (
            "a:\n  b: 1\n  - c",
            "line 3, column 3: this is none of the keys of the block that begins in line 2.",
        ),
        ("a:\n\t- b", "line 2, column 1: found character '\\t' that cannot start any token"),
        ("'open", "line 1, column 6: found unexpected end of stream"),
        ("a: *b", "line 1, column 4: found undefined alias 'b'"),
        ("a: @b", "line 1, column 4: found character '@' that cannot start any token"),
        ("{a: f(b, 'c')}", "line 1, column 13: expected ',' or '}', but got '<scalar>'; add the "),
        ("{a: b in [1, 2]}", "line 1, column 10: expected ',' or '}', but got '['; add the ','"),
        ("? [a]\n: b", "line 1, column 3: found unhashable key"),
        ("? {a: b}\n: b", "line 1, column 3: found unhashable key"),
        ("<<: 1", "line 1, column 5: expected a mapping or list of mappings for merging, but"),
        ("a: !own b", "line 1, column 4: could not determine a constructor for the tag '!own'"),
        ("!!python/object/apply:os.system [ls]", "line 1, column 1: could not determine a const"),
        ("a: \0", "unacceptable character #x0000: special characters are not allowed"),
        ("a: \x1b[2J", "unacceptable character #x001b: special characters are not allowed"),
        ("a: \ud800", "unacceptable character #xd800: special characters are not allowed"),
        ("[" * 5000, "nested too deeply"),
        ("{a: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        ("- " * 5000 + "a", "nested too deeply"),
        ("a: 2026-13-45", "line 1, column 4: cannot be read as timestamp; put it in quotes if it"),
        ("a: 2026-01-02T25:00:00", "line 1, column 4: cannot be read as timestamp"),
        ("a: 2026-01-02T03:04:05+99:00", "line 1, column 4: cannot be read as timestamp"),
        ("a: !!timestamp b", "line 1, column 4: cannot be read as timestamp"),
        ("a: !!int b", "line 1, column 4: cannot be read as int"),
        ("a: !!float b", "line 1, column 4: cannot be read as float"),
        ("a: !!bool b", "line 1, column 4: cannot be read as bool"),
        ("a: !!binary x", "line 1, column 4: failed to decode base64 data"),
        ("a: 0x_", "line 1, column 4: cannot be read as int"),
        ("a: " + "9" * 5000, "line 1, column 4: cannot be read as int"),
        ("a: 0x" + "f" * 5000, "line 1, column 4: cannot be read as int"),
        ("2026-13-45: a", "line 1, column 1: cannot be read as timestamp"),
    ],
    ids=short,
)
def test_invalid_yaml_is_refused(text: str, reason: str) -> None:
    found = refused_text(text)
    assert found.startswith(f"not valid YAML: {reason}")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (JOB + "kind: BatchInference\n", 8, "kind"),
        (JOB.replace("paths: [in]", "paths: [in], paths: [in]"), 6, "paths"),
        (JOB.replace("  name: job", "  name: job\n  'name': other"), 5, "name"),
        (JOB + "status: {1: a, 1: b}\n", 8, "1"),
        (JOB + "status: [{a: [{b: 1, b: 1}]}]\n", 8, "b"),
        (OTHER + "kind: Pod\n", 4, "kind"),
    ],
)
def test_yaml_duplicate_key_is_refused(text: str, line: int, key: str) -> None:
    found = refused_text(text)
    assert found.startswith(f"not valid YAML: line {line}, column ")
    assert found.endswith(f": the key '{key}' is given twice. Remove one of them")


def test_yaml_keys_of_different_type_or_case_are_distinct() -> None:
    (found,) = load_documents("kind: BatchInference\nstatus: {1: a, '1': b, Kind: c, kind: d}\n")
    assert found["status"] == {1: "a", "1": "b", "Kind": "c", "kind": "d"}


MERGES: dict[str, Any] = {
    "status: {<<: {a: 1, b: 2}, b: 3}": {"a": 1, "b": 3},
    "status: {b: 3, <<: {a: 1, b: 2}}": {"a": 1, "b": 3},
    "status: {<<: [{a: 1}, {a: 2, b: 2}]}": {"a": 1, "b": 2},
    "status: {<<: {a: 1}, <<: {b: 2}}": {"a": 1, "b": 2},
    "base: &base {a: 1}\nstatus: {<<: *base, a: 2}": {"a": 2},
    "base: {deep: &deep {<<: {a: 1, b: 2}, a: 3}}\nstatus: {<<: *deep}": {"a": 3, "b": 2},
}


@pytest.mark.parametrize(("text", "status"), MERGES.items())
def test_yaml_merge_keys_are_overridden(text: str, status: Any) -> None:
    (found,) = load_documents(f"kind: BatchInference\n{text}\n")
    assert found["status"] == status


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


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("2026-01-02", ".name: expected a text, got 2026-01-02"),
        ("1:30", ".name: expected a text, got 90"),
        ("on", ".name: expected a text, got true"),
        ("~", ".name: expected a text, got null"),
        (".nan", ".name: expected a text, got nan"),
        ("1e3", ".name: expected lower-case letters, digits and '-', beginning with"),
        ("!!set {a}", ".name: expected a text, got {'a'}"),
        ('"\\ud800"', ".name: expected a text of valid Unicode, got"),
        ("&loop [*loop]", ".name: expected a text, got a list"),
        ("job\n  on: x", ".True: as a key: Keys should be strings"),
    ],
)
def test_yaml_name_of_another_type_is_refused(written: str, message: str) -> None:
    text = JOB.replace("name: job", f"name: {written}")
    assert refused_text(text).startswith(f"metadata{message}")


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


def test_yaml_dump_is_loaded_unchanged() -> None:
    (found,) = load_documents(yaml.safe_dump(document()))
    assert found == document()


LIST = "[{}]".format(",".join(["*a{0}"] * 9))
MAPPING = "{{{{{}}}}}".format(",".join(f"k{number}: *a{{0}}" for number in range(9)))
MERGED = "{{<<: " + LIST + ", k{0}: 1}}"
PLACES = ("read.format", "read.options", "steps", "cluster.env", "cluster.volumes", "parameters",
          "cluster.tolerations", "cluster.affinity", "write.path", "write", "errors")  # fmt: skip


@pytest.mark.parametrize("grows", [LIST, MAPPING, MERGED], ids=["list", "mapping", "merge"])
@pytest.mark.parametrize("place", PLACES)
def test_aliases_that_grow_exponentially_are_refused(place: str, grows: str) -> None:
    """With exponential time, the test would far exceed its timeout."""
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{number + 1}: &a{number + 1} {grows.format(number)}" for number in range(30)]
    path = place.split(".")
    nested = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(["spec", *path]))
    with pytest.raises(SpecError, match=r"not valid YAML: .*more than"):
        load_documents(OTHER + "\n".join(lines) + "\n" + nested.rstrip() + " *a30\n")


@pytest.mark.parametrize("merged", [101, 5])
def test_number_of_merged_keys_is_limited(merged: int) -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(10_005 - merged))
    lists = ", ".join([f"{{a{number}: 1}}" for number in range(merged)])
    with pytest.raises(SpecError, match="more than 100"):
        load_documents(f"kind: a\nb: {{<<: [{lists}], {keys}, z: 1}}\n")
