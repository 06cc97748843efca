"""Access to an object store."""

from typing import Annotated

from pydantic import Field

from batchinference.spec.base import ENDPOINT, SpecModel


class Storage(SpecModel):
    """How to access an object store. Absent fields come from the environment variables that the
    tools of the store read. Keys and tokens come only from the environment."""

    endpoint: Annotated[str, Field(pattern=ENDPOINT, max_length=512)] | None = None
    """The URL of an S3-compatible store, of a Google Cloud Storage emulator, or of an Azure storage
    account, such as https://ACCOUNT.blob.core.windows.net."""
    region: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The region of S3 buckets."""
    anonymous: bool = False
    """Access public data without credentials, even if the environment has credentials."""


FROM_ENVIRONMENT = Storage()
"""All settings are taken from the environment."""
