"""A run on disk: Parquet tables and ``run.json``, written while training goes on and read where they lie."""

from sgoif.errors import StoreError
from sgoif.store.editions import write_edition
from sgoif.store.merge import merge_evidence, write_examples
from sgoif.store.parts import next_attempt
from sgoif.store.reader import RunFiles
from sgoif.store.schema import SCHEMA_VERSION
from sgoif.store.writer import ParquetSink

__all__ = [
    "SCHEMA_VERSION",
    "ParquetSink",
    "RunFiles",
    "StoreError",
    "merge_evidence",
    "next_attempt",
    "write_edition",
    "write_examples",
]
