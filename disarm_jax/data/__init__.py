"""Data sets as uint8 arrays with their provenance, and what the compiled step does with them."""

from disarm_jax.data.batches import batch_indices
from disarm_jax.data.binarization import binarize, binarize_once, check_mode
from disarm_jax.data.datasets import dataset_names, load, prepare, source_names
from disarm_jax.data.types import DataError, Dataset, Provenance

__all__ = [
    "DataError",
    "Dataset",
    "Provenance",
    "batch_indices",
    "binarize",
    "binarize_once",
    "check_mode",
    "dataset_names",
    "load",
    "prepare",
    "source_names",
]
