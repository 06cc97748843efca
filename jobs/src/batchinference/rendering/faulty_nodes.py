"""Keeps the pods of an attempt away from nodes with faulty devices."""

import re
from collections.abc import Sequence

from batchinference.spec.job import BatchInference
from batchinference.spec.pod_placement import (
    Affinity,
    NodeAffinity,
    NodeRequirement,
    NodeTerm,
    NodeTerms,
)

NODE_LABEL = "kubernetes.io/hostname"
"""The label of a node with its name. Karpenter would ignore pods with `matchFields` instead."""
_NAME = re.compile("[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?")


def without_nodes(job: BatchInference, nodes: Sequence[str]) -> BatchInference:
    """Return the job with a required node affinity that excludes these nodes. The names come from a
    report, which code of users can write, so names that are no label values are ignored."""
    names = [node for node in nodes if _NAME.fullmatch(node)]
    if not names:
        return job
    others = NodeRequirement.model_construct(key=NODE_LABEL, operator="NotIn", values=names)
    affinity = job.spec.cluster.affinity or Affinity()
    of_nodes = affinity.node_affinity or NodeAffinity()
    terms = of_nodes.required_during_scheduling_ignored_during_execution
    required = [term.match_expressions for term in terms.node_selector_terms] if terms else [[]]
    every = [NodeTerm.model_construct(match_expressions=[*one, others]) for one in required]
    terms = NodeTerms.model_construct(node_selector_terms=every)
    update = {"required_during_scheduling_ignored_during_execution": terms}
    affinity = affinity.model_copy(update={"node_affinity": of_nodes.model_copy(update=update)})
    return job.with_spec(cluster=job.spec.cluster.model_copy(update={"affinity": affinity}))
