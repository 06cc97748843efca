"""Fields that define the rows of a job are immutable. Fields that control its run are mutable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchinference.spec.job import MUTABLE, MUTABLE_LIMITS, MUTABLE_OF_STEP
from support.documents.minimal import document, python_step
from support.documents.variations import (
    REMOVED,
    at,
    changed,
    full_document,
    keys_in,
    keys_of,
    named,
)
from support.documents.yaml_files import read_yaml
from support.servers.api_server import Namespace, Refused
from support.tiers import examples

Document = dict[str, Any]

WORDS = "cannot be changed. Create a new"
FULL = full_document()
CHANGES = read_yaml(Path(__file__).with_name("changes.yaml"))
"""Fields that cannot be added to a job, and fields that can be changed."""


def is_mutable(keys: tuple[str | int, ...]) -> bool:
    """Return whether a field below the spec can be changed."""
    field, *below = keys
    names = {"errors": MUTABLE_LIMITS, "steps": MUTABLE_OF_STEP}.get(str(field), ())
    return field in MUTABLE or any(name in names for name in below[:2])


PLACES = [
    ("spec", *keys)
    for keys in keys_in(FULL["spec"])
    # an absent `errors` equals one with the default path
    if not (is_mutable(keys) or keys == ("errors",))
]
STEP = examples(1, landing=5)
"""A landing tests each fifth value: one rule compares all values below a field of the spec."""


def other(value: Any) -> Any:
    """Return another value of the same type, or a list in another order."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case dict():
            # do not remove a flag: the server would fill in its default again
            kept = [key for key, child in value.items() if isinstance(child, bool)]
            kept += MUTABLE_OF_STEP
            gone = next((key for key in value if key not in kept), next(iter(value)))
            return {key: child for key, child in value.items() if key != gone}
        case _:
            return value[::-1] if value[::-1] != value else value[:-1]


def refusal_of_update(namespace: Namespace, before: Document, after: Document) -> str:
    """Return the message that refuses an update; empty when the server accepts it."""
    metadata = {**after["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
    path = namespace.path("BatchInference", before["metadata"]["name"])
    try:
        namespace.server.call("PUT", path, {**after, "metadata": metadata}, dryRun="All")
    except Refused as refusal:
        return str(refusal)
    return ""


@pytest.mark.scaled("mutations")
def test_immutable_values_cannot_be_changed_or_removed(module_namespace: Namespace) -> None:
    full = module_namespace.create(FULL)
    used = []
    for keys in PLACES[::STEP]:
        after = changed(full, keys, other(at(full, keys)))
        assert after["spec"] != full["spec"], named(keys)
        bodies = {"changed": after}
        if at(full, keys) is not False:  # the server would fill in this default again
            bodies["removed"] = changed(full, keys, REMOVED)
        for kind, body in bodies.items():
            if not is_immutable(refusal_of_update(module_namespace, full, body)):
                used.append(f"{named(keys)} {kind}")
    assert len(PLACES) > 140
    assert used == []


def is_immutable(message: str) -> bool:
    """Return whether an update is refused as a change, or is so invalid that rules do not run."""
    return WORDS in message or "some validation rules were not checked" in message


def field_of(keys: str) -> str:
    """Return the field whose rule refuses a change at `keys`, as the API server names the field."""
    _, field, *below = keys.split(".")
    if field == "steps" and below[1:]:
        return f"spec.steps[{below[0]}].{below[1]}"
    return f"spec.{field}"


def test_immutable_values_cannot_be_added(namespace: Namespace) -> None:
    before = namespace.create(document("job", steps=[python_step()]))
    for keys, value in CHANGES["added"]:
        after = changed(before, keys_of(keys), value)
        message = refusal_of_update(namespace, before, after)
        assert WORDS in message, keys
        assert field_of(keys) in message
        after["metadata"] = {"name": "new"}
        namespace.create(after, dryRun="All")  # valid as a new job


def test_steps_cannot_be_reordered(namespace: Namespace) -> None:
    before = namespace.create(document("job", steps=[python_step("a"), python_step("b")]))
    after = changed(before, ("spec", "steps"), before["spec"]["steps"][::-1])
    assert WORDS in refusal_of_update(namespace, before, after)


def test_metadata_can_be_changed(namespace: Namespace) -> None:
    namespace.create(full_document("job"))
    fields = {"labels": {"team": "vision"}, "annotations": {"team": "vision"}}
    patched = namespace.patch("BatchInference", "job", {"metadata": fields})["metadata"]
    assert {name: patched[name] for name in fields} == fields


def test_mutable_fields_can_be_changed(namespace: Namespace) -> None:
    first = namespace.create(document("job", steps=[python_step()]))
    assert {name.split(".")[1] for name, _ in CHANGES["changeable"]} >= {*MUTABLE, "errors"}
    for keys, value in CHANGES["changeable"]:
        for after in (changed(first, keys_of(keys), value), first):
            before = namespace.get("BatchInference", "job")
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            namespace.server.call("PUT", namespace.path("BatchInference", "job"), after)
            assert namespace.get("BatchInference", "job")["spec"] != before["spec"], keys
    assert namespace.get("BatchInference", "job")["spec"] == first["spec"]


def test_same_spec_can_be_applied_again(namespace: Namespace) -> None:
    """GitOps tools apply the original spec again, without the defaults that the server added."""
    before = namespace.create(full_document("job"))
    again = full_document("job")
    again["metadata"] |= {"resourceVersion": before["metadata"]["resourceVersion"]}
    after = namespace.server.call("PUT", namespace.path("BatchInference", "job"), again)
    assert after["metadata"]["generation"] == 1
