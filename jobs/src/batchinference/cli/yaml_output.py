"""Writes readable YAML: without anchors, and with multi-line texts as block scalars."""

import re
from typing import Any

import yaml

_NUMBER_OR_BOOLEAN = re.compile(
    r"[yYnN]|[-+]?(0[oOxXbB][0-9a-fA-F_]+"
    r"|(\.[0-9][0-9_]*|[0-9][0-9_]*\.?[0-9_]*)([eE][-+]?[0-9]+)?)"
)
"""Texts that PyYAML would not quote, but that kubectl would read as numbers or booleans."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if _NUMBER_OR_BOOLEAN.fullmatch(text):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(objects: list[dict[str, Any]]) -> str:
    """Return the objects as a stream of YAML documents."""
    text: str = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True)
    return text
