"""Ten thousand images on a cluster, of which 37 cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cluster.kubectl import Kubectl
from support.cluster.object_store import ObjectStore
from support.documents.minimal import document
from support.inputs.corrupt_images import CORRUPT, IMAGES, SIDE, ten_thousand_images
from support.outputs.rows import rows_of

Job = dict[str, Any]


@pytest.mark.long("phases")
@pytest.mark.timeout(600)
def test_exactly_the_corrupt_images_are_failed_rows(
    kubectl: Kubectl, store: ObjectStore, create: Callable[[Job], str], tmp_path: Path
) -> None:
    corrupt = ten_thousand_images(tmp_path / "in")
    store.upload(tmp_path / "in", "corrupt/in")
    options = {"size": [SIDE, SIDE], "include_paths": True}
    job = document(
        "corrupt-images",
        read={"format": "images", "paths": [store.uri("corrupt/in")], "options": options},
        steps=[
            {"name": "folder", "labelFromPath": {"column": "folder", "index": -2}},
            {"name": "slim", "dropColumns": ["image"]},
        ],
        write={"format": "parquet", "path": store.uri("corrupt/out")},
        errors={"maxPercent": 1},
    )
    status = kubectl.wait_complete(create(job), timeout=500)
    counts = status["counts"]
    assert (counts["read"], counts["written"]) == (IMAGES, IMAGES - CORRUPT)
    assert counts["failed"] == CORRUPT

    prefix = store.uri("corrupt/in") + "/"
    output = store.download("corrupt/out", tmp_path / "out")
    errors = rows_of(output / "_batchinference" / "errors")
    assert sorted(error["path"].removeprefix(prefix) for error in errors) == corrupt
    written = {row["path"].removeprefix(prefix) for row in rows_of(output)}
    assert len(written) == IMAGES - CORRUPT
    assert not written & set(corrupt)
