"""Our number beside the paper's: which run belongs to which cell, whether the two may be compared, and what it cost.

A cell is comparable if it was trained for the paper's number of steps, on the paper's version of the data, with every
setting that decides what is learnt as in the config file of the experiment. Fewer seeds only widen the standard error.
Runs that differ by a named variant stand beside the reference in rows of their own.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from disarm_jax.data import recorded
from disarm_jax.report import paper
from disarm_jax.report.palette import count
from disarm_jax.report.pools import Pool, Value, settings_of
from disarm_jax.report.times import RelativeTime, evaluations_of, relative_time, time_remark
from disarm_jax.report.variants import Variant, names_of, variants_of

MATCH, DIFFERS, VARIANT = "match", "differs", "variant"
NOT_COMPARABLE, MISSING = "not comparable", "missing"
MATCH_WITHIN = 2.0  # combined standard errors


class Cell(NamedTuple):
    """One number of one table; as it is without runs, but for what is given.

    Attributes:
      place: where it stands, up to the split.
      split: "train" or "test".
      variants: by which it differs from the reference.
      variant: what its estimator's name has to add, see `variants`; empty for most.
      pool: our runs, None if there are none.
      value: our number, None if there is none yet.
      verdict: one of the words above.
      same_settings: whether nothing but the number of steps, and named variants, tells it from the reference.
      reasons: why the two are not comparable.
      remarks: what else there is to know.
      difference: ours less the paper's in combined standard errors, None unless comparable or a variant. A single seed
        has no standard error; the paper's spread between seeds, √5 times its standard error, then stands for ours.
      evaluations: of f in a training step, per example; None without runs, or if the estimator does not tell.
      time: of a step of one seed, DisARM's on the same model and device being 1; None without such a pair.
    """

    place: paper.Place
    split: str
    variants: tuple[Variant, ...] = ()
    variant: str = ""
    pool: Pool | None = None
    value: Value | None = None
    verdict: str = MISSING
    same_settings: bool = False
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    difference: float | None = None
    evaluations: int | None = None
    time: RelativeTime | None = None

    @property
    def metric(self) -> str:
        """What runs call its number."""
        return paper.metric_of(self.place, self.split)

    @property
    def paper(self) -> paper.Number:
        """The paper's number."""
        return paper.NUMBERS[self.place, self.split]

    @property
    def command(self) -> str:
        """The command that would train it as the paper did."""
        return paper.command_of(self.place)

    @property
    def name(self) -> str:
        """The estimator as in the paper's tables, with its variant."""
        return ", ".join(filter(None, [(paper.ELBO | paper.MULTISAMPLE)[self.place.column], self.variant]))

    @property
    def counts(self) -> bool:
        """Whether it is part of the verdict."""
        return self.verdict in (MATCH, DIFFERS)

    @property
    def our_value(self) -> Value:
        """Our number, of a cell that has one."""
        assert self.value is not None
        return self.value

    @property
    def our_pool(self) -> Pool:
        """Our runs, of a cell that has some."""
        assert self.pool is not None
        return self.pool

    @property
    def one_seed(self) -> bool:
        """Whether its difference rests on a single seed of ours."""
        return self.value is not None and self.value.stderr is None


class Comparison(NamedTuple):
    """All tables.

    Attributes:
      cells: by place and split, those of the reference.
      variants: of the same places, those that differ by a named variant, if there are any.
      others: pools that stand in no table: the paper has no such cell, or another pool is closer to the paper's.
    """

    cells: dict[tuple[paper.Place, str], Cell]
    variants: dict[tuple[paper.Place, str], tuple[Cell, ...]]
    others: list[Pool]

    def at(self, place: paper.Place, split: str) -> list[Cell]:
        """The cells of a place: the reference first, then its variants."""
        return [self.cells[place, split], *self.variants[place, split]]

    def all_cells(self) -> list[Cell]:
        """Every cell, each once."""
        return [cell for key in self.cells for cell in self.at(*key)]


def compare(pools: Sequence[Pool], get_config: Callable[[str], ConfigDict]) -> Comparison:
    """Every cell of the paper, with our number if there is one.

    Args:
      pools: our runs.
      get_config: from the name of a config, such as elbo_linear or layers:3, to the config.
    """
    places = [(paper.place_of(pool.config), pool) for pool in pools]
    references = {place: paper.reference_of(place, get_config) for place, _ in places if place}
    cells, variants = {}, {}
    for place, split in paper.NUMBERS:
        groups: dict[tuple, list[Cell]] = {(): [Cell(place, split)]}
        for found, pool in places:
            if found == place:
                cell = _cell(place, split, pool, references[place], pools)
                groups.setdefault(cell.variants, []).append(cell)
        cells[place, split] = min(groups.pop(()), key=_distance)
        found = [min(group, key=_distance) for group in groups.values()]
        variants[place, split] = tuple(cell for cell in found if cell.value)
    comparison = Comparison(cells, variants, [])
    shown = {id(cell.pool) for cell in comparison.all_cells()}
    return comparison._replace(others=[pool for pool in pools if id(pool) not in shown])


