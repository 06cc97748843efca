"""Finds the environment variables with secrets that a spec names. Removes arguments of user code,
which may be secret, before a spec is stored."""

import os
from collections.abc import Mapping
from itertools import chain
from typing import Any

from batchinference.credentials import SecretVariables
from batchinference.spec.arguments import USER_CODE_ARGUMENTS
from batchinference.spec.job import BatchInferenceSpec


def secret_variables(spec: BatchInferenceSpec) -> SecretVariables:
    """Return the environment variables with secrets that a spec names."""
    fields = ("url_env", "api_key_env")
    names = [getattr(part, name, None) for part in (spec.read, spec.write) for name in fields]
    for step in spec.steps:
        names += step.facts.secrets
    for webhook in spec.notifications:
        names += [webhook.url_env, webhook.api_key_env]
    environments = [spec.cluster.env, *(each.env for each in spec.cluster.profiles.values())]
    names += [one.name for one in chain(*environments) if one.value_from is not None]
    # without a prefix, the names of variables from a Secret are unknown here
    prefixes = tuple(one.prefix for one in spec.cluster.env_from if one.secret_ref and one.prefix)
    names += [name for name in os.environ if name.startswith(prefixes)]
    return SecretVariables(tuple(sorted(set(filter(None, names)))))


def without_secrets(spec: BatchInferenceSpec) -> dict[str, Any]:
    """Return the spec as plain data, without `cluster` and the arguments of user code. The result
    has only fields that are in the file, and is a valid spec."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude={"cluster"}, exclude_unset=True)
    return without_arguments(dumped)


def without_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec without the arguments of user code."""
    redacted: dict[str, Any] = _redact(fields)
    return redacted


def _redact(value: Any) -> Any:
    match value:
        case dict():
            return {
                key: _redact(child)
                for key, child in value.items()
                if key not in USER_CODE_ARGUMENTS
            }
        case list():
            return [_redact(child) for child in value]
    return value
