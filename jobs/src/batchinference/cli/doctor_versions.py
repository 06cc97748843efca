"""Checks of `doctor` whether the versions of the client, the operator, the CRD, KubeRay and Ray fit
together. The functions read nothing but their arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from batchinference.cli.doctor_finding import Finding, Result

KUBERAY = ((1, 6), (1, 7))
"""The versions of KubeRay with which the end-to-end tests were run. They have all fields of
rendered RayJobs, as tests check. Jobs need at least the first one."""
SHOWN_FIELDS = 5
_VERSION = re.compile(r"(?<![\d.])(\d+)\.(\d+)")
_UPGRADE = "Upgrade the chart: docs/upgrades.md"


def version_of(text: str) -> tuple[int, int] | None:
    """Return the major and minor version in a text such as `v1.6.2`; None if there is none."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else None


def tag_of(image: str) -> str:
    """Return the tag of an image; empty if it has none."""
    name = image.partition("@")[0].rpartition("/")[2]
    return name.partition(":")[2]


def check_operator(operator: str, client: str) -> Finding:
    """Compare the versions of the operator and of this program."""
    name, found = "operator version", f"{operator or 'unknown'}, this program {client}"
    theirs, ours = version_of(operator), version_of(client)
    if theirs is None or theirs == ours:
        return Finding(name, Result.OK, found)
    if ours is None or theirs > ours:
        fix = f"Install version {operator} of this program, or it may refuse fields of newer jobs"
        return Finding(name, Result.NOTE, found, fix)
    fix = f"{_UPGRADE}. Until then, the operator may not know fields of your jobs"
    return Finding(name, Result.NOTE, found, fix)


def check_fields(served: dict[str, Any], known: dict[str, Any]) -> Finding:
    """Compare the schema of BatchInferences on the cluster with the schema of this program."""
    name, theirs, ours = "CRD version", set(fields_of(served)), set(fields_of(known))
    if missing := ours - theirs:
        found = f"the cluster does not know {_shown(missing)}"
        return Finding(name, Result.NOTE, found, f"{_UPGRADE}. Jobs with these fields are refused")
    if extra := theirs - ours:
        found = f"this program does not know {_shown(extra)}"
        return Finding(name, Result.NOTE, found, "Install the version of the operator")
    return Finding(name, Result.OK, "the cluster and this program know the same fields")


def fields_of(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a schema."""
    for name, child in (schema.get("properties") or {}).items():
        field = f"{path}.{name}" if path else name
        yield field
        yield from fields_of(child, field)
    for inner, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(child := schema.get(inner), dict):
            yield from fields_of(child, f"{path}{mark}")


def _shown(fields: set[str]) -> str:
    """Return the first fields as text. A field below another one of `fields` is not shown."""
    ordered = sorted(fields)
    top = [field for field in ordered if _parent(field) not in fields]
    more = f" and {len(top) - SHOWN_FIELDS} more field(s)" if len(top) > SHOWN_FIELDS else ""
    return ", ".join(top[:SHOWN_FIELDS]) + more


def _parent(field: str) -> str:
    return field.rpartition(".")[0].removesuffix("[]").removesuffix(".*")


def check_kuberay(image: str) -> Finding:
    """Compare the version of KubeRay, by the tag of its image, with the tested versions."""
    found, tested = version_of(tag_of(image)), [f"{major}.{minor}" for major, minor in KUBERAY]
    if found in KUBERAY:
        return Finding("KubeRay", Result.OK, image)
    if found is not None and found < KUBERAY[0]:
        fix = f"Jobs need KubeRay {tested[0]}. Upgrade it: docs/upgrades.md#kuberay"
        return Finding("KubeRay", Result.NOTE, image, fix)
    unknown = "unknown version: " if found is None else ""
    advice = f"It is not tested. Tested: {', '.join(tested)}"
    return Finding("KubeRay", Result.NOTE, f"{unknown}{image}", advice)


def check_image(image: str, operator: str, ray: str) -> Finding:
    """Compare the tag of the image of jobs with the version of the operator. `ray` is the version
    of Ray that the image must contain."""
    name, found, needed = "image of jobs", version_of(tag_of(image)), version_of(operator)
    if found is not None and found == needed:
        return Finding(name, Result.OK, f"{image}, with Ray {ray}")
    found_text = f"{image}; the operator has version {operator or 'unknown'}"
    fix = f"Make sure that it contains Ray {ray} and the version of the operator"
    return Finding(name, Result.NOTE, found_text, f"{fix}: cluster.image, or defaults.image")


def check_local_ray(local: str, ray: str) -> Finding:
    """Compare the version of Ray on this machine with the version in clusters."""
    found = f"{local} on this machine, {ray} in clusters"
    if version_of(local) == version_of(ray):
        return Finding("Ray versions", Result.OK, found)
    fix = f"Install ray=={ray}, so that jobs behave here as in clusters"
    return Finding("Ray versions", Result.NOTE, found, fix)
