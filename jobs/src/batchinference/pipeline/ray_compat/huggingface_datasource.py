"""Ray Data's datasource HuggingFaceDatasource."""

from ray.data._internal.datasource.huggingface_datasource import HuggingFaceDatasource

__all__ = ["HuggingFaceDatasource"]
