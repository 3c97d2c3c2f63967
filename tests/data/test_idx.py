"""Damaged originals are refused by name, and nothing is left behind."""

import gzip
import os

import numpy as np
import pytest
from small_data import assert_splits, idx_bytes

from disarm_jax.data import DataError, idx, load

TRAIN, TEST = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"


def damage(small, name, kind):
    """The bytes of a damaged file, and what the message must say of it."""
    good, raw = (small.folder / name).read_bytes(), small.raw[name]
    images = np.frombuffer(raw[16:], np.uint8).reshape(-1, 784)
    other = images.copy()
    other[0, 0] ^= 1
    return {
        "empty": (b"", "truncated"),
        "cut": (good[: len(good) // 2], "truncated"),
        "cut in the trailer": (good[:-4], "truncated"),
        "not gzip": (raw, "not a whole gzip file"),
        "bit flipped": (good[:200] + bytes([good[200] ^ 1]) + good[201:], "not a whole gzip file|wrong checksum|trunc"),
        "magic": (gzip.compress(idx_bytes(images, magic=2049)), "magic number 2049; idx images begin with 2051"),
        "header alone": (gzip.compress(raw[:7]), "truncated: 7 bytes"),
        "count": (gzip.compress(idx_bytes(images[:-1])), "images, rows, columns; expected"),
        "rows": (gzip.compress(idx_bytes(images, shape=(len(images), 14, 56))), "expected .*28, 28"),
        "short": (gzip.compress(raw[:-1]), "its header promises"),
        "bomb": (gzip.compress(raw + bytes(10_000_000)), "unpacks to more than the expected"),
        "checksum": (gzip.compress(idx_bytes(other), mtime=0), "wrong checksum: .* expected .* sha256"),
        "repacked": (gzip.compress(raw, compresslevel=1, mtime=1), "wrong checksum"),
    }[kind]


KINDS = [
    *("empty", "cut", "cut in the trailer", "not gzip", "bit flipped", "magic", "header alone", "count", "rows"),
    *("short", "bomb", "checksum", "repacked"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [TRAIN, TEST])
def test_damaged_originals_are_refused_by_name(small_mnist, tmp_path, name, kind):
    data, reason = damage(small_mnist, name, kind)
    path = small_mnist.folder / name
    path.write_bytes(data)
    data_dir = tmp_path / "data"
    for source in ("auto", "files"):
        with pytest.raises(DataError, match=reason) as raised:
            load("mnist", source=source, data_dir=data_dir, path=small_mnist.folder)
        assert str(path) in str(raised.value)
    assert not data_dir.exists()


def test_a_missing_file_is_named(small_mnist, tmp_path):
    (small_mnist.folder / TEST).unlink()
    with pytest.raises(DataError, match=f"no {TEST}"):
        load("mnist", source="files", data_dir=tmp_path / "data", path=small_mnist.folder)
    assert not (tmp_path / "data").exists()


def test_files_of_another_data_set_are_refused(small_mnist, tmp_path, monkeypatch):
    from small_data import make_idx_set

    fashion = make_idx_set(monkeypatch, tmp_path / "fashion", "fashion_mnist", seed=1)
    with pytest.raises(DataError, match="wrong checksum"):
        load("mnist", source="files", data_dir=tmp_path / "data", path=fashion.folder)


def test_the_last_images_of_the_train_file_validate(small_mnist, tmp_path):
    dataset = load("mnist", source="files", data_dir=tmp_path / "data", path=small_mnist.folder)
    assert_splits(dataset, small_mnist.splits)
    assert dataset.image_shape == (28, 28)
    assert dataset.provenance.source == "files"
    assert dataset.provenance.origin == str(small_mnist.folder)
    assert "order of the original idx files" in dataset.provenance.order


@pytest.mark.parametrize("kind", ["pipe", "large"])
def test_originals_that_would_never_end(tmp_path, kind):
    file = tmp_path / "images.gz"
    os.mkfifo(file) if kind == "pipe" else file.touch()
    if kind == "large":
        os.truncate(file, 1 << 40)
    with pytest.raises(DataError, match=r"images\.gz cannot be read: it (is not a regular file|has 1,099,511,627,776)"):
        idx.read_bytes(file)
