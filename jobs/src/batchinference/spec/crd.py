"""The CustomResourceDefinitions, generated from the models."""

from __future__ import annotations

from typing import Any, get_args

from batchinference.spec.base import DNS_LABEL
from batchinference.spec.causes import Cause
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
from batchinference.spec.schedule import (
    MAX_SCHEDULE_NAME,
    SCHEDULE_PLURAL,
    ScheduleSpec,
    ScheduleStatus,
)
from batchinference.spec.schema import Schema, structural_schema
from batchinference.spec.status import BatchInferenceStatus
from batchinference.spec.steps import TUNABLE, Step, to_alias
from batchinference.spec.write import WriteTable

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
TABLES = [get_args(table.model_fields["format"].annotation)[0] for table in get_args(WriteTable)]
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
    template = spec["properties"]["template"]["properties"]
    template["spec"] = {**_template(_spec()), "description": template["spec"]["description"]}
    description = "Creates BatchInferences at the times of a cron schedule."
    root = _root(description, MAX_SCHEDULE_NAME, spec, structural_schema(ScheduleStatus))
    version = _version(SCHEDULE_COLUMNS, root)
    return _definition(SCHEDULE_KIND, SCHEDULE_PLURAL, {"shortNames": ["bis"]}, version)


def _template(schema: Any) -> Any:
    """Return the schema of the BatchInferences that a schedule creates.

    Rules for immutable fields are removed, because a template can be changed. Descriptions are
    removed, because they are in the CRD of BatchInferences.
    """
    if isinstance(schema, list):
        return [_template(child) for child in schema if "oldSelf" not in str(child)]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _template(child)
        for name, child in schema.items()
        if not (name == "description" and isinstance(child, str))
    }


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
    spec = structural_schema(BatchInferenceSpec)
    spec["x-kubernetes-validations"] = [
        {"rule": _unchanged(spec), "message": _IMMUTABLE},
        {
            "rule": "!has(self.steps) || !self.steps.exists(step, has(step.labelFromPath)) || "
            "(has(self.read.options) && has(self.read.options.includePaths) && "
            "self.read.options.includePaths && !has(self.read.options.pathColumn))",
            "message": "a labelFromPath step needs read.options.includePaths: true",
        },
        {
            "rule": "!has(self.errors) || !has(self.errors.retryFailedRows) || "
            "!self.errors.retryFailedRows || "
            f"!(self.write.format in {TABLES})",
            "message": "errors.retryFailedRows: the rows of a table are written in one commit, so "
            "failed rows cannot be retried alone. Remove it",
        },
    ]
    step = spec["properties"]["steps"]["items"]
    step["x-kubernetes-validations"] += [*_step_rules(), _unchanged_step(step)]
    spec["properties"]["steps"] |= {
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    on_cause = spec["properties"]["retry"]["properties"]["onCause"]
    on_cause["x-kubernetes-validations"] = [_known_causes()]
    return spec


def _known_causes() -> Schema:
    known = [cause.value for cause in Cause]
    return {
        "rule": f"self.all(cause, cause in {known})",
        "message": f"there is no such cause, only {', '.join(known)}",
    }


_IMMUTABLE = (
    f"only {', '.join(MUTABLE)}, the limits {', '.join(MUTABLE_LIMITS)} of errors, and "
    f"{', '.join(MUTABLE_OF_STEP)} of steps can be changed: for other rows, create a new "
    "BatchInference"
)


def _unchanged(spec: Schema) -> str:
    """Return the rule that the fields that define the rows do not change.

    Each step has a separate rule. CEL compares lists of the type `map` without their order, but the
    order of the steps matters.
    """
    fixed = [name for name in spec["properties"] if name not in (*MUTABLE, "steps", "errors")]
    same = [_equal(name, required=name in spec["required"]) for name in fixed]
    order = "self.steps.map(step, step.name) == oldSelf.steps.map(step, step.name)"
    same.append(f"has(self.steps) == has(oldSelf.steps) && (!has(self.steps) || {order})")
    errors = spec["properties"]["errors"]["properties"]
    same += [
        f"{_error_field('self', name, field)} == {_error_field('oldSelf', name, field)}"
        for name, field in errors.items()
        if name not in MUTABLE_LIMITS
    ]
    return " && ".join(same)


def _error_field(owner: str, name: str, schema: Schema) -> str:
    """Return a CEL expression for a field of `errors`, with a default if it is absent."""
    absent = "false" if schema["type"] == "boolean" else "''"
    given = f"has({owner}.errors) && has({owner}.errors.{name})"
    return f"({given} ? {owner}.errors.{name} : {absent})"


def _unchanged_step(step: Schema) -> Schema:
    """Return the rule that the fields that define the result of a step do not change."""
    fixed = [name for name in step["properties"] if name not in ("name", *MUTABLE_OF_STEP)]
    return {"rule": " && ".join(map(_equal, fixed)), "message": _IMMUTABLE}


def _equal(name: str, *, required: bool = False) -> str:
    """Return the rule that a field does not change. An optional field is not added or removed."""
    if required:
        return f"self.{name} == oldSelf.{name}"
    given = f"has(self.{name}) == has(oldSelf.{name})"
    return f"{given} && (!has(self.{name}) || self.{name} == oldSelf.{name})"


def _step_rules() -> list[Schema]:
    kinds = [to_alias(kind) for kind in Step.kinds()]
    given = ", ".join(f"has(self.{kind})" for kind in kinds)
    return [
        {
            "rule": f"[{given}].filter(given, given).size() == 1",
            "message": f"a step holds exactly one of {', '.join(kinds)}",
        },
        {
            "rule": f"{' || '.join(f'has(self.{kind})' for kind in TUNABLE)} || "
            "!(has(self.batchSize) || has(self.replicas) || has(self.resources))",
            "message": "batchSize, replicas and resources do not apply to this step. Remove them",
        },
    ]
