"""Cases that are only data: a YAML file next to a module has them, by the number of their kind.

A case has the fields of `Case`. Each entry of `right` has the fields of `Right`, or a regular
expression `refused` and the other fields of `Refused`. `encoding` is that of its files, and `tools`
are the arguments of `with_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyarrow import csv

from support.documents.yaml_files import read_yaml
from traps.case import Cases, Expected, Peer, Refused, Right, Row

NOTED = "no such option"


def read_kinds(cases: Cases, file: Path) -> dict[str, Callable[..., None]]:
    """Add the cases of a file. Return the function of each kind that adds further cases to it."""
    kinds = {}
    for number, kind in read_yaml(file).items():
        peers = kind.get("peers", {})
        kinds[number] = cases.kind(number, kind["title"], read=kind["read"], peers=peers)
        for case in kind["cases"]:
            _add(kinds[number], **case)
    return kinds


def _add(
    add: Callable[..., None],
    *,
    title: str,
    right: list[Mapping[str, Any]],
    files: Mapping[str, str],
    encoding: str = "utf-8",
    tools: Mapping[str, Any] | None = None,
    **fields: Any,
) -> None:
    fields["files"] = {name: text.encode(encoding) for name, text in files.items()}
    if tools is not None:
        fields["peers"] = with_options(**tools)
    add(title, *map(_expected, right), **fields)


def _expected(given: Mapping[str, Any]) -> Expected:
    if "refused" not in given:
        return Right(**given)
    return Refused(given["refused"], check_only=given.get("check_only", False))


def with_options(
    *,
    pandas: Any = None,
    datasets: Any = None,
    daft: Any = None,
    ray: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Peer]:
    """Return the options of the other tools. A tool without options here has none for the case.

    `ray` has the fields of the options of PyArrow: `read`, `parse` and `convert`."""
    return {
        "pandas": NOTED if pandas is None else pandas,
        "datasets": NOTED if datasets is None else (pandas if datasets is True else datasets),
        "daft": NOTED if daft is None else {"pattern": "*.csv", **daft},
        "ray": NOTED if ray is None else lambda at: _ray(at, ray),
    }


def _ray(directory: Path, options: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    from traps.peers import with_ray

    kinds = {"read": csv.ReadOptions, "parse": csv.ParseOptions, "convert": csv.ConvertOptions}
    return with_ray.read_csv(
        directory, **{f"{name}_options": kinds[name](**given) for name, given in options.items()}
    )
