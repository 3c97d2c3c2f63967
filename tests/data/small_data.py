"""Small data sets that the tests make themselves, recorded as if they were the real ones."""

import gzip
import hashlib
import pathlib
from typing import NamedTuple

import numpy as np

from disarm_jax.data import datasets, idx, recorded
from disarm_jax.data.types import sha256_of_arrays

COUNTS = (12, 4, 5)


class SmallSet(NamedTuple):
    """A small data set: its original files and the splits they must give."""

    folder: pathlib.Path
    files: tuple[recorded.RecordedFile, ...]
    raw: dict[str, bytes]  # unpacked, by file name
    splits: dict[str, np.ndarray]


def random_splits(counts=COUNTS, seed=0):
    rng = np.random.default_rng(seed)
    sizes = zip(("train", "validation", "test"), counts, strict=True)
    return {name: rng.integers(0, 256, (count, 784), np.uint8) for name, count in sizes}


def idx_bytes(images, magic=idx.MAGIC, shape=None):
    return idx.HEADER.pack(magic, *(shape or (len(images), 28, 28))) + images.tobytes()


def record(monkeypatch, name, files, splits, counts=COUNTS):
    monkeypatch.setitem(recorded.FILES, name, files)
    monkeypatch.setitem(recorded.ARRAYS, name, sha256_of_arrays(splits))
    monkeypatch.setitem(datasets._ENTRIES, name, datasets._ENTRIES[name]._replace(counts=counts))


def make_idx_set(monkeypatch, folder, name, seed=0):
    """Writes the original files of a small MNIST or FashionMNIST and records them."""
    folder.mkdir(parents=True)
    splits = random_splits(seed=seed)
    contents = {
        "train-images-idx3-ubyte.gz": np.concatenate([splits["train"], splits["validation"]]),
        "t10k-images-idx3-ubyte.gz": splits["test"],
    }
    files, raw = [], {}
    for file_name, images in contents.items():
        raw[file_name] = idx_bytes(images)
        data = gzip.compress(raw[file_name], mtime=0)
        (folder / file_name).write_bytes(data)
        sums = [hashlib.sha256(b).hexdigest() for b in (data, raw[file_name])]
        url = "http://127.0.0.1:9/"  # nothing listens there
        files.append(recorded.RecordedFile(file_name, url, len(data), sums[0], len(images), sums[1]))
    record(monkeypatch, name, tuple(files), splits)
    return SmallSet(folder, tuple(files), raw, splits)


def assert_splits(dataset, splits):
    for name, images in splits.items():
        found = getattr(dataset, name)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, images)
    assert dataset.provenance.sha256 == sha256_of_arrays(splits)
