"""A specification without what may be secret in it, so that it can lie beside the output."""

from __future__ import annotations

from typing import Any

from batchinference.spec.job import BatchInferenceSpec

OWN_ARGUMENTS = {"constructorArgs", "callArgs", "factoryArgs"}
"""Arguments of the user's own code, of which nobody else knows what they are. Elsewhere a valid
specification holds no key: it names the variables that do."""


def without_secrets(spec: BatchInferenceSpec) -> dict[str, Any]:
    """What defines the work, as it stands in the file, without settings of the cluster and without
    arguments of own code. It is valid itself."""
    given = spec.model_dump(mode="json", by_alias=True, exclude={"cluster"}, exclude_unset=True)
    shown: dict[str, Any] = _without(given)
    return shown


def _without(value: Any) -> Any:
    match value:
        case dict():
            kept = value.keys() - OWN_ARGUMENTS
            return {key: _without(child) for key, child in value.items() if key in kept}
        case list():
            return [_without(child) for child in value]
    return value
