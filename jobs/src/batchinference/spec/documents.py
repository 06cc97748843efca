"""From YAML text to BatchInference objects, and to the settings of a platform."""

from __future__ import annotations

from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.error import MarkedYAMLError

from batchinference.spec.cluster import Cluster
from batchinference.spec.job import API_VERSION, KIND, BatchInference
from batchinference.spec.parameters import Values, substitute
from batchinference.spec.problems import MAX_SHOWN, Problem, SpecError, problems_of, type_name

Model = TypeVar("Model", bound=BaseModel)

_MERGE = "tag:yaml.org,2002:merge"
_YAML_HINTS = {
    "unhashable key": "; put a text that begins with '{{' in quotes",
    r"'\t'": "; indent with spaces instead of tabs",
    "mapping values are not allowed": "; add the ':' that is missing before it, or put a text that "
    "contains ': ' in quotes",
}
"""What to do about an error of PyYAML, by a part of its message."""


class _Loader(yaml.SafeLoader):
    """Safe, and strict about keys given twice, of which YAML would silently take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # here and not where the dict is made: by then merge keys (<<) have been written out, and
        # a key that overrides a merged one stands there twice
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                problem = f"the key '{key.value}' is given twice"
                raise MarkedYAMLError(None, None, problem, key.start_mark)
            seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # fails for thousands of digits, which could not be shown later either
            return value
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # 2020-13-45 looks like a date, and PyYAML lets Python's own errors through
            kind = node.tag.rsplit(":", 1)[-1]
            problem = f"cannot be read as {kind}; put it in quotes if it is text"
            raise MarkedYAMLError(None, None, problem, node.start_mark) from None


def load_documents(text: str, kinds: tuple[str, ...] = (KIND,)) -> list[dict[str, Any]]:
    """The BatchInference documents of a YAML stream; documents of other kinds are left out.

    Raises SpecError when the text is no YAML or holds no document of these kinds.
    """
    documents = _load(text)
    for document in documents:
        if not isinstance(document, dict) or "kind" not in document:
            shown = "a mapping without kind" if isinstance(document, dict) else type_name(document)
            problem = f"expected 'apiVersion: {API_VERSION}' and 'kind: {KIND}', got {shown}"
            raise SpecError([Problem("", problem)])
    ours = [document for document in documents if document["kind"] in kinds]
    if not ours:
        found = ", ".join(str(document["kind"]) for document in documents) or "an empty document"
        raise SpecError(
            [Problem("kind", f"expected {' or '.join(kinds)}, got {found[:MAX_SHOWN]}")]
        )
    return ours


def _load(text: str) -> list[Any]:
    """The documents of a YAML stream, without those that are empty."""
    try:
        return [d for d in yaml.load_all(text, _Loader) if d is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError([Problem("", f"not valid YAML: {_reason(error)}")]) from None


def _reason(error: Exception) -> str:
    """What is wrong and where, without the line of the file: it may hold a password."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if not isinstance(error, MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    reason = error.problem or error.context or ""
    hints = (hint for part, hint in _YAML_HINTS.items() if part in reason)
    return place + reason + next(hints, "")


def parse(document: dict[str, Any], values: Values | None = None) -> BatchInference:
    """Return a document as a BatchInference, with the values of its parameters in their places.

    Raises SpecError that names every fault.
    """
    try:
        return BatchInference.model_validate(substitute(document, values or Values()))
    except ValidationError as error:
        raise SpecError(problems_of(error, BatchInference)) from None


def parse_one(text: str, values: Values | None = None) -> BatchInference:
    """The one BatchInference of a YAML text. Raises SpecError, also when there are several."""
    documents = load_documents(text)
    if len(documents) > 1:
        names = ", ".join(map(_name, documents))
        raise SpecError([Problem("", f"expected one {KIND}, found {len(documents)}: {names}")])
    return parse(documents[0], values)


def parse_cluster(text: str) -> Cluster:
    """Return settings in the form of spec.cluster, such as a platform's defaults.

    An empty text has none. Raises SpecError that names every problem.
    """
    return parse_settings(text, Cluster)


def parse_settings(text: str, model: type[Model]) -> Model:
    """Return the settings of a YAML text. Raises SpecError that names every problem."""
    documents = _load(text)
    if len(documents) > 1:
        raise SpecError([Problem("", f"expected one document, found {len(documents)}")])
    try:
        return model.model_validate(documents[0] if documents else {})
    except ValidationError as error:
        raise SpecError(problems_of(error, model)) from None


def _name(document: dict[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, dict) else "without a name"
