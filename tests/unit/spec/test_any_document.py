"""Any document is either refused with a readable message or survives a round trip."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec import BatchInference, SpecError, load_documents, parse
from support.documents.minimal import Document
from support.documents.refusals import READ_OPTIONS, refused, short, valid_documents
from support.documents.variations import REMOVED, Keys, at, changed, full_document, keys_in, named
from support.tiers import examples, in_long_tier

DOCUMENTS = list(valid_documents().values())
FREE = {
    "types",
    *("inputs", "options", "properties", "factoryArgs", "constructorArgs", "callArgs", "fields"),
    *("sampling", "body", "headersFrom", "renameColumns", "addColumns", "constructorRefs"),
    *("engine", "jsonSchema", "chatTemplateArgs", "nodeSelector", "custom", "profiles", "onCause"),
    *("labels", "annotations", "matchLabels", "volumeAttributes"),
}
"""Mappings with keys that the user chooses: `options` of a model, but not `options` of `read`."""
STRANGE: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "minus": -1,
    "huge": 10**4000,
    "huge float": 1e308,
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "empty text": "",
    "space": " ",
    "newline": "a\nb",
    "nul": "a\0b",
    "escape": "\x1b[2J",
    "surrogate": "\ud800",
    "unicode": "größe ﷽ \u202e \U0001f469\u200d\U0001f52c",
    "long text": "x" * 100_000,
    "braces": "{a} {0} %s {{",
    "empty list": [],
    "list of null": [None],
    "nested list": [[[]]],
    "long list": ["x"] * 100_000,
    "empty mapping": {},
    "odd keys": {None: 1, True: 2, 1.5: 3, (1, 2): 4},
    "date": dt.date(2026, 1, 2),
    "time": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "bytes": b"\xff\x00",
    "set": {"a"},
}
FULL = full_document()
ALL_PLACES = [keys for keys in keys_in(FULL) if keys[0] != "metadata"]


def user_names_it(keys: Keys) -> bool:
    """Return whether the last key of a place is a name that the user chooses."""
    if keys[:3] == ("spec", "read", "items"):
        return len(keys) > 4
    if keys[:3] == ("spec", "cluster", "rayStartParams"):
        return len(keys) > 3
    if len(keys) < 2 or keys[-2] not in FREE:
        return False
    return keys[-2] != "options" or "model" in keys


@pytest.mark.scaled("properties")
@pytest.mark.parametrize("name", STRANGE)
def test_arbitrary_value_is_accepted_or_refused_at_its_path(name: str) -> None:
    """At a landing, try each value in every 24th place. Together, the values cover all places."""
    every = 1 if in_long_tier() else 24
    for keys in ALL_PLACES[list(STRANGE).index(name) % every :: every]:
        try:
            parse(changed(FULL, keys, STRANGE[name]))
        except SpecError as error:
            for problem in error.problems:
                assert_readable(str(problem))
                assert "\n" not in str(problem)
                parent = named(keys[:-1])
                related = problem.path.startswith(parent) or parent.startswith(problem.path)
                assert related, (keys, str(problem))


@pytest.mark.parametrize(
    ("keys", "value"),
    [(("spec", "write"), "x" * 100_000), (("spec", "steps", 3, "when"), ["x"] * 100_000)],
)
def test_fix_does_not_repeat_a_long_value(keys: Keys, value: object) -> None:
    with pytest.raises(SpecError) as caught:
        parse(changed(FULL, keys, value))
    assert_readable(str(caught.value.problems[0]))


def test_arbitrary_document_is_refused() -> None:
    for value in STRANGE.values():
        assert_readable(refused(value))


def assert_readable(message: str) -> None:
    assert len(message) < 700
    for word in ("instance of", "dictionary", "Traceback", "pydantic"):
        assert word not in message
    message.encode()


@pytest.mark.parametrize("name", ["newField", "größe", "a.b[0]"])
def test_renamed_field_is_refused_at_its_path(name: str) -> None:
    for original in DOCUMENTS:
        for keys in keys_in(original):
            if not isinstance(keys[-1], str) or user_names_it(keys):
                continue
            removed, renamed = changed(original, keys, REMOVED), (*keys[:-1], name)
            with pytest.raises(SpecError) as caught:
                parse(changed(removed, renamed, at(original, keys)))
            result = {problem.path: problem.message for problem in caught.value.problems}
            if keys == ("metadata", "name") or keys[-1] in ("format", "runtime"):
                # without these, the fields that the object may have are unknown
                assert result[named(keys)].startswith("required, but missing")
            else:
                assert result[named(renamed)].startswith("unknown "), (keys, result)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON_VALUES = st.recursive(
    SCALARS
    | st.sampled_from([*READ_OPTIONS, "s3://a/", "8Gi", "a > 1", "m:C", "Exists", "overwrite"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(), below, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(DOCUMENTS), st.data(), JSON_VALUES | st.just(REMOVED))
@settings(max_examples=examples(800), deadline=None)
def test_accepted_job_survives_a_round_trip(
    original: Document, data: st.DataObject, value: Any
) -> None:
    keys = data.draw(st.sampled_from(list(keys_in(original))))
    try:
        job = parse(changed(original, keys, value))
    except SpecError:
        return
    assert_round_trip(job)


def test_valid_documents_survive_a_round_trip() -> None:
    for valid in DOCUMENTS:
        assert_round_trip(parse(valid))


@pytest.mark.parametrize(
    "text",
    ["yes", "1.5", "2026-01-02", "null", "~", "", " x ", "a: b", "# x", "é\u2028", "\x85", "0x1"],
    ids=short,
)
def test_yaml_round_trip_keeps_text_as_text(text: str) -> None:
    keys = ("spec", "cluster", "env", 0, "value")
    assert_round_trip(parse(changed(full_document(), keys, text)))


def assert_round_trip(job: BatchInference) -> None:
    dumped = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert parse(dumped) == job
    (loaded,) = load_documents(yaml.safe_dump(dumped, sort_keys=False))
    assert parse(loaded) == job


def test_valid_documents_use_every_field() -> None:
    schema = BatchInference.model_json_schema(by_alias=True)
    objects = [schema, *schema["$defs"].values()]
    names = {name for item in objects for name in item.get("properties", {})}
    used = {key for valid in DOCUMENTS for keys in keys_in(valid) for key in keys}
    assert names - used - {"status", "namespace"} == set()
