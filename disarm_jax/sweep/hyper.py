"""The words in which a config file states its sweep; a sweep is a list of trials, a trial a dict of fields.

This module is what `get_hyper(hyper)` of a config file receives. Fields are dotted names, with or without "config."
before them.

>>> product([sweep("model.hidden", [(), (200, 200)]), sweep("config.estimator.name", ["arm", "disarm"])])[:2]
[{'model.hidden': (), 'estimator.name': 'arm'}, {'model.hidden': (), 'estimator.name': 'disarm'}]
>>> zipit([sweep("batch_size", [50, 100]), sweep("steps", [2000, 1000])])
[{'batch_size': 50, 'steps': 2000}, {'batch_size': 100, 'steps': 1000}]
>>> chainit([fixed("steps", 10), sweep("batch_size", [1, 2])])
[{'steps': 10}, {'batch_size': 1}, {'batch_size': 2}]
"""

import itertools
from collections.abc import Iterable
from typing import Any

Trials = list[dict[str, Any]]


def sweep(field: str, values: Iterable[Any]) -> Trials:
    """One trial for each value of a field."""
    return [{field.removeprefix("config."): value} for value in values]


def fixed(field: str, value: Any, length: int = 1) -> Trials:
    """The same value in every trial that this is combined with; `length` of them, for `zipit`."""
    return sweep(field, [value] * length)


def product(sweeps: Iterable[Trials]) -> Trials:
    """Every combination of trials, one of each sweep; the last sweep changes fastest."""
    return [_merged(parts) for parts in itertools.product(*sweeps)]


def zipit(sweeps: Iterable[Trials]) -> Trials:
    """The first trials of all sweeps as one, then the second ones, …; they must be equally long."""
    return [_merged(parts) for parts in zip(*sweeps, strict=True)]


def chainit(sweeps: Iterable[Trials]) -> Trials:
    """The trials of one sweep after those of the other."""
    return list(itertools.chain(*sweeps))


def _merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    trial: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, dict):
            raise TypeError(f"{part!r} is not a trial; accepted: a list of sweeps, as in product([sweep(…), sweep(…)])")
        if twice := trial.keys() & part.keys():
            raise ValueError(f"{', '.join(sorted(twice))} is in two of the sweeps that are combined")
        trial |= part
    return trial
