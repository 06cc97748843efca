"""How an object store is reached."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import ENDPOINT, SpecModel


class Storage(SpecModel):
    """How an object store is reached. What is left out comes from the environment, as it does for
    the store's own tools; keys and tokens come from nowhere else."""

    endpoint: Annotated[str, Field(pattern=ENDPOINT, max_length=512)] | None = None
    """The address of the service: of an S3-compatible store, of a Google Cloud Storage emulator,
    or of an Azure storage account, such as https://ACCOUNT.blob.core.windows.net."""
    region: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The region of S3 buckets."""
    anonymous: bool = False
    """Reach public data without credentials, even where there are some."""


FROM_ENVIRONMENT = Storage()
"""All that reaches a store comes from the environment."""
