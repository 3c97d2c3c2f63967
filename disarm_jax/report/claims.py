"""The orderings that the paper claims, and whether they hold in our runs.

An ordering is judged for each data set and model apart, between numbers at the same step of runs that differ in nothing
but the estimator. Bounds and variances count after the paper's number of steps; what shorter runs say is listed as
early. Variances are averages over the last tenth of training, since a single one is noisy.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from disarm_jax.report import paper
from disarm_jax.report.cells import Cell, Comparison
from disarm_jax.report.paper import Place

LINEAR, NONLINEAR = ("linear",), ("nonlinear",)
LAYERS = ("layers_2", "layers_3", "layers_4")
SINGLE, EVERY = LINEAR + NONLINEAR, LINEAR + NONLINEAR + LAYERS
OF_2, OF_20 = ("multisample_disarm_1", "vimco_2"), ("multisample_disarm_10", "vimco_20")  # samples of the bound
HOLDS, UNDECIDED, FAILS, NOT_RUN = "holds", "undecided", "does not hold", "not run"


class Claim(NamedTuple):
    """An ordering that the paper claims.

    Attributes:
      text: in words.
      what: is ordered: train, comparable (bounds), variance, overtakes (variances), order (of test and train), time.
      columns: the paper's columns it is about, the one that is said to be ahead first.
      models: the kinds of models, each on every data set.
      bounds: for times, the smallest and the largest ratio for which the claim holds.
    """

    text: str
    what: str
    columns: tuple[str, ...]
    models: tuple[str, ...]
    bounds: tuple[float, float] = (0.0, 0.0)


CLAIMS = (
    Claim("Gradient variance: DisARM below REINFORCE LOO", "variance", ("disarm", "reinforce_loo"), EVERY),
    Claim("Gradient variance: DisARM below ARM", "variance", ("disarm", "arm"), EVERY),
    Claim("Gradient variance: RELAX below DisARM on linear models", "variance", ("relax", "disarm"), LINEAR),
    Claim(
        "Gradient variance: DisARM overtakes RELAX on nonlinear models as training proceeds",
        "overtakes",
        ("disarm", "relax"),
        NONLINEAR,
    ),
    Claim("Train ELBO: DisARM ahead of ARM", "train", ("disarm", "arm"), EVERY),
    Claim(
        "Train ELBO: DisARM ahead of REINFORCE LOO on linear models of one and more layers",
        "train",
        ("disarm", "reinforce_loo"),
        LINEAR + LAYERS,
    ),
    Claim(
        "Train ELBO: DisARM comparable with REINFORCE LOO on nonlinear models (within 2 combined standard errors)",
        "comparable",
        ("disarm", "reinforce_loo"),
        NONLINEAR,
    ),
    Claim("Train ELBO: REINFORCE LOO ahead of ARM", "train", ("reinforce_loo", "arm"), EVERY),
    Claim(
        "Train ELBO: RELAX ahead of DisARM on linear models of one and more layers",
        "train",
        ("relax", "disarm"),
        LINEAR + LAYERS,
    ),
    Claim("Train multi-sample bound: DisARM with 1 pair ahead of VIMCO with 2 samples", "train", OF_2, SINGLE),
    Claim("Train multi-sample bound: DisARM with 10 pairs ahead of VIMCO with 20 samples", "train", OF_20, SINGLE),
    Claim("ELBO: test bounds have the order of train bounds", "order", tuple(paper.ELBO), EVERY),
    Claim("2-sample bound: test bounds have the order of train bounds", "order", OF_2, SINGLE),
    Claim("20-sample bound: test bounds have the order of train bounds", "order", OF_20, SINGLE),
    Claim("A step of RELAX takes about twice the time of DisARM's", "time", ("relax",), EVERY, (1.5, 2.5)),
    Claim("A step of ARM takes the time of DisARM's", "time", ("arm",), EVERY, (0.9, 1.1)),
    Claim("A step of REINFORCE LOO takes the time of DisARM's", "time", ("reinforce_loo",), EVERY, (0.9, 1.1)),
)


class Finding(NamedTuple):
    """What one data set and model say of a claim.

    Attributes:
      dataset: key of `paper.DATASETS`.
      model: key of `paper.MODELS`.
      holds: whether the claim does, here.
      numbers: that it rests on, in words.
      step: at which they were taken; None for times, which need no full length.
      variant: by which all of the runs differ from the reference; empty for most.
      close: whether it holds, or fails, by less than two standard errors.
    """

    dataset: str
    model: str
    holds: bool
    numbers: str
    step: int | None
    variant: str = ""
    close: bool = False

    @property
    def early(self) -> bool:
        """Whether it is too early to count."""
        return self.step not in (None, paper.STEPS)

    def __str__(self) -> str:
        """In words, with the step if it does not count."""
        step = f" at step {self.step:,}, too early to count" if self.early else ""
        variant = f", {self.variant}" if self.variant else ""
        where = f"{paper.DATASETS[self.dataset]}, {paper.MODELS[self.model]}{variant}"
        noise = ", but within the noise" if self.close else ""
        return f"{where}: {'holds' if self.holds else 'does not hold'}{noise}{step}; {self.numbers}"


class Judgement(NamedTuple):
    """A claim and what our runs say of it.

    Attributes:
      claim: of the paper.
      findings: that count, one for each data set and model that was run.
      early: findings of shorter runs, which do not count.
      models: how many pairs of data set and model the claim is about.
      in_paper: on how many of these the paper's own numbers have it; None where it gives no numbers.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    early: tuple[Finding, ...]
    models: int
    in_paper: int | None

    @property
    def verdict(self) -> str:
        """One of the words above; undecided if the claim fails on some models, on each by less than the noise."""
        if not self.findings:
            return NOT_RUN
        if all(finding.holds for finding in self.findings):
            return HOLDS
        return UNDECIDED if all(finding.holds or finding.close for finding in self.findings) else FAILS

    @property
    def counts(self) -> str:
        """On how many models it holds, as in "holds on 2 of 2 run, 4 not run"; models of shorter runs apart."""
        held, run, early = sum(finding.holds for finding in self.findings), len(self.findings), len(self.early)
        so_far, rest = sum(finding.holds for finding in self.early), self.models - run - early
        close = sum(finding.close for finding in self.findings)
        parts = [f"holds on {held} of {run} run" + (f" ({close} within the noise)" if close else "")] if run else []
        parts += [f"{early} too early to judge (holds on {so_far} so far)"] if early else []
        parts += [f"{rest} not run"] if rest else []
        return ", ".join(parts)


