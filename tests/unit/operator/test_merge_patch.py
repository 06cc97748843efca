"""The status patch from one status to another, by the rules of RFC 7386."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference_operator.status.job_status import merge_patch
from support.operator.fake_cluster import apply_merge_patch
from support.tiers import examples

KEYS = st.sampled_from("abcd")
LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(old=OBJECTS, new=OBJECTS)
@settings(max_examples=examples(1100, 140), deadline=None)
def test_patch_turns_the_old_status_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = copy.deepcopy((old, new))
    patch = merge_patch(old, new)
    assert (old, new) == before
    assert apply_merge_patch(old, patch) == new
    assert (patch == {}) == (old == new)


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
