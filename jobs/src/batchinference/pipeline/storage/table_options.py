"""Object store options for table formats, from the job's `storage` and the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.object_stores import (
    azure_account,
    azure_key,
    s3_endpoint,
    s3_region,
)
from batchinference.spec.storage import Storage

_Options: TypeAlias = dict[str, str | None]


def storage_options(address: Location) -> dict[str, str]:
    """Return the object store options of an address for Lance and Delta.

    They read credentials from the environment variables of Amazon's, Google's and Microsoft's
    tools themselves. The exception is the key of Azure, because they do not know the variable that
    Microsoft's tools use. Raises OSError if the settings are insufficient."""
    of_store = _STORES.get(address.scheme)
    options = of_store(address.storage) if of_store else {}
    return {name: value for name, value in options.items() if value is not None}


def _s3(storage: Storage) -> _Options:
    endpoint = s3_endpoint(storage)
    return {
        "aws_endpoint": endpoint,
        "aws_region": s3_region(storage) or ("us-east-1" if endpoint else None),
        "allow_http": _unencrypted(endpoint),
        "aws_skip_signature": "true" if storage.anonymous else None,
    }


def _google(storage: Storage) -> _Options:
    # skip_signature affects reads only; without the empty account key, writes request a token
    nobody = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {
        "google_base_url": storage.endpoint,
        "allow_http": _unencrypted(storage.endpoint),
        "google_skip_signature": "true" if storage.anonymous else None,
        "google_service_account_key": json.dumps(nobody) if storage.anonymous else None,
    }


def _azure(storage: Storage) -> _Options:
    account, _ = azure_account(storage)
    return {
        "azure_storage_account_name": account,
        "azure_storage_endpoint": storage.endpoint,
        "allow_http": _unencrypted(storage.endpoint),
        "azure_skip_signature": "true" if storage.anonymous else None,
        "azure_storage_account_key": None if storage.anonymous else azure_key(),
    }


def _unencrypted(endpoint: str | None) -> str | None:
    return "true" if endpoint and endpoint.startswith("http://") else None


_STORES: dict[str, Callable[[Storage], _Options]] = {"s3": _s3, "gs": _google, "az": _azure}


def iceberg_properties(place: str, storage: Storage) -> dict[str, str]:
    """Return the object store options of an address for pyiceberg's file IO.

    An address without an object store gets the options of S3. pyiceberg finds credentials itself,
    and an Azure address contains its account."""
    match urlsplit(place).scheme:
        case "gs":
            options = {"gcs.service.host": storage.endpoint}
        case "az" | "abfs" | "abfss" | "wasb" | "wasbs":
            options = {}
        case _:
            options = {"s3.endpoint": s3_endpoint(storage), "s3.region": s3_region(storage)}
    return {name: value for name, value in options.items() if value is not None}


def location(address: Location) -> str:
    """Return the address in the form that the libraries of the table formats accept."""
    return address.path if address.local else address.uri.rstrip("/")
