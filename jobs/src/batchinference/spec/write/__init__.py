"""The output of a job, with one model per format."""

from typing import Annotated

from pydantic import Field

from batchinference.spec.write.base import WriteColumns, WritePartitioned, WriteRows, WriteSized
from batchinference.spec.write.files import (
    WriteCsv,
    WriteJson,
    WriteNumbered,
    WriteOpenaiBatch,
    WriteParquet,
    WriteWebdataset,
)
from batchinference.spec.write.tables import (
    WriteDelta,
    WriteIceberg,
    WriteLance,
    WriteOpensearch,
    WriteQdrant,
    WriteSql,
    WriteVectors,
)

WriteFiles = WriteParquet | WriteJson | WriteOpenaiBatch | WriteCsv | WriteWebdataset
WriteTable = WriteLance | WriteDelta | WriteIceberg | WriteSql | WriteQdrant | WriteOpensearch
Write = Annotated[WriteFiles | WriteTable, Field(discriminator="format")]
