import os
import pathlib
import re
import zipfile

import numpy as np
import pytest

from disarm_jax.data import DataError, load, npz


@pytest.mark.parametrize("shape", [(28, 28), (5, 7), (30,)])
def test_own_images(tmp_path, shape):
    rng = np.random.default_rng(0)
    splits = {n: rng.integers(0, 256, (c, *shape), np.uint8) for n, c in (("train", 6), ("validation", 2), ("test", 3))}
    np.savez_compressed(tmp_path / "mine.npz", labels=np.arange(6), **splits)
    dataset = load("npz", path=tmp_path / "mine.npz")
    for name, images in splits.items():
        np.testing.assert_array_equal(getattr(dataset, name), images.reshape(len(images), -1))
    assert dataset.image_shape == shape
    assert dataset.provenance.origin == str(tmp_path / "mine.npz")


GOOD = np.zeros((4, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"train": GOOD / 255}, "'train' in .* has the dtype float64; expected uint8"),
        ({"test": GOOD.astype(bool)}, "'test' in .* has the dtype bool"),
        ({"validation": GOOD[:, :14]}, r"'validation' in .* has the shape \(4, 14, 28\); expected \(4, 28, 28\)"),
        ({"train": GOOD[..., None]}, r"'train' in .* has the shape \(4, 28, 28, 1\); expected \[N, H, W\] or \[N, D\]"),
        ({"train": np.uint8(3)}, r"'train' in .* has the shape \(\)"),
        ({"test": GOOD[:0]}, r"'test' in .* has the shape \(0, 28, 28\)"),
    ],
)
def test_other_arrays_are_refused_by_name(tmp_path, changes, reason):
    np.savez(tmp_path / "mine.npz", **({"train": GOOD, "validation": GOOD, "test": GOOD} | changes))
    with pytest.raises(DataError, match=reason) as raised:
        load("npz", path=tmp_path / "mine.npz")
    assert str(tmp_path / "mine.npz") in str(raised.value)


def test_other_files_are_refused_by_name(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(ValueError, match="give its path"):
        load("npz")
    with pytest.raises(DataError, match=f"{re.escape(str(path))}: no such file"):
        load("npz", path=path)
    np.savez(path, train=GOOD, images=GOOD)
    with pytest.raises(DataError, match="no array validation, test; it has train, images"):
        load("npz", path=path)
    with open(path, "wb") as stream:
        np.save(stream, GOOD)
    for content in (path.read_bytes(), b"hello", b""):
        path.write_bytes(content)
        with pytest.raises(DataError, match="is not a whole npz file"):
            load("npz", path=path)
    with pytest.raises(DataError, match="is a folder"):
        load("npz", path=tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("train", "validation", "test"):
            archive.writestr(f"{name}.npy", b"no array")
    with pytest.raises(DataError, match="no array under 'train'"):
        load("npz", path=path)


def test_damage_anywhere_is_a_data_error(tmp_path):
    """Every byte of the file's directory and headers, changed one at a time: other images, or a DataError."""
    path = tmp_path / "mine.npz"
    np.savez(path, train=GOOD, validation=GOOD, test=GOOD)
    whole = path.read_bytes()
    places = [*range(200), *range(whole.rindex(b"PK\x01\x02") - 150, len(whole))]
    refused = 0
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            load("npz", path=path)
        except DataError:
            refused += 1
    assert refused > len(places) / 3


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "executed",))

    np.savez(tmp_path / "mine.npz", train=np.array([Trap()], dtype=object), validation=GOOD, test=GOOD)
    with pytest.raises(DataError, match="allow_pickle=False"):
        load("npz", path=tmp_path / "mine.npz")
    assert not (tmp_path / "executed").exists()


def test_pipes_and_bombs_are_refused(tmp_path, monkeypatch):
    """A pipe would be waited for, and a small file may unpack to more than there is memory."""
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(DataError, match="not a regular file"):
        npz.read_npz(tmp_path / "pipe.npz", ["train"])
    os.mkfifo(tmp_path / "mnist.npz")
    with pytest.raises(DataError, match="not a regular file"):
        load("mnist", data_dir=tmp_path)
    np.savez_compressed(tmp_path / "bomb.npz", train=np.zeros(100_000, np.uint8))
    monkeypatch.setattr(npz, "MAX_BYTES", 50_000)
    with pytest.raises(DataError, match=r"unpacks to 100,128 bytes; accepted: at most 50,000"):
        npz.read_npz(tmp_path / "bomb.npz", ["train"])
