"""The tasks of transformers, with the inputs and the fields of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Task = Literal[
    "feature-extraction",
    "text-classification",
    "image-classification",
    "image-feature-extraction",
    "any-to-any",
    "audio-classification",
    "automatic-speech-recognition",
    "decision",
    "depth-estimation",
    "document-question-answering",
    "fill-mask",
    "image-segmentation",
    "image-text-to-text",
    "keypoint-matching",
    "mask-generation",
    "object-detection",
    "table-question-answering",
    "text-generation",
    "text-to-audio",
    "token-classification",
    "video-classification",
    "zero-shot-audio-classification",
    "zero-shot-classification",
    "zero-shot-image-classification",
    "zero-shot-object-detection",
]


@dataclass(frozen=True)
class TaskInputs:
    """The names of the inputs of a task. Optional inputs must be set together."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()

    def fit(self, names: set[str]) -> bool:
        """Return whether a task accepts inputs with these names."""
        required = set(self.required)
        return names in (required, required | set(self.optional))

    def rule(self) -> str:
        """Return the CEL expression of `fit` for the inputs of a model."""
        sizes = [(list(self.required), len(self.required))]
        if self.optional:
            names = [*self.required, *self.optional]
            sizes.append((names, len(names)))
        return " || ".join(
            f"(size(self.inputs) == {size} && self.inputs.all(name, name in {names}))"
            for names, size in sizes
        )

    def __str__(self) -> str:
        text = f"inputs: {{{', '.join(f'{name}: COLUMN' for name in self.required)}}}"
        if self.optional:
            text += f", and may take {' with '.join(self.optional)}"
        return text


_TEXT = TaskInputs(("text",))
_IMAGE = TaskInputs(("image",))
_AUDIO = TaskInputs(("audio",), ("sampling_rate",))
INPUTS = {
    "feature-extraction": _TEXT,
    "text-classification": TaskInputs(("text",), ("text_pair",)),
    "fill-mask": _TEXT,
    "text-to-audio": _TEXT,
    "token-classification": _TEXT,
    "zero-shot-classification": _TEXT,
    "decision": TaskInputs(("state",)),
    "table-question-answering": TaskInputs(("table", "query")),
    "image-classification": _IMAGE,
    "image-feature-extraction": _IMAGE,
    "image-segmentation": _IMAGE,
    "depth-estimation": _IMAGE,
    "mask-generation": _IMAGE,
    "object-detection": _IMAGE,
    "zero-shot-image-classification": _IMAGE,
    "zero-shot-object-detection": _IMAGE,
    "keypoint-matching": TaskInputs(("image", "other_image")),
    "document-question-answering": TaskInputs(("image", "question"), ("words", "boxes")),
    "audio-classification": _AUDIO,
    "automatic-speech-recognition": _AUDIO,
    "zero-shot-audio-classification": _AUDIO,
    "video-classification": TaskInputs(("video",)),
}
"""Tasks that generate text are absent, because their prompts define their inputs."""


def rules_of_inputs() -> Iterator[tuple[str, str]]:
    """Yield the CEL rule of the inputs of each group of tasks, and its message."""
    for inputs in dict.fromkeys(INPUTS.values()):
        tasks = [task for task, taken in INPUTS.items() if taken == inputs]
        message = f"task {', '.join(tasks)} takes {inputs}"
        yield f"!(self.task in {tasks}) || {inputs.rule()}", message


GENERATION = ("text-generation", "image-text-to-text", "any-to-any")
EMBEDDING = ("feature-extraction", "image-feature-extraction")
_CLASSIFICATION = (
    *("text-classification", "image-classification", "audio-classification"),
    "video-classification",
)
_ZERO_SHOT_CLASSIFICATION = (
    *("zero-shot-classification", "zero-shot-image-classification"),
    "zero-shot-audio-classification",
)
CLASSIFICATION = (*_CLASSIFICATION, *_ZERO_SHOT_CLASSIFICATION)
ZERO_SHOT = (*_ZERO_SHOT_CLASSIFICATION, "zero-shot-object-detection")
PADDED_TEXTS = ("feature-extraction", "text-classification", "fill-mask", "token-classification")
TOKENIZED = ("feature-extraction", "text-classification")
"""Tasks whose texts can be converted to tokens before the model is there."""
WINDOWED = (
    *("feature-extraction", "text-classification", "token-classification"),
    "zero-shot-classification",
)
"""Tasks whose results for the windows of a long text can be combined."""
_TEXTS = (*WINDOWED, "fill-mask", "table-question-answering", "text-generation")
_PADDED = ("feature-extraction", "text-classification", "text-generation")

FIELDS: dict[str, tuple[str, ...]] = {
    "pooling": EMBEDDING,
    "normalize": EMBEDDING,
    "top_k": CLASSIFICATION,
    "candidate_labels": ZERO_SHOT,
    "prompt": GENERATION,
    "return_full_text": ("text-generation",),
    "system": GENERATION,
    "messages": GENERATION,
    "sampling": GENERATION,
    "images": ("image-text-to-text", "any-to-any"),
    "max_tokens_per_batch": (*PADDED_TEXTS, "text-generation"),
    "pad_to_multiple_of": _PADDED,
    "too_long": _TEXTS,
    "window_overlap": WINDOWED,
}
"""The tasks of each field that some tasks do not have."""
_GROUPS = {EMBEDDING: "the feature-extraction tasks", CLASSIFICATION: "the classification tasks"}


def describe_tasks(tasks: tuple[str, ...]) -> str:
    if tasks in _GROUPS:
        return _GROUPS[tasks]
    *others, last = tasks
    return f"{', '.join(others)} and {last}" if others else last
