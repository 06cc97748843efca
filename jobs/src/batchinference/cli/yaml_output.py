"""YAML for people: no anchors, and texts of several lines as such."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(objects: list[dict[str, Any]]) -> str:
    """Objects as a stream of YAML documents."""
    text: str = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True)
    return text