def judge(claim: Claim, comparison: Comparison) -> Judgement:
    """Whether a claim holds in our runs, model by model."""
    where = [(dataset, model) for dataset in paper.DATASETS for model in claim.models]
    found = [_finding(claim, comparison, *place) for place in where]
    in_paper = [holds for place in where if (holds := _in_paper(claim, *place)) is not None]
    return Judgement(
        claim,
        tuple(finding for finding in found if finding and not finding.early),
        tuple(finding for finding in found if finding and finding.early),
        len(where),
        sum(in_paper) if len(in_paper) == len(where) else None,
    )


def _pairs(claim: Claim, comparison: Comparison, dataset: str, model: str) -> Iterator[tuple[Cell, Cell]]:
    """Cells on the training set of both columns of a claim that may be compared, those closest to the paper's first."""
    one, other = (_run(comparison, Place(dataset, model, column)) for column in claim.columns)
    return ((cell, beside) for cell in one for beside in other if _variants(beside) == _variants(cell))


def _run(comparison: Comparison, place: Place, split: str = "train") -> list[Cell]:
    return [cell for cell in comparison.at(place, split) if cell.value and cell.same_settings]


def _variants(cell: Cell) -> str:
    """The variants that both of a pair must have."""
    return ", ".join(variant.name for variant in cell.variants if not variant.comparable)


def _name(cell: Cell) -> str:
    """Of the estimator, with the variants that one of a pair may have alone."""
    column = (paper.ELBO | paper.MULTISAMPLE)[cell.place.column]
    return ", ".join([column, *(variant.name for variant in cell.variants if variant.comparable)])


def _finding(claim: Claim, comparison: Comparison, dataset: str, model: str) -> Finding | None:
    """What a data set and model say of a claim; of several pairs of runs the first that counts, else the first."""
    if claim.what in ("order", "time"):
        return (_order if claim.what == "order" else _time)(claim, comparison, dataset, model)
    about_pair = _ratios if claim.what in ("variance", "overtakes") else _bounds
    found = [finding for pair in _pairs(claim, comparison, dataset, model) if (finding := about_pair(claim, pair))]
    return next((finding for finding in found if not finding.early), found[0] if found else None)


def _bounds(claim: Claim, pair: tuple[Cell, Cell]) -> Finding | None:
    """At the last step that both have, or the paper's."""
    one, other = (cell.our_pool.curve(cell.metric) for cell in pair)
    common = np.intersect1d(one[0], other[0])
    if not common.size:
        return None
    step = paper.STEPS if paper.STEPS in common else int(common.max())
    (mean, error), (other_mean, other_error) = (
        next((mean, error) for at, mean, error in zip(*curve, strict=True) if at == step) for curve in (one, other)
    )
    gap, theirs = mean - other_mean, pair[0].paper.mean - pair[1].paper.mean
    noise = np.hypot(_error(pair[0], error), _error(pair[1], other_error))
    near = bool(abs(gap) <= 2 * noise)
    holds = near if claim.what == "comparable" else bool(gap > 0)
    numbers = f"{_name(pair[0])} {mean:.2f}, {_name(pair[1])} {other_mean:.2f}: {gap:+.2f} ± {noise:.2f} nats"
    numbers += f" (paper {theirs:+.2f})"
    return Finding(*pair[0].place[:2], holds, numbers, step, _variants(pair[0]), near and claim.what != "comparable")


