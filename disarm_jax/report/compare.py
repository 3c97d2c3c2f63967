"""Our number beside the paper's: which run belongs to which cell, whether the two may be compared, and what it cost.

A cell is comparable if it was trained for the paper's number of steps, on the paper's version of the data, with every
setting that decides what is learnt as in the config file of the experiment. Fewer seeds only widen the standard error.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from disarm_jax.data import recorded
from disarm_jax.experiment import choices
from disarm_jax.report import paper
from disarm_jax.report.pools import Pool, Value, settings_of

MATCH, DIFFERS, ONE_SEED = "match", "differs", "one seed"
NOT_COMPARABLE, MISSING = "not comparable", "missing"
MATCH_WITHIN = 2.0  # combined standard errors


class Cell(NamedTuple):
    """One number of one table.

    Attributes:
      place: where it stands, up to the split.
      split: "train" or "test".
      metric: what runs call it.
      paper: the paper's number.
      pool: our runs, None if there are none.
      value: our number, None if there is none yet.
      verdict: one of the words above.
      reasons: why the two are not comparable.
      remarks: what else there is to know.
      difference: ours less the paper's in combined standard errors, None unless comparable. A single seed has no
        standard error; the paper's spread between seeds, √5 times its standard error, then stands for ours.
      evaluations: of f in a training step, per example.
      relative_time: of a step of one seed, DisARM's on the same model and device being 1; None without such a pair.
      device: on which these times were taken; empty if there are none.
      command: that would train it as the paper did.
    """

    place: paper.Place
    split: str
    metric: str
    paper: paper.Number
    pool: Pool | None
    value: Value | None
    verdict: str
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    difference: float | None
    evaluations: int | None
    relative_time: float | None
    device: str
    command: str


class Comparison(NamedTuple):
    """All tables.

    Attributes:
      cells: by place and split.
      others: pools that stand in no table: the paper has no such cell, or another pool is closer to the paper's.
    """

    cells: dict[tuple[paper.Place, str], Cell]
    others: list[Pool]

    def of_block(self, block: paper.Block) -> list[list[Cell]]:
        """The cells of a part of a table, row by row."""
        return [[self.cells[paper.Place(*row, column), block.split] for column in block.columns] for row in block.rows]


def compare(pools: Sequence[Pool], get_config: Callable[[str], ConfigDict]) -> Comparison:
    """Every cell of the paper, with our number if there is one.

    Args:
      pools: our runs.
      get_config: from the name of a config file, without its ending, to its config.
    """
    references = {place: paper.reference_of(place, get_config) for place in {place for place, _ in paper.NUMBERS}}
    places = [(paper.place_of(pool.config), pool) for pool in pools]
    cells = {}
    for place, split in paper.NUMBERS:
        candidates = [pool for found, pool in places if found == place] or [None]
        found = [_cell(place, split, pool, references[place], pools) for pool in candidates]
        cells[place, split] = min(found, key=_distance)
    shown = {id(cell.pool) for cell in cells.values()}
    return Comparison(cells, [pool for pool in pools if id(pool) not in shown])


def _distance(cell: Cell) -> tuple:
    """Orders the candidates for a cell: the fewest reasons against it, then the most steps, then the most seeds."""
    value = cell.value
    return value is None, len(cell.reasons), *((-value.step, -len(value.seeds)) if value else ())


def _cell(place: paper.Place, split: str, pool: Pool | None, reference: Mapping[str, Any], pools: Sequence) -> Cell:
    metric, number = paper.metric_of(place, split), paper.NUMBERS[place, split]
    value = pool.value(metric) if pool else None
    reasons = reasons_against(pool, value, reference) if pool and value else ()
    remarks = _remarks(pool, value, metric) if pool else ()
    gap = difference(value, number) if value and not reasons else None
    evaluations = evaluations_of(pool.config if pool else reference)
    time, device = relative_time(pool, pools) if pool else (None, "")
    return Cell(
        place,
        split,
        metric,
        number,
        pool,
        value,
        _verdict(value, reasons, gap),
        reasons,
        remarks,
        gap,
        evaluations,
        time,
        device,
        paper.command_of(place),
    )


def _verdict(value: Value | None, reasons: Sequence[str], gap: float | None) -> str:
    if value is None:
        return MISSING
    if reasons or gap is None:
        return NOT_COMPARABLE
    if value.stderr is None:
        return ONE_SEED
    return MATCH if abs(gap) <= MATCH_WITHIN else DIFFERS


def difference(value: Value, number: paper.Number) -> float:
    """Ours less the paper's, in combined standard errors.

    >>> round(difference(Value(-116.0, 0.06, 1_000_000, (0, 1, 2), {}), paper.Number(-116.3, 0.08)), 6)
    3.0
    """
    stderr = math.sqrt(paper.SEEDS) * number.stderr if value.stderr is None else value.stderr
    return (value.mean - number.mean) / math.hypot(stderr, number.stderr)


def reasons_against(pool: Pool, value: Value, reference: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a number is not comparable with the paper's; nothing if it is."""
    reasons = []
    if value.step != paper.STEPS:
        reasons.append(f"{value.step:,} steps instead of {paper.STEPS:,}")
    ours, theirs = pool.settings, settings_of(reference)
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            reasons.append(f"{field} is {_shown(ours, field)} instead of {_shown(theirs, field)}")
    sums = recorded.ARRAYS[reference["dataset"]["name"]]
    for run in pool.runs:
        if sums and run.data_sums not in ({}, sums) and run.config["dataset"]["binarization"] == "dynamic":
            reasons.append(f"another version of the data: its sha256 is not the recorded one in {run.path.name}")
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
        remarks.append(f"{len(value.seeds)} seed{'s' if len(value.seeds) > 1 else ''} instead of {paper.SEEDS}")
    return tuple(remarks)


