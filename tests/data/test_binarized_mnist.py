import hashlib

import numpy as np
import pytest
from small_data import COUNTS, assert_splits, record

from disarm_jax.data import DataError, load, recorded
from disarm_jax.data.binarized_mnist import PACKED_FILE, amat_text

NAMES = ("train", "valid", "test")


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Bits of a small set, recorded; its text files are in one folder and its packed file in another."""
    rng = np.random.default_rng(0)
    bits = {name: rng.integers(0, 2, (count, 784)).astype(np.uint8) for name, count in zip(NAMES, COUNTS, strict=True)}
    files = []
    for name, split in bits.items():
        text = "".join(" ".join(map(str, row)) + "\n" for row in split).encode()
        path = tmp_path / "text" / f"binarized_mnist_{name}.amat"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        sha256 = hashlib.sha256(text).hexdigest()
        files.append(recorded.RecordedFile(path.name, "http://127.0.0.1:9/", len(text), sha256, len(split)))
    splits = {split: 255 * bits[name] for split, name in zip(("train", "validation", "test"), NAMES, strict=True)}
    record(monkeypatch, "binarized_mnist", tuple(files), splits)
    (tmp_path / "packed").mkdir()
    np.savez(tmp_path / "packed" / PACKED_FILE, **{name: np.packbits(split, axis=1) for name, split in bits.items()})
    return splits


@pytest.mark.parametrize("form", ["text", "packed"])
def test_both_forms_give_the_same_images(small, tmp_path, form):
    dataset = load("binarized_mnist", data_dir=tmp_path / "data", path=tmp_path / form)
    assert_splits(dataset, small)
    assert set(np.unique(dataset.train)) == {0, 255}
    assert str(tmp_path / form) in dataset.provenance.origin


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: b"1" + t[1:] if t[:1] == b"0" else b"0" + t[1:]])
def test_other_text_is_refused_by_name(small, tmp_path, change):
    path = tmp_path / "text/binarized_mnist_valid.amat"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="wrong checksum") as raised:
        load("binarized_mnist", data_dir=tmp_path / "data", path=tmp_path / "text")
    assert str(path) in str(raised.value)
    assert not (tmp_path / "data").exists()


def test_other_bits_are_refused_by_name(small, tmp_path):
    path = tmp_path / "packed" / PACKED_FILE
    with np.load(path) as contents:
        arrays = dict(contents)
    for changes, reason in (
        ({"test": arrays["test"] ^ 1}, "'test' of .* written out as text, has a wrong checksum"),
        ({"valid": arrays["valid"][:-1]}, r"'valid' of .* has the shape \(3, 98\); expected \(4, 98\)"),
        ({"train": arrays["train"].astype(np.int32)}, "'train' of .* has the dtype int32"),
    ):
        np.savez(path, **(arrays | changes))
        with pytest.raises(DataError, match=reason):
            load("binarized_mnist", data_dir=tmp_path / "data", path=tmp_path / "packed")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="is not a whole npz file"):
        load("binarized_mnist", data_dir=tmp_path / "data", path=tmp_path / "packed")
    path.unlink()
    with pytest.raises(DataError, match=f"no binarized_mnist_train.amat, .* and no {PACKED_FILE}"):
        load("binarized_mnist", source="files", data_dir=tmp_path / "data", path=tmp_path / "packed")
    assert not (tmp_path / "data").exists()


def test_the_text_of_an_amat_file():
    bits = np.zeros((2, 784), np.uint8)
    bits[1, :2] = 1
    lines = amat_text(bits).decode().splitlines()
    assert lines == [" ".join("0" * 784), " ".join("11" + "0" * 782)]