def _distance(cell: Cell) -> tuple:
    """Orders the candidates for a cell: the fewest reasons against it, then the most steps, then the most seeds."""
    value = cell.value
    if value is None:
        return True, cell.pool is None
    return False, len(cell.reasons), -value.step, -len(value.seeds)


def _cell(place: paper.Place, split: str, pool: Pool, reference: Mapping[str, Any], pools: Sequence[Pool]) -> Cell:
    cell = Cell(place, split)
    value = pool.value(cell.metric)
    settings = settings_against(pool, reference)
    reasons = (*_steps_against(value), *settings) if value else ()
    found = variants_of(pool.config, reference)
    gap = difference(value, cell.paper) if value and not reasons else None
    return cell._replace(
        variants=found,
        variant=names_of(pool.config, reference),
        pool=pool,
        value=value,
        verdict=_verdict(value, gap, all(variant.comparable for variant in found)),
        same_settings=not settings,
        reasons=reasons,
        remarks=_remarks(pool, value, cell.metric),
        difference=gap,
        evaluations=evaluations_of(pool.config),
        time=relative_time(pool, pools),
    )


def _verdict(value: Value | None, gap: float | None, comparable: bool) -> str:
    if value is None:
        return MISSING
    if gap is None:
        return NOT_COMPARABLE
    if not comparable:
        return VARIANT
    return MATCH if abs(gap) <= MATCH_WITHIN else DIFFERS


def difference(value: Value, number: paper.Number) -> float:
    """Ours less the paper's, in combined standard errors.

    >>> round(difference(Value(-116.0, 0.06, 1_000_000, (0, 1, 2), {}), paper.Number(-116.3, 0.08)), 6)
    3.0
    """
    stderr = math.sqrt(paper.SEEDS) * number.stderr if value.stderr is None else value.stderr
    return (value.mean - number.mean) / math.hypot(stderr, number.stderr)


def _steps_against(value: Value) -> tuple[str, ...]:
    return () if value.step == paper.STEPS else (f"{value.step:,} steps instead of {paper.STEPS:,}",)


def settings_against(pool: Pool, reference: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings and data that keep a pool from being comparable, whatever its steps; named variants do not."""
    reasons = []
    ours, theirs = pool.settings, settings_of(reference)
    variants = {variant.field for variant in variants_of(pool.config, reference)}
    for field in sorted((ours.keys() | theirs.keys()) - variants):
        if ours.get(field) != theirs.get(field):
            reasons.append(f"{field} is {_shown(ours, field)} instead of {_shown(theirs, field)}")
    sums = recorded.ARRAYS[reference["dataset"]["name"]]
    for run in pool.runs:
        if sums and run.data_sums not in ({}, sums) and run.config["dataset"]["binarization"] == "dynamic":
            reasons.append(f"another version of the data: its sha256 is not the recorded one in {run.name}")
    return tuple(reasons)


def _shown(settings: Mapping[str, Any], field: str) -> str:
    return repr(settings[field]) if field in settings else "the default"


def _remarks(pool: Pool, value: Value | None, metric: str) -> tuple[str, ...]:
    if value is None:
        return (f"at step {max(run.step for run in pool.runs):,}, without {metric} yet",)
    counted = [value.reached[seed] for seed in value.seeds]
    remarks = []
    if max(counted) > value.step != paper.STEPS:
        remarks.append(f"taken at the last common step of seeds that are at {min(counted):,} to {max(counted):,}")
    for seed, step in value.reached.items():
        if seed not in value.seeds:
            remarks.append(f"seed {seed} is at {step:,} and does not count")
    if repeated := [str(seed) for seed in pool.repeated if seed in value.seeds]:
        remarks.append(f"seed {', '.join(repeated)}: in several run directories, counted once")
    if len(value.seeds) != paper.SEEDS:
        remarks.append(f"{count(len(value.seeds), 'seed')} instead of {paper.SEEDS}")
    remarks += pool.code_remarks(metric)
    if remark := time_remark(pool):
        remarks.append(remark)
    return tuple(remarks)
