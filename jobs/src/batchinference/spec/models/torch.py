"""PyTorch modules."""

from __future__ import annotations

from typing import Literal

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, invalid
from batchinference.spec.models.base import Dtype, Inputs, OutputName, RuntimeModel, Source
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

_UNTRUSTED = (
    "trustSource: the program '{}' can run code of its author when it is loaded. Set it to true if "
    "you trust the file, or name a 'factory' whose weights it is"
)


class TorchModel(RuntimeModel):
    """A PyTorch module that a function returns, or that is loaded from a file."""

    runtime: Literal["torch"]
    """The library that runs the model."""
    factory: ModulePath | None = None
    """`module:function` that returns the torch.nn.Module, which then loads `source`, if set."""
    factory_args: Arguments | None = None
    """Keyword arguments of the factory."""
    source: Source | None = None
    """The path or URI of a state dict, if there is a factory. Otherwise the path or URI of a
    TorchScript (.pt) or exported program (.pt2) file, which requires `trustSource`."""
    trust_source: bool = False
    """Whether to load a TorchScript or exported program, which can run code of its author."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The parameters of `forward`, and the column for each. A column becomes a tensor of batch x
    the shape of its values. Floating-point numbers are converted to the data type of the module."""
    output: ColumnName
    """The column for the output of the module, a tensor of batch x any shape."""
    output_name: OutputName | None = None
    """The output to use if there are several: the key in a dict, or the index in a tuple."""
    dtype: Dtype | None = None
    """The data type of the module. By default, the data type of its files."""

    def _check(self) -> None:
        if self.factory is None and self.source is None:
            raise invalid("give a 'factory' or a 'source' (or both)")
        if self.factory is None and self.factory_args is not None:
            raise invalid("'factoryArgs' needs a 'factory'")
        if self.factory is None and not self.trust_source:
            raise invalid(_UNTRUSTED.format(self.source))
        if self.factory is not None and self.trust_source:
            raise invalid("trustSource: a state dict runs no code. Leave it out")
        if self.factory is None and self.dtype and str(self.source).endswith(".pt2"):
            raise invalid("an exported program keeps its own types. Leave out 'dtype'")
