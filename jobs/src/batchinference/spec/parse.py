"""From YAML text to BatchInference objects."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml
from pydantic import ValidationError

from batchinference.spec.job import API_VERSION, KIND, BatchInference
from batchinference.spec.problems import Problem, SpecError, problems_of


class _Loader(yaml.SafeLoader):
    """Safe, and strict about keys given twice, of which YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # the base class refuses it, with its place
            if key in seen:
                line = key_node.start_mark.line + 1
                raise SpecError([Problem("", f"line {line}: the key '{key}' is given twice")])
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_documents(text: str) -> list[dict[str, Any]]:
    """The BatchInference documents of a YAML stream; documents of other kinds are left out.

    Raises SpecError when the text is no YAML or holds no BatchInference.
    """
    try:
        documents = [d for d in yaml.load_all(text, _Loader) if d is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError([Problem("", f"not valid YAML: {error}")]) from None
    for document in documents:
        if not isinstance(document, dict) or "kind" not in document:
            shown = "a mapping without kind" if isinstance(document, dict) else repr(document)[:60]
            problem = f"expected 'apiVersion: {API_VERSION}' and 'kind: {KIND}', got {shown}"
            raise SpecError([Problem("", problem)])
    ours = [document for document in documents if document["kind"] == KIND]
    if not ours:
        kinds = ", ".join(str(document["kind"]) for document in documents) or "an empty document"
        raise SpecError([Problem("", f"no {KIND} here, only {kinds}")])
    return ours


def parse(document: dict[str, Any]) -> BatchInference:
    """A document as a BatchInference. Raises SpecError that names every fault."""
    try:
        return BatchInference.model_validate(document)
    except ValidationError as error:
        raise SpecError(problems_of(error, BatchInference)) from None


def parse_one(text: str) -> BatchInference:
    """The one BatchInference of a YAML text. Raises SpecError, also when there are several."""
    documents = load_documents(text)
    if len(documents) > 1:
        names = ", ".join(str((d.get("metadata") or {}).get("name")) for d in documents)
        raise SpecError([Problem("", f"expected one {KIND}, found {len(documents)}: {names}")])
    return parse(documents[0])
