"""The words in which a sweep is stated."""

import pytest

from disarm_jax.sweep import hyper

A, B = hyper.sweep("a", [1, 2]), hyper.sweep("config.b", "xyz")


def test_product_has_all_combinations_in_order():
    expected = [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]
    assert hyper.product([A, B]) == expected
    assert hyper.product([A]) == A
    assert hyper.product([A, []]) == []


def test_zip_and_chain():
    assert hyper.zipit([A, hyper.fixed("c", (), length=2)]) == [{"a": 1, "c": ()}, {"a": 2, "c": ()}]
    assert hyper.chainit([A, B, hyper.fixed("c", 0)]) == [*A, *B, {"c": 0}]
    with pytest.raises(ValueError, match="longer"):
        hyper.zipit([A, B])


def test_a_field_twice_is_refused():
    with pytest.raises(ValueError, match="a is in two of the sweeps"):
        hyper.product([A, hyper.sweep("config.a", [3])])
