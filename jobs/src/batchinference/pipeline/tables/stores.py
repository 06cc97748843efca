"""How table formats reach object stores: by the job's `storage` and the environment."""

from __future__ import annotations

from batchinference.pipeline.storage import Address
from batchinference.pipeline.stores import s3_endpoint, s3_region
from batchinference.spec.storage import Storage


def storage_options(address: Address) -> dict[str, str]:
    """What Lance and Delta are told of the store of an address. Keys they find themselves, in the
    environment variables that Amazon's, Google's and Microsoft's tools use."""
    if address.scheme != "s3":
        return {}
    options = {
        "aws_endpoint": (endpoint := s3_endpoint(address.storage)),
        "aws_region": s3_region(address.storage) or ("us-east-1" if endpoint else None),
        "allow_http": "true" if (endpoint or "").startswith("http://") else None,
        "aws_skip_signature": "true" if address.storage.anonymous else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def iceberg_properties(storage: Storage) -> dict[str, str]:
    """What pyiceberg's file IO is told of S3; keys it finds itself."""
    options = {"s3.endpoint": s3_endpoint(storage), "s3.region": s3_region(storage)}
    return {name: value for name, value in options.items() if value is not None}


def location(address: Address) -> str:
    """The address as the formats' libraries take it."""
    return address.path if address.local else address.uri.rstrip("/")
