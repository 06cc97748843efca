"""Fields for the placement of pods on nodes, in the format of a Kubernetes pod."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import LABEL_KEY, SpecModel, invalid, keyed
from batchinference.spec.pod_settings import LabelKey, LabelValue, ShortPrefix

NodeLabelKey = Annotated[str, Field(pattern=LABEL_KEY, max_length=316), ShortPrefix]
_WITH_VALUES = "In and NotIn need values, Gt and Lt need one number, other operators need none"


class NodeRequirement(SpecModel):
    """A condition on a label of nodes."""

    key: NodeLabelKey
    """The key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the label is compared with the values."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = []
    """The values."""

    def _check(self) -> None:
        number = len(self.values) == 1 and re.fullmatch("[0-9]+", self.values[0]) is not None
        valid = {"In": bool(self.values), "NotIn": bool(self.values), "Gt": number, "Lt": number}
        if not valid.get(self.operator, not self.values):
            raise invalid(_WITH_VALUES)


class LabelSelector(SpecModel):
    match_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = {}
    """Labels of the pods."""


class NodeTerm(SpecModel):
    match_expressions: Annotated[list[NodeRequirement], Field(min_length=1, max_length=8)]
    """Conditions, all of which must hold."""


class NodeTerms(SpecModel):
    node_selector_terms: Annotated[list[NodeTerm], Field(min_length=1, max_length=8)]
    """Terms, one of which must hold."""


Weight = Annotated[int, Field(ge=1, le=100)]


class PreferredNodes(SpecModel):
    weight: Weight
    """The weight of the preference, from 1 to 100."""
    preference: NodeTerm
    """The preferred nodes."""


class NodeAffinity(SpecModel):
    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    """Nodes on which pods must run."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredNodes], Field(max_length=8)
    ] = []
    """Nodes on which pods run if possible."""


class PodTerm(SpecModel):
    """Pods in the namespace of the job. A term cannot name other namespaces, because it could keep
    pods of other users away from nodes."""

    label_selector: LabelSelector
    """The pods."""
    topology_key: NodeLabelKey
    """The node label that defines a place, such as a zone: its nodes have the same value."""


class PreferredPods(SpecModel):
    weight: Weight
    """The weight of the preference, from 1 to 100."""
    pod_affinity_term: PodTerm
    """The pods."""


class PodAffinity(SpecModel):
    required_during_scheduling_ignored_during_execution: Annotated[
        list[PodTerm], Field(max_length=8)
    ] = []
    """The job's pods must run in the place of these pods; with anti-affinity, in another place."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredPods], Field(max_length=8)
    ] = []
    """If possible, the job's pods run where these pods run; with anti-affinity, elsewhere."""


class Affinity(SpecModel):
    """Nodes and pods that attract or repel the pods of the job."""

    node_affinity: NodeAffinity | None = None
    """Nodes that pods need or prefer."""
    pod_affinity: PodAffinity | None = None
    """Pods with which the job's pods share a place."""
    pod_anti_affinity: PodAffinity | None = None
    """Pods with which the job's pods do not share a place."""


class TopologySpread(SpecModel):
    """How evenly pods are spread over places, such as zones."""

    max_skew: Annotated[int, Field(ge=1, le=1000)]
    """Maximum difference between the numbers of pods of two places."""
    topology_key: NodeLabelKey
    """The node label that defines a place: nodes with the same value are one place."""
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"]
    """Whether a pod waits if the difference would exceed `maxSkew`."""
    label_selector: LabelSelector | None = None
    """The pods that are counted. By default, the pods of the attempt."""


class Topology(SpecModel):
    """Places, such as racks, in which Kueue starts pods that exchange data. Requires a queue with
    topology-aware scheduling, and a job that does not scale."""

    level: NodeLabelKey
    """The node label that defines a place: nodes with the same value are one place."""
    mode: Literal["Required", "Preferred"] | None = None
    """`Required`, the default: all pods of a replica start in one place. If replicas have one pod
    each, all pods of a worker group start in one place. `Preferred`: all pods of a worker group
    start in one place if possible."""


TopologySpreads = Annotated[list[TopologySpread], *keyed("topologyKey", 8, "whenUnsatisfiable")]
