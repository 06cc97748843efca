"""Object stores for pyarrow and the table formats, configured by `storage` and the environment:

- S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, and other sources of
  the AWS credential chain
- Google Cloud Storage: GOOGLE_APPLICATION_CREDENTIALS, and other sources of Google's chain
- Azure: AZURE_STORAGE_ACCOUNT with AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or Azure's chain"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlencode, urlsplit

import pyarrow.fs as pafs

from batchinference.spec.storage import Storage

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

GCS_PATIENCE = timedelta(seconds=15)
"""How long the Google library retries. Its default is 15 minutes."""
_S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_VARIABLES = (
    *_S3_KEYS,
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
    *("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
)
"""The environment variables that configure file systems. Their values are a part of cache keys."""
_AWS = "https://s3.amazonaws.com"
_AWS_REGION = re.compile("(us-gov|[a-z]{2})-[a-z]+-[0-9]+")
_AZURE_DOMAIN = ".core.windows.net"
_NO_GCS_ACCOUNT = json.dumps(
    {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
)
"""An empty account. Without it, writes would request a token, even with `google_skip_signature`."""


def object_store(scheme: str, bucket: str, storage: Storage) -> pafs.FileSystem:
    """Return the file system of a bucket. Raises OSError if settings are missing."""
    return _object_store(scheme, bucket, storage, tuple(map(os.environ.get, _VARIABLES)))


@lru_cache(maxsize=16)
def _object_store(
    scheme: str, bucket: str, storage: Storage, _environment: tuple[str | None, ...]
) -> pafs.FileSystem:
    """Return the file system of a bucket. The cache depends on the environment variables, because
    a notebook may replace expired keys."""
    return _STORES[scheme](bucket, storage)


def _first_of(*names: str) -> str | None:
    """Return the first value of these environment variables that is not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def _s3_endpoint(storage: Storage) -> str | None:
    return storage.endpoint or _first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def _s3_region(storage: Storage) -> str | None:
    return storage.region or _first_of("AWS_REGION", "AWS_DEFAULT_REGION")


def service_url(scheme: str, storage: Storage) -> str | None:
    """Return the URL of a store; None if unknown. Raises OSError if settings are missing."""
    if scheme == "s3":
        return _s3_endpoint(storage) or _aws_url(_s3_region(storage))
    if scheme == "gs":
        return storage.endpoint or "https://storage.googleapis.com"
    return storage.endpoint or f"https://{_account_of_azure(storage)[0]}.blob{_AZURE_DOMAIN}"


def _aws_url(region: str | None) -> str | None:
    """Return the URL of S3 in a region; None for regions in AWS partitions with another domain."""
    if region is None:
        return _AWS
    if not _AWS_REGION.fullmatch(region):
        return None
    return f"https://s3.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def proxy_of_store(scheme: str, storage: Storage) -> str | None:
    """Return the proxy that the library of an object store uses; None if it uses none."""
    return proxy_of(_s3_endpoint(storage) if scheme == "s3" else service_url(scheme, storage))


def _s3(bucket: str, storage: Storage) -> pafs.FileSystem:
    endpoint, region = _s3_endpoint(storage), _s3_region(storage)
    options: dict[str, Any] = {"anonymous": storage.anonymous, "allow_delayed_open": True}
    options["proxy_options"] = proxy_of(endpoint)
    if endpoint:
        parts = urlsplit(endpoint)
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    elif region is None:
        region = pafs.resolve_s3_region(bucket)
    if not storage.anonymous:
        options |= _s3_keys()
    return pafs.S3FileSystem(region=region or "us-east-1", **options)


