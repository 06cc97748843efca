"""Documents of the API version v1alpha1, and their conversion by the messages of `validate`."""

from __future__ import annotations

import copy
import re
from typing import Any

from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.schedule import parse_schedule
from batchinference.spec.yaml_documents import parse

Document = dict[str, Any]
_FIX = re.compile(r"Use ([\w./]+)(?:: (\w+))?|did you mean '(\w+)'")


def as_v1alpha1(document: Document) -> Document:
    """Return a job of v1beta1, whose volumes are mounted once, as a job of v1alpha1."""
    document = copy.deepcopy(document) | {"apiVersion": "batchinference.dev/v1alpha1"}
    cluster = document["spec"]["cluster"]
    paths = {mount["name"]: mount["mountPath"] for mount in cluster.pop("volumeMounts")}
    for volume in cluster["volumes"]:
        volume["mountPath"] = paths[volume["name"]]
    return document


def converted(document: Document) -> Document:
    """Return a document of v1alpha1 with the fix of each message, and with mounts of volumes."""
    document = copy.deepcopy(document)
    for volume in document["spec"].get("cluster", {}).get("volumes", []):
        mount = {"name": volume["name"], "mountPath": volume.pop("mountPath")}
        document["spec"]["cluster"].setdefault("volumeMounts", []).append(mount)
    for problem in _problems(document):
        *parents, field = re.findall(r"[^.\[\]]+", problem.path)
        owner: Any = document
        for part in parents:
            owner = owner[int(part) if isinstance(owner, list) else part]
        fix = _FIX.search(problem.message)
        assert fix, problem
        name, written, value = fix.groups()
        old = owner.pop(field)
        if "was renamed" in problem.message:
            owner[name] = written or old
        else:
            owner[field] = value or name
    return document


def _problems(document: Document) -> list[Problem]:
    is_schedule = document["kind"] == "BatchInferenceSchedule"
    try:
        (parse_schedule if is_schedule else parse)(document)
    except SpecError as error:
        return error.problems
    return []
