"""How a name becomes an estimator: a table of factories, with what is written down about each of them."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from disarm_jax.estimators.estimator import Estimator


class EstimatorInfo(NamedTuple):
    """What a user asks before choosing an estimator.

    Attributes:
      name: as in configs.
      objective: "expectation" for E f(b), "bound" for the multi-sample bound with f = log w.
      unbiased: whether its mean is the exact gradient.
      needs_grad: whether f is differentiated with respect to b, and so must be defined between 0 and 1.
      evaluations: evaluations of f per estimate and example, relaxed ones included; "D + 1" for `leg`, where it depends
        on the number of bits.
      paper: where it comes from.
      advice: one line, when to prefer it.
    """

    name: str
    objective: str
    unbiased: bool
    needs_grad: bool
    evaluations: int | str
    paper: str
    advice: str


class Entry(NamedTuple):
    """A factory, and what `EstimatorInfo` says of it; `evaluations` is counted from the options."""

    factory: Callable[..., Estimator]
    evaluations: Callable[[dict], int | str]
    paper: str
    advice: str
    objective: str = "expectation"
    unbiased: bool = True
    needs_grad: bool = False


class Table:
    """Entries by name; a name that is not there is refused with those that are."""

    def __init__(self, entries: dict[str, Entry]):
        self._entries = entries

    def names(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted(self._entries))

    def make(self, name: str, options: dict[str, Any]) -> Estimator:
        """The estimator of that name."""
        return self._entry(name).factory(**options)

    def info(self, name: str, options: dict[str, Any]) -> EstimatorInfo:
        """What it needs and gives with these options; bad ones are refused."""
        entry = self._entry(name)
        entry.factory(**options)
        defaults = {key: p.default for key, p in inspect.signature(entry.factory).parameters.items()}
        return EstimatorInfo(
            name,
            entry.objective,
            entry.unbiased,
            entry.needs_grad,
            entry.evaluations(defaults | options),
            entry.paper,
            entry.advice,
        )

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise ValueError(f"unknown estimator {name!r}; known: {', '.join(self.names())}")
        return self._entries[name]


def samples(options: dict) -> int:
    """Evaluations of an estimator with one for each of its samples."""
    return options["num_samples"] * options.get("repeats", 1) * options.get("group_size", 1)


def pairs(options: dict) -> int:
    """Evaluations of an estimator with two for each of its pairs."""
    return 2 * options["num_pairs"]


def relaxed(options: dict) -> int:
    """Evaluations of an estimator with a relaxed point beside the sample, unless ∇f is taken at the sample."""
    return 1 if options["hard"] else 2


def pairs_and_midpoints(options: dict) -> int:
    """Three evaluations per pair, one of them between its samples."""
    return 3 * options["num_pairs"]


def and_the_mean(evaluations: Callable[[dict], int]) -> Callable[[dict], int]:
    """One evaluation more, at the mean."""
    return lambda options: evaluations(options) + 1


def always(evaluations: int | str) -> Callable[[dict], int | str]:
    """The same number of evaluations for all options."""
    return lambda options: evaluations
