"""The settings of a job override the defaults of the platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.rendering import with_platform_defaults
from batchinference.spec import SpecError
from batchinference.spec.cluster import Cluster
from plugins.messages import Messages
from support.documents.minimal import Document
from support.documents.parsed import job
from support.documents.yaml_files import read_yaml
from support.tiers import examples

Pair = list[Any]
"""The value of the job and the value of the platform."""

WHOLE, BY_KEY, BY_NAME = read_yaml(Path(__file__).with_suffix(".yaml")).values()
"""Fields that are replaced as a whole, objects that are merged by key, and lists by name."""


def mounted(name: str, path: str, **source: Any) -> Document:
    source = source or {"persistentVolumeClaim": {"claimName": name}}
    return {"volumes": [{"name": name, **source}],
            "volumeMounts": [{"name": name, "mountPath": path}]}  # fmt: skip


def merged(own: Document, defaults: Document) -> Cluster:
    return with_platform_defaults(job(cluster=own), Cluster.model_validate(defaults)).spec.cluster


def test_defaults_of_every_cluster_field_are_tested() -> None:
    fields = {field.alias for field in Cluster.model_fields.values()}
    assert fields == WHOLE.keys() | BY_KEY.keys() | BY_NAME.keys() | {"volumeMounts"}


def some_of(values: dict[str, Pair], side: int) -> st.SearchStrategy[Document]:
    """Generate documents with any subset of these fields."""
    fields = {name: st.just(pair[side]) for name, pair in values.items()}
    return st.fixed_dictionaries({}, optional=fields)


def clusters(side: int) -> st.SearchStrategy[Document]:
    """Generate cluster settings, with lists of named items as maps by name."""
    parts = {name: some_of(values, side) for name, values in (BY_KEY | BY_NAME).items()}
    objects = st.fixed_dictionaries({}, optional=parts)
    return st.tuples(some_of(WHOLE, side), objects).map(lambda both: both[0] | both[1])


def with_lists(settings_: Document) -> Document:
    return {
        field: [{"name": name, **rest} for name, rest in value.items()]
        if field in BY_NAME
        else value
        for field, value in settings_.items()
    }


@settings(max_examples=examples(200), deadline=None)
@given(clusters(0), clusters(1))
def test_defaults_are_overridden_by_the_job(own: Document, defaults: Document) -> None:
    expected = defaults | own
    for field in (BY_KEY.keys() | BY_NAME.keys()) & expected.keys():
        default, mine = defaults.get(field, {}), own.get(field, {})
        only_default = {key: value for key, value in default.items() if key not in mine}
        expected[field] = only_default | mine
    if "topology" not in own:
        expected.pop("topology", None)  # the job scales
    if "queueName" not in expected and "queuePriorityClassName" not in own:
        expected.pop("queuePriorityClassName", None)
    made = merged(with_lists(own), with_lists(defaults))
    assert made == Cluster.model_validate(with_lists(expected))


def test_settings_of_the_platform_for_other_groups_are_ignored() -> None:
    params = {"log-color": "true"}
    made = merged(
        {"rayStartParams": {"own": params}}, {"rayStartParams": {"embed": params, "cpu": params}}
    )
    assert made.ray_start_params.keys() == {"own", "cpu"}


def test_job_mounts_its_own_volumes_only(messages: Messages) -> None:
    """A volume of the platform is mounted where the platform says, such as read-only."""
    platform = mounted("models", "/models", hostPath={"path": "/models"})
    platform["volumeMounts"][0]["readOnly"] = True
    with messages.raises(SpecError):
        merged({"volumeMounts": [{"name": "models", "mountPath": "/again"}]}, platform)
    own = merged(mounted("models", "/again", emptyDir={}), platform)
    assert [mount.mount_path for mount in own.volume_mounts] == ["/again"]
    assert own.volumes[0].host_path is None
    both = merged(mounted("own", "/own"), platform)
    assert [mount.read_only for mount in both.volume_mounts] == [True, False]


@pytest.mark.parametrize(
    ("own", "defaults"),
    [
        (mounted("own", "/data"), mounted("all", "/data")),
        ({"workers": {"min": 5}}, {"workers": {"max": 3}}),
        (
            {"env": [{"name": f"A{number}", "value": ""} for number in range(60)]},
            {"env": [{"name": f"B{number}", "value": ""} for number in range(5)]},
        ),
    ],
    ids=["volumes at one path", "min above max", "too many variables"],
)
def test_defaults_in_conflict_with_the_job_are_refused(
    own: Document, defaults: Document, messages: Messages
) -> None:
    with messages.raises(SpecError):
        merged(own, defaults)


def test_defaults_change_the_cluster_settings_only() -> None:
    own = job()
    made = with_platform_defaults(own, Cluster(image="default:1"))
    assert made.metadata == own.metadata
    assert made.spec.model_copy(update={"cluster": own.spec.cluster}) == own.spec