def proxy_of(url: str | None) -> str | None:
    """Return the proxy in the environment for a URL, or for AWS if `url` is None. Return None if
    there is no proxy. Only the S3 library does not read HTTPS_PROXY and NO_PROXY itself."""
    from requests import utils

    url = url or _AWS
    proxy = utils.get_environ_proxies(url).get(urlsplit(url).scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def _s3_keys() -> dict[str, str | None]:
    """Return the keys in the environment, if any. The credential chain would return the same keys,
    but first tries to reach the AWS instance metadata service for 6 seconds."""
    key, secret, token = (os.environ.get(name) for name in _S3_KEYS)
    keys = {"access_key": key, "secret_key": secret, "session_token": token}
    return keys if key and secret else {}


def _gcs(_: str, storage: Storage) -> pafs.FileSystem:
    options: dict[str, Any] = {"anonymous": storage.anonymous, "retry_time_limit": GCS_PATIENCE}
    if storage.endpoint:
        parts = urlsplit(storage.endpoint)
        options |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
    return pafs.GcsFileSystem(**options)


def _azure(_: str, storage: Storage) -> pafs.FileSystem:
    account, services = _account_of_azure(storage)
    key = _key_of_azure()
    token = _first_of("AZURE_STORAGE_SAS_TOKEN")
    if storage.anonymous:
        return _azure_anonymous(account, services)
    if key is not None:
        return pafs.AzureFileSystem(account, account_key=key, **services)
    if token is not None:
        return pafs.AzureFileSystem(account, sas_token="?" + token.removeprefix("?"), **services)
    if services.get("blob_storage_scheme") == "http":
        # the library would terminate the process, because it must not send a token unencrypted
        raise OSError("an http:// endpoint of Azure needs AZURE_STORAGE_KEY or a SAS token")
    return pafs.AzureFileSystem(account, **services)


def _key_of_azure() -> str | None:
    return _first_of("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY")


def _account_of_azure(storage: Storage) -> tuple[str, dict[str, str]]:
    """Return the storage account, and the options of pyarrow for its services.

    The endpoint is https://ACCOUNT.blob.core.windows.net, or http://HOST:PORT/ACCOUNT for an
    emulator. Raises OSError if the account name is missing."""
    account = _first_of("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME")
    services: dict[str, str] = {}
    if storage.endpoint:
        parts = urlsplit(storage.endpoint)
        in_host = parts.path in ("", "/")
        account = parts.netloc.partition(".")[0] if in_host else parts.path.split("/")[1]
        services = _azure_services(parts, in_host)
    if account is None:
        raise OSError(
            "az:// needs the name of the storage account. Set storage.endpoint to "
            "https://ACCOUNT.blob.core.windows.net, or AZURE_STORAGE_ACCOUNT"
        )
    return account, services


def _azure_services(endpoint: SplitResult, account_in_host: bool) -> dict[str, str]:
    authority = endpoint.netloc
    if account_in_host:
        authority = "." + authority.partition(".")[2]
    return {
        "blob_storage_authority": authority,
        "dfs_storage_authority": authority.replace(".blob.", ".dfs.", 1),
        "blob_storage_scheme": endpoint.scheme,
        "dfs_storage_scheme": endpoint.scheme,
    }


def _azure_anonymous(account: str, services: dict[str, str]) -> pafs.FileSystem:
    """Return a file system without credentials. pyarrow can only create it from a URI."""
    query = {"credential_kind": "anonymous"}
    query |= {name: value for name, value in services.items() if name.endswith("authority")}
    if services.get("blob_storage_scheme") == "http":
        query["enable_tls"] = "false"
    uri = f"abfs://{account}.blob{_AZURE_DOMAIN}/?{urlencode(query)}"
    filesystem, _ = pafs.FileSystem.from_uri(uri)
    return filesystem


_STORES: dict[str, Callable[[str, Storage], pafs.FileSystem]] = {
    "s3": _s3,
    "gs": _gcs,
    "az": _azure,
}


def storage_options(scheme: str, storage: Storage) -> dict[str, str]:
    """Return the options of an object store for Lance and Delta. Raises OSError if settings are
    missing.

    Both libraries read the usual environment variables with credentials. Only the variable of
    Microsoft's tools for the Azure key is unknown to them."""
    endpoint, skip = storage.endpoint, "true" if storage.anonymous else None
    options: dict[str, str | None] = {}
    match scheme:
        case "s3":
            endpoint = _s3_endpoint(storage)
            region = _s3_region(storage) or ("us-east-1" if endpoint else None)
            options = {"aws_endpoint": endpoint, "aws_region": region, "aws_skip_signature": skip}
        case "gs":
            options = {"google_base_url": endpoint, "google_skip_signature": skip}
            if storage.anonymous:
                options["google_service_account_key"] = _NO_GCS_ACCOUNT
        case "az":
            options = {
                "azure_storage_account_name": _account_of_azure(storage)[0],
                "azure_storage_account_key": None if storage.anonymous else _key_of_azure(),
                "azure_storage_endpoint": endpoint,
                "azure_skip_signature": skip,
            }
    if options and endpoint and endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return {name: value for name, value in options.items() if value is not None}


CONDITIONAL_RETRIES = 3
"""Number of retries of obstore, within a second. Its callers add retries with longer waits."""
_FILES_OF_TOOLS = {
    "s3": {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"},
    "az": {"AZURE_CONFIG_DIR": "~/.azure"},
}
"""Variables for the paths of credential files, and default paths. obstore ignores these files."""
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT",),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR"),
}
"""Environment variables for endpoints that obstore reads and pyarrow ignores."""


