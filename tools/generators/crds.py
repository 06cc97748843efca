"""Generates the CustomResourceDefinitions."""

from typing import Any

from batchinference.spec.base import DNS_LABEL
from batchinference.spec.crd_schema import Schema, structural_schema, without_defaults
from batchinference.spec.job import (
    GROUP,
    KIND,
    MAX_NAME,
    MUTABLE,
    MUTABLE_LIMITS,
    MUTABLE_OF_STEP,
    PLURAL,
    SCHEDULE_KIND,
    VERSION,
    BatchInferenceSpec,
)
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference.spec.schedule import (
    MAX_SCHEDULE_NAME,
    SCHEDULE_PLURAL,
    ScheduleSpec,
    ScheduleStatus,
)
from batchinference.spec.status import BatchInferenceStatus

OF_PLATFORM = {"cluster", *(str(field.alias) for field in PlatformDefaults.model_fields.values())}
"""Fields of the spec for which the platform can set defaults. Those of `cluster` are fields of the
chart value `defaults` itself."""
OWNERS = ("self", "oldSelf")
"""The variables of CEL with the new and the old spec."""
PRINTER_COLUMNS = (
    ("Phase", "string", ".status.phase", 0),
    ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", 0),
    ("Progress", "integer", ".status.progress.percent", 0),
    ("Rows", "integer", ".status.progress.rows", 0),
    ("Failed", "integer", ".status.counts.failed", 0),
    ("RowsPerSecond", "number", ".status.progress.rowsPerSecond", 0),
    ("ETA", "string", ".status.progress.eta", 0),
    ("Attempts", "integer", ".status.attempt", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Devices", "integer", ".status.devices", 1),
    ("Warnings", "integer", ".status.counts.warned", 1),
    ("Cost", "string", ".status.cost.amount", 1),
    ("RayJob", "string", ".status.rayJobName", 1),
    ("Message", "string", ".status.conditions[?(@.type=='Ready')].message", 1),
)
SCHEDULE_COLUMNS = (
    ("Schedule", "string", ".spec.schedule", 0),
    ("Time Zone", "string", ".spec.timeZone", 0),
    ("Suspend", "boolean", ".spec.suspend", 0),
    ("Active", "string", ".status.active", 0),
    ("Last Schedule", "date", ".status.lastScheduleTime", 0),
    ("Next Schedule", "string", ".status.nextScheduleTime", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason", 1),
    ("Missed", "integer", ".status.missedRuns", 1),
    ("Message", "string", ".status.conditions[?(@.type=='Ready')].message", 1),
)
_Columns = tuple[tuple[str, str, str, int], ...]


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD of BatchInferences as plain data."""
    description = (
        "One job of offline inference: what to read, which models to run over it and where to "
        "write."
    )
    root = _root(description, MAX_NAME, _spec(), structural_schema(BatchInferenceStatus))
    version = _version(PRINTER_COLUMNS, root)
    version["selectableFields"] = [{"jsonPath": ".status.phase"}]
    return _definition(KIND, PLURAL, {"shortNames": ["bi"], "categories": ["all"]}, version)


def schedule_definition() -> dict[str, Any]:
    """Return the CRD of BatchInferenceSchedules as plain data."""
    spec = structural_schema(ScheduleSpec)
    description = "Creates BatchInferences at the times of a cron schedule."
    root = _root(description, MAX_SCHEDULE_NAME, spec, structural_schema(ScheduleStatus))
    version = _version(SCHEDULE_COLUMNS, root)
    return _definition(SCHEDULE_KIND, SCHEDULE_PLURAL, {"shortNames": ["bis"]}, version)


def _definition(
    kind: str, plural: str, names: dict[str, list[str]], version: Schema
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **names,
            },
            "versions": [version],
        },
    }


def _version(columns: _Columns, root: Schema) -> Schema:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, **({"priority": 1} if wide else {})}
            for name, kind, path, wide in columns
        ],
        "schema": {"openAPIV3Schema": root},
    }


def _root(description: str, max_name: int, spec: Schema, status: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.matches('{DNS_LABEL}') "
                f"&& size(self.metadata.name) <= {max_name}",
                "message": f"metadata.name: at most {max_name} lower-case letters, digits and "
                "'-', beginning with a letter",
            }
        ],
    }


def _spec() -> Schema:
    """Return the schema of the spec, with a rule for each field that cannot be changed.

    Fields of a step have their rules at the items of `steps`. A rule at `steps` compares the names,
    because CEL ignores the order of lists of the type `map`, but the order of steps matters.
    """
    spec = structural_schema(BatchInferenceSpec)
    for section in OF_PLATFORM & spec["properties"].keys():
        # otherwise the API server sets these defaults, and those of the platform have no effect
        spec["properties"][section] = without_defaults(spec["properties"][section])
    fixed = [name for name in spec["properties"] if name not in (*MUTABLE, "steps", "errors")]
    errors = spec["properties"]["errors"]["properties"]
    order = "self.steps.map(step, step.name) == oldSelf.steps.map(step, step.name)"
    spec["x-kubernetes-validations"] = [
        *(_unchanged(name) for name in fixed),
        _rule("steps", f"has(self.steps) == has(oldSelf.steps) && (!has(self.steps) || {order})"),
        *(
            _rule(
                f"errors.{name}", " == ".join(_field_of_errors(one, name, field) for one in OWNERS)
            )
            for name, field in errors.items()
            if name not in MUTABLE_LIMITS
        ),
    ]
    step = spec["properties"]["steps"]["items"]
    step["x-kubernetes-validations"] = [
        _unchanged(name) for name in step["properties"] if name not in ("name", *MUTABLE_OF_STEP)
    ]
    spec["properties"]["steps"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    return spec


def _unchanged(name: str) -> Schema:
    """Return the rule that an update neither adds nor changes nor removes a field."""
    same = f"has(oldSelf.{name}) && self.{name} == oldSelf.{name}"
    return _rule(name, f"has(self.{name}) ? {same} : !has(oldSelf.{name})")


def _field_of_errors(owner: str, name: str, schema: Schema) -> str:
    """Return a CEL expression for a field of `errors`; its value is a default without the field."""
    absent = "false" if schema["type"] == "boolean" else "''"
    given = f"has({owner}.errors) && has({owner}.errors.{name})"
    return f"({given} ? {owner}.errors.{name} : {absent})"


def _rule(field: str, rule: str) -> Schema:
    return {"rule": rule, "message": _IMMUTABLE, "fieldPath": f".{field}"}


_IMMUTABLE = "cannot be changed. Create a new BatchInference"
