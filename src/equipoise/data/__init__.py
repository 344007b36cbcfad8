"""Data with a known origin: named sets checked by hash, formulas, and the user's own tables."""

from equipoise.data import prepare, synthetic
from equipoise.data.dataset import Dataset, Provenance, SourceFile
from equipoise.data.errors import DataError, DataWarning, MissingData
from equipoise.data.load import Availability, available, data_directory, load
from equipoise.data.tables import read_table
from equipoise.data.validate import Table, validate

__all__ = [
    "Availability",
    "DataError",
    "DataWarning",
    "Dataset",
    "MissingData",
    "Provenance",
    "SourceFile",
    "Table",
    "available",
    "data_directory",
    "load",
    "prepare",
    "read_table",
    "synthetic",
    "validate",
]
