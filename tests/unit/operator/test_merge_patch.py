"""The patch between two statuses, by the rules of RFC 7386."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.status.status import merge_patch
from support.operator.fake_cluster import apply_merge_patch
from support.tiers import examples

KEYS = st.sampled_from("abcd")
LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(old=OBJECTS, new=OBJECTS)
@settings(max_examples=examples(500, 60), deadline=None)
def test_the_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert apply_merge_patch(old, merge_patch(old, new)) == new


@given(old=OBJECTS, new=OBJECTS)
@settings(max_examples=examples(500, 60), deadline=None)
def test_the_patch_is_empty_only_between_equals(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert (merge_patch(old, new) == {}) == (old == new)


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {"phase": "Running"}, {"phase": "Running"}),
        ({"phase": "Running"}, {}, {"phase": None}),
        ({"phase": "Pending", "rows": 1}, {"phase": "Running", "rows": 1}, {"phase": "Running"}),
        (
            {"progress": {"rows": 1, "eta": "5s"}},
            {"progress": {"rows": 2}},
            {"progress": {"rows": 2, "eta": None}},
        ),
        ({"conditions": [1, 2]}, {"conditions": [1, 3]}, {"conditions": [1, 3]}),
        ({"progress": 1}, {"progress": {}}, {"progress": {}}),
        ({"progress": {"rows": 1}}, {"progress": {}}, {"progress": {"rows": None}}),
    ],
    ids=["added", "removed", "changed", "nested", "list-as-a-whole", "to-an-object", "emptied"],
)
def test_patch_contains_only_differences(
    old: dict[str, Any], new: dict[str, Any], patch: dict[str, Any]
) -> None:
    assert merge_patch(old, new) == patch


@given(old=OBJECTS, new=OBJECTS)
@settings(max_examples=examples(100, 20), deadline=None)
def test_neither_status_is_changed_by_the_comparison(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    before = repr((old, new))
    merge_patch(old, new)
    assert repr((old, new)) == before
