"""Writes the fields that RayJobs have in all tested versions of KubeRay, from its CRDs.

For each version, pass the CRD of RayJobs as VERSION=FILE. Get it from a checkout of KubeRay with
`git show vVERSION:ray-operator/config/crd/bases/ray.io_rayjobs.yaml`:

    python tests/tools/kuberay_fields.py 1.6.0=a.yaml 1.7.0=b.yaml

The versions of `batchinference.cli.doctor_cluster` must be the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

TARGET = Path(__file__).parents[1] / "unit" / "rendering" / "kuberay_fields.yaml"
HEADER = "# Written by tests/tools/kuberay_fields.py; do not edit.\n"
MIN_SHARED = 120
Tree = dict[str, Any]
"""The fields below a field. `[]` is an item of a list, and `{}` a value of a map."""


def tree_of(schema: Tree) -> Tree:
    """Return the fields of a schema."""
    fields = dict(schema.get("properties") or {})
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            fields[mark] = schema[key]
    return {name: tree_of(below) for name, below in fields.items()}


def common(one: Tree, other: Tree) -> Tree:
    """Return the fields that are in both trees."""
    return {name: common(below, other[name]) for name, below in one.items() if name in other}


def shared(tree: Tree, known: dict[str, Tree]) -> Tree:
    """Return the tree with one object for equal trees, of which YAML writes the second as `*id`."""
    made = {name: shared(below, known) for name, below in tree.items()}
    text = json.dumps(made, sort_keys=True)
    return known.setdefault(text, made) if len(text) > MIN_SHARED else made


def fields_of(definition: Tree) -> Tree:
    """Return the fields of the spec of a RayJob, without the pod that KubeRay itself submits."""
    (schema,) = (
        version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
        if version["name"] == "v1"
    )
    fields = tree_of(schema["properties"]["spec"])
    del fields["submitterPodTemplate"]
    return fields


def main() -> None:
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    fields: Tree | None = None
    for file in named.values():
        result = fields_of(yaml.load(Path(file).read_bytes(), yaml.CSafeLoader))
        fields = result if fields is None else common(fields, result)
    facts = {"versions": sorted(named), "fields": shared(fields or {}, {})}
    text = yaml.dump(facts, default_flow_style=True, width=100, Dumper=yaml.CSafeDumper)
    TARGET.write_text(HEADER + text)


if __name__ == "__main__":
    main()
