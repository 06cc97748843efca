"""The field `scoreOutput` of classifiers: a column for the score of a label."""

from __future__ import annotations

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.base import RuntimeModel

LABELED: dict[str, ColumnType] = {"label": "string", "score": "float32"}
"""A label with its score."""


class LabelModel(RuntimeModel):
    """Base class of models that may be classifiers."""

    score_output: ColumnName | None = None
    """A column for the score, if the model is a classifier. `output` is then the label, as a text
    instead of a struct of `label` and `score`."""

    @property
    def classifies(self) -> bool:
        """Return whether the result of a row is one label, with its score."""
        raise NotImplementedError

    @property
    def extra_outputs(self) -> dict[str, ColumnType]:
        score: dict[str, ColumnType] = {self.score_output: "float32"} if self.score_output else {}
        return {**super().extra_outputs, **score}

    def check_score(self) -> None:
        """Raise a validation error if `scoreOutput` is set without a score, or is the output."""
        if self.score_output is None:
            return
        if not self.classifies:
            problem = "scoreOutput is for classifiers, and not for topK. Remove it"
        elif self.score_output == getattr(self, "output", None):
            problem = "scoreOutput: this column is the output. Name another one"
        else:
            return
        raise invalid(problem)
