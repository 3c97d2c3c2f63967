"""How long is a step of each of a few estimators, in that of DisARM? For figures against time.

    python -m scripts.step_times --out results/elbo_by_time/steps.json   # three minutes of one core

The linear model of `configs/elbo_linear.py`, decoder and prior learning from one fresh sample under every estimator.
All are run in turn, 100 steps each, many rounds; the ratio is the median of those within rounds. Time is that of the
processor, so that other work on the machine disturbs it little.
"""

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.experiment.devices import processor_name
from disarm_jax.files import write_text
from scripts import benchmark_cases as cases
from scripts.benchmark import paired_ratios

OPTIONS = {"arms": {"num_samples": 4}}
NAMES = ("disarm", "reinforce_loo", "arm", "relax", "arms", "disarm_quadratic", "disarm_midpoint")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_string("out", "results/elbo_by_time/steps.json", "The file to write.", flag_values=values)
    flags.DEFINE_integer("rounds", 30, "Rounds of 100 steps of each.", lower_bound=2, flag_values=values)


def processor_seconds(run: Callable[[], Any]) -> Callable[[], float]:
    """A function that runs it and returns the seconds for which the processor has worked."""

    def timed() -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    return timed


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures, and writes the ratios."""
    flags_only(argv)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pixels, runs = cases.images(), {}
    for name in NAMES:
        fields = {f"estimator__options__{option}": value for option, value in OPTIONS.get(name, {}).items()}
        config = cases.config_of("elbo_linear", estimator__name=name, **fields)
        runs[name] = processor_seconds(cases.Training(config, pixels).run)
    ratios = paired_ratios(runs, "disarm", values.rounds)
    found = {"processor": processor_name(), "rounds": values.rounds, "over_disarm": ratios}
    pathlib.Path(values.out).parent.mkdir(parents=True, exist_ok=True)
    write_text(pathlib.Path(values.out), json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    run_script(main, define_flags)