def obstore_bucket(
    scheme: str,
    bucket: str,
    storage: Storage,
    prefix: str = "",
    retries: int = CONDITIONAL_RETRIES,
    timeout: int = 30,
) -> S3Store | GCSStore | AzureStore | None:
    """Return a client of obstore for a bucket, or for a prefix in it, with the settings that
    pyarrow uses. A request may take `timeout` seconds. Return None if only pyarrow could read the
    credentials, or if obstore would use another endpoint."""
    from obstore import store

    endpoint = _s3_endpoint(storage) if scheme == "s3" else storage.endpoint
    if not endpoint and any(map(os.environ.__contains__, _ENDPOINTS[scheme])):
        return None
    if not storage.anonymous and not _has_variables(scheme) and _has_files_of_tools(scheme):
        return None  # obstore would ask the instance metadata service instead
    options = storage_options(scheme, storage)
    if scheme == "s3":
        options["aws_region"] = object_store(scheme, bucket, storage).region
    http = options.pop("allow_http", None) is not None
    kind: Any = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[scheme]
    client: S3Store | GCSStore | AzureStore = kind(
        bucket,
        prefix=prefix or None,
        config=options,
        client_options={"allow_http": http, "timeout": f"{timeout}s"},
        retry_config={"max_retries": retries},
    )
    return client


def _has_variables(scheme: str) -> bool:
    if scheme == "s3":
        return bool(_s3_keys())
    of_azure = _key_of_azure() or _first_of("AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_ID")
    return scheme == "az" and of_azure is not None


def _has_files_of_tools(scheme: str) -> bool:
    files = _FILES_OF_TOOLS.get(scheme, {}).items()
    return any(Path(_first_of(name) or file).expanduser().exists() for name, file in files)


def iceberg_properties(address: str, storage: Storage) -> dict[str, str]:
    """Return the options of pyiceberg for the object store of an address, or for S3 by default.
    pyiceberg reads credentials itself. Addresses of Azure name the account."""
    match urlsplit(address).scheme:
        case "gs":
            options = {"gcs.service.host": storage.endpoint}
        case "az" | "abfs" | "abfss" | "wasb" | "wasbs":
            options = {}
        case _:
            options = {"s3.endpoint": _s3_endpoint(storage), "s3.region": _s3_region(storage)}
            options["s3.proxy-uri"] = proxy_of(options["s3.endpoint"])
    return {name: value for name, value in options.items() if value is not None}
