"""What a step costs: evaluations of f, and time relative to DisARM's on the same machine.

Times are only as good as the machine was quiet. Each comes with the quartiles over chunks of steps, and is left out
where these are far apart. Other work that slows down a whole run evenly cannot be seen.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from disarm_jax.experiment import build
from disarm_jax.report.pools import Pool
from disarm_jax.report.runs import StepTime

STEADY = 0.1  # the largest distance of the quartiles, relative to the median, of a machine without other work


class RelativeTime(NamedTuple):
    """The time of a step in that of DisARM, between `low` and `high` by the quartiles of both; and the device."""

    ratio: float
    low: float
    high: float
    device: str

    def __str__(self) -> str:
        """Ratio and range.

        >>> str(RelativeTime(2.0, 1.9, 2.15, "a device"))
        '2.00 (1.90 to 2.15)'
        """
        return f"{self.ratio:.2f} ({self.low:.2f} to {self.high:.2f})"


def evaluations_of(config: Mapping[str, Any]) -> int | None:
    """Evaluations of f per example in a training step; None for a custom estimator, which does not tell.

    With T stochastic layers 1 + T (n − 1) for groups of n samples, RELAX 1 + 2 T.
    """
    name, latents = config["estimator"]["name"], config["model"]["latents"]
    layers, known = len(latents), build.registry_for(latents)
    if name not in known.names():
        return None
    if layers > 1 and name == "relax":
        return 1 + 2 * layers
    try:
        evaluations = known.info(name, **config["estimator"]["options"]).evaluations
    except (TypeError, ValueError):  # options of a later version
        return None
    if isinstance(evaluations, str):  # D + 1
        evaluations = latents[0] + 1
    return 1 + layers * (evaluations - 1) if layers > 1 else evaluations


def relative_time(pool: Pool, pools: Iterable[Pool]) -> RelativeTime | None:
    """Time per step and seed in that of DisARM on the same device with as many seeds at a time; None without both."""
    own = step_times(pool)
    for other in pools:
        if other.config["estimator"]["name"] in ("disarm", "multisample_disarm") and _work(other) == _work(pool):
            for where, theirs in step_times(other).items():
                if where in own:
                    ours = own[where]
                    ratios = (ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)
                    return RelativeTime(*ratios, where[0])
    return None


def _work(pool: Pool) -> tuple:
    """What two runs must have in common for their times to be about their estimators alone."""
    config = pool.config
    bound = config["objective"]["name"] == "multisample"
    size = evaluations_of(config) if bound else None  # K pairs are compared with 2K samples
    model = config["model"]
    shape = (model["name"], model["latents"], model["hidden"])
    samples = config["objective"]["generative_samples"]
    return config["dataset"]["name"], shape, config["batch_size"], bound, size, samples


def step_times(pool: Pool) -> dict[tuple[str, int], StepTime]:
    """Times of a step by device and runs at a time: of runs on one quiet device that measure no other estimators."""
    times = {}
    for run in pool.runs:
        time, measured = run.step_time, run.config["variance"]["estimators"]
        if time and len(run.devices) == 1 and not measured and time.spread <= STEADY:
            times.setdefault((run.devices[0], run.num_members), time)
    return times


def time_remark(pool: Pool) -> str:
    """Says that times were left out because the machine was shared; empty if there was no such run."""
    spreads = [run.step_time.spread for run in pool.runs if run.step_time and run.devices]
    if step_times(pool) or not spreads or min(spreads) <= STEADY:
        return ""
    return f"no time: the machine was shared, the quartiles over chunks are over {STEADY:.0%} of the median apart"