def _error(cell: Cell, own: float | None) -> float:
    """Our standard error; a single seed borrows the paper's spread between seeds, as in `cells.difference`."""
    return own if own is not None and np.isfinite(own) else np.sqrt(paper.SEEDS) * cell.paper.stderr


def _ratios(claim: Claim, pair: tuple[Cell, Cell]) -> Finding | None:
    """Late in training; for overtaking, early in training too."""
    one, other = (cell.our_pool.curve("gradient_variance") for cell in pair)
    common, at_one, at_other = np.intersect1d(one[0], other[0], return_indices=True)
    if not common.size:
        return None
    step = paper.STEPS if paper.STEPS in common else int(common.max())
    with np.errstate(divide="ignore", invalid="ignore"):  # an exact estimator has none
        logs = np.log(one[1][at_one] / other[1][at_other])
    late = np.exp(np.mean(logs[(common > 0.9 * step) & (common <= step)]))
    names = " over ".join(map(_name, pair))
    holds, numbers = late < 1, f"{names}: {late:.2f}"
    if claim.what == "overtakes":
        begin = np.exp(np.mean(logs[common <= max(0.1 * step, common.min())]))
        holds, numbers = begin > 1 > late, f"{names}: {begin:.2f} in the first tenth, {late:.2f} in the last"
    return Finding(*pair[0].place[:2], bool(holds), numbers, step, _variants(pair[0]))


def _time(claim: Claim, comparison: Comparison, dataset: str, model: str) -> Finding | None:
    (column,), (low, high) = claim.columns, claim.bounds
    for cell in _run(comparison, Place(dataset, model, column)):
        if cell.time:
            return Finding(dataset, model, low <= cell.time.ratio <= high, f"{cell.time} times", None, _variants(cell))
    return None


def _order(claim: Claim, comparison: Comparison, dataset: str, model: str) -> Finding | None:
    """The order of the estimators whose train bounds, and whose test bounds, were taken at one step."""
    orders: dict[tuple[str, int, int], dict[str, tuple[Cell, Cell]]] = {}
    for column in claim.columns:
        place = Place(dataset, model, column)
        tests = {id(cell.pool): cell for cell in _run(comparison, place, "test")}
        for train in _run(comparison, place):
            if test := tests.get(id(train.pool)):
                cells = orders.setdefault((_variants(train), train.our_value.step, test.our_value.step), {})
                cells.setdefault(column, (train, test))
    orders = {key: cells for key, cells in orders.items() if len(cells) > 1}
    if not orders:
        return None
    # What counts before what is early, then the most estimators.
    (variant, step, _), cells = max(orders.items(), key=lambda item: (item[0][1] == paper.STEPS, len(item[1])))
    train, test = (sorted(cells, key=lambda column: -cells[column][split].our_value.mean) for split in (0, 1))
    swapped = [pair for pair in itertools.combinations(train, 2) if test.index(pair[0]) > test.index(pair[1])]
    close = bool(swapped) and all(_near(*(cells[column] for column in pair)) for pair in swapped)
    return Finding(dataset, model, not swapped, f"train {_chain(train)}; test {_chain(test)}", step, variant, close)


def _near(one: tuple[Cell, Cell], other: tuple[Cell, Cell]) -> bool:
    """Whether the train or the test bounds of two estimators are within the noise of each other."""
    pairs = list(zip(one, other, strict=True))
    gaps = [abs(cell.our_value.mean - beside.our_value.mean) for cell, beside in pairs]
    errors = [[_error(cell, cell.our_value.stderr) for cell in cells] for cells in (one, other)]
    noise = map(np.hypot, *errors)
    return any(gap <= 2 * error for gap, error in zip(gaps, noise, strict=True))


def _chain(columns: Sequence[str]) -> str:
    return " > ".join((paper.ELBO | paper.MULTISAMPLE)[column] for column in columns)


def _in_paper(claim: Claim, dataset: str, model: str) -> bool | None:
    """Whether the paper's own numbers have it; None for variances and times, of which it gives none."""
    places = [Place(dataset, model, column) for column in claim.columns]
    if claim.what == "order":
        orders = [sorted(places, key=lambda place: -paper.NUMBERS[place, split].mean) for split in ("train", "test")]
        return orders[0] == orders[1]
    if claim.what not in ("train", "comparable"):
        return None
    one, other = (paper.NUMBERS[place, "train"] for place in places)
    gap = one.mean - other.mean
    return abs(gap) <= 2 * np.hypot(one.stderr, other.stderr) if claim.what == "comparable" else gap > 0
