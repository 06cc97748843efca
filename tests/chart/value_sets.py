"""Values of installations that platform teams ask for, each rendered and validated by the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.documents.yaml_files import read_yaml

Object = dict[str, Any]

NAMESPACES = ["a", "b", "789"]
"""Namespaces that these values name, and that must exist."""
PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
KUBERAY = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay"}}}
BATCH_SERVICE: Object = {"enabled": True, "path": "s3://bucket/batches", "keysSecret": "keys"}
SETS: dict[str, Object] = read_yaml(Path(__file__).with_suffix(".yaml"))