def evaluations_of(config: Mapping[str, Any]) -> int | None:
    """Evaluations of f per example in a training step; None for an own estimator, which does not tell.

    With T stochastic layers 1 + T (n − 1) for groups of n samples, RELAX 1 + 2 T.
    """
    name, latents = config["estimator"]["name"], config["model"]["latents"]
    layers, known = len(latents), choices.estimators_for(latents)
    if name not in known.estimator_names():
        return None
    if layers > 1 and name == "relax":
        return 1 + 2 * layers
    try:
        evaluations = known.estimator_info(name, **config["estimator"]["options"]).evaluations
    except (TypeError, ValueError):  # options of a later version
        return None
    if evaluations == "D + 1":
        evaluations = latents[0] + 1
    return 1 + layers * (evaluations - 1) if layers > 1 else evaluations


def relative_time(pool: Pool, pools: Iterable[Pool]) -> tuple[float | None, str]:
    """Time per step and seed in that of DisARM, and the device: the same one, with as many seeds at a time."""
    own = step_times(pool)
    for other in pools:
        if other.config["estimator"]["name"] in ("disarm", "multisample_disarm") and _work(other) == _work(pool):
            for where, seconds in step_times(other).items():
                if where in own:
                    return own[where] / seconds, where[0]
    return None, ""


def _work(pool: Pool) -> tuple:
    """What two runs must have in common for their times to be about their estimators alone."""
    config = pool.config
    bound = config["objective"]["name"] == "multisample"
    size = evaluations_of(config) if bound else None  # K pairs are compared with 2K samples
    model = config["model"]
    shape = (model["name"], model["latents"], model["hidden"])
    return config["dataset"]["name"], shape, config["batch_size"], bound, size


def step_times(pool: Pool) -> dict[tuple[str, int], float]:
    """Seconds per step of a seed, by device and seeds at a time; of finished runs that measure no other estimators."""
    times = {}
    for run in pool.runs:
        measures = (run.config.get("variance") or {}).get("estimators")
        if run.device and run.seconds_per_step and not measures:
            times.setdefault((run.device, len(run.config["seeds"])), run.seconds_per_step)
    return times
