"""Ray Data's functions and types for Arrow tables."""

from ray.data._internal.arrow_ops.transform_pyarrow import concat, unify_schemas
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

__all__ = ["ArrowPythonObjectType", "concat", "unify_schemas"]
