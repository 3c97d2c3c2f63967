"""The table of mutants fits today's source; the mutants themselves are not run here."""

import ast
import subprocess

import pytest

from scripts import mutants

MUTANTS = mutants.load_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_every_piece_is_found_once(mutant):
    """And what replaces it is another program."""
    source = (mutants.ROOT / "disarm_jax" / mutant.file).read_text()
    assert ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))


def test_every_mutant_is_another_one_and_has_tests():
    assert len({str(mutant) for mutant in MUTANTS}) == len({(m.file, m.piece, m.replacement) for m in MUTANTS})
    assert len({str(mutant) for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert (mutants.ROOT / "tests" / mutant.tests[0]).is_file()


@pytest.mark.parametrize("source", ["", "f(b); f(b)"])
def test_a_piece_that_is_missing_or_ambiguous_is_named(source):
    mutant = mutants.Mutant("some.py", "f at another point", ("test_some.py", "test"), "f(b)", "f(c)")
    with pytest.raises(ValueError, match=r"some.py: f at another point: .*exactly once, found \d times: 'f\(b\)'"):
        mutant.apply(source)


@pytest.mark.parametrize(
    ("status", "printed", "expected"),
    [
        (1, "FAILED tests/test_a.py::test_b[c - d] - assert 1 == 2\n1 failed", "killed"),
        (0, "3 passed in 0.1s", "SURVIVED"),
        (5, "no tests ran in 0.1s", "ERROR"),
        (1, "ERROR tests/test_a.py::test_b - ImportError\n1 error", "ERROR"),
    ],
)
def test_only_a_failing_test_kills(status, printed, expected):
    result = mutants._read(subprocess.CompletedProcess([], status, printed, ""), 1.0)
    assert result.status == expected


def test_tests_of_a_file_are_selected_together():
    tests = [("a", "x"), ("b", "y"), ("a", "z"), ("a", "x")]
    chosen = [mutants.Mutant("some.py", "fault", selection, "", "") for selection in tests]
    assert mutants.selections(chosen) == [("a", "(x) or (z)"), ("b", "(y)")]
