"""How fast is it, and how fast could it be? One table of one run on one machine.

    python -m scripts.benchmark --out results/benchmark      # about half an hour on two cores
    python -m scripts.benchmark --quick                      # about two minutes, if nothing else runs
    python -m scripts.benchmark --rounds 8                   # less noise

Needs a machine that does nothing else. Cases are compiled, whole groups of them at a time; then these are run in turn,
several rounds, with a product of large matrices (sgemm) measured in each round as the yardstick. The step is measured
on one core, to which this process is pinned, as `scripts.sweep` and the seed axis use a machine: one run per core.
Writes `benchmark.md`, `benchmark.json` and `benchmark.png`. Where PyTorch is installed, or with `--torch` naming a
Python that has it, the fastest of several versions of DisARM's step in PyTorch is measured too. What has been tried,
and what helped, is told in `docs/speed.md`.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.experiment.devices import processor_name
from disarm_jax.files import write_text
from disarm_jax.progress import ProgressBar
from disarm_jax.report.palette import count
from scripts import benchmark_cases as cases
from scripts import benchmark_torch
from scripts.benchmark_figure import draw
from scripts.benchmark_table import as_markdown

SPLIT = 10_000  # images of the evaluation
SGEMM_FLOPS = 2 * 1024**3
PROGRAMS = 60  # at once


class Timing(NamedTuple):
    """Seconds over the rounds: their median, and half the distance between the quartiles."""

    median: float
    spread: float


def timing(seconds: list[float]) -> Timing:
    """Of at least two rounds."""
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(statistics.median(seconds), (high - low) / 2)


def seconds_in_turn(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs all of them once per round, so that what disturbs the machine disturbs all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    progress = ProgressBar(rounds, "round")
    for number in range(rounds):
        for name, run in runs.items():
            seconds[name].append(run())
        progress.update(number + 1)
    progress.close()
    return seconds


def in_turn(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, Timing]:
    """The same, summarised."""
    return {name: timing(times) for name, times in seconds_in_turn(runs, rounds).items()}


def paired_ratios(runs: dict[str, Callable[[], float]], of: str, rounds: int) -> dict[str, float]:
    """Each one's time over that of one of them: the median of the ratios within short rounds, where noise cancels."""
    seconds = seconds_in_turn(runs, rounds)
    return {
        name: statistics.median(own / other for own, other in zip(times, seconds[of], strict=True))
        for name, times in seconds.items()
    }


def in_parts(chosen: list[cases.Case]) -> list[list[cases.Case]]:
    """Cases to hold in memory together: whole groups, whose rows are compared.

    All at once are too many: Linux maps 65,530 pieces of memory for a process, and each program has hundreds.
    """
    parts = [[]]
    for _, rows in itertools.groupby(chosen, key=lambda case: case.group):
        group = list(rows)
        if parts[-1] and len(parts[-1]) + len(group) > PROGRAMS:
            parts.append([])
        parts[-1] += group
    return parts


def title_of(case: cases.Case) -> str:
    """The case in words."""
    return f"{case.group}, {case.name}"


def compiled(chosen: list[cases.Case], pixels: np.ndarray) -> list[cases.Training]:
    """The programs of all these cases."""
    trainings, progress = [], ProgressBar(len(chosen), "case")
    for case in chosen:
        progress.describe(f"compiling {title_of(case)}")
        trainings.append(cases.Training(case.config, pixels))
        progress.update(len(trainings))
    progress.close()
    return trainings


def row_of(case: cases.Case, training: cases.Training, time: Timing, peak: float) -> dict[str, Any]:
    """A row of the table; peak are the operations per second of sgemm, measured in the same rounds."""
    by_hand = cases.flops_by_hand(case.config)
    return (
        {"group": case.group, "name": case.name, "axis": case.axis}
        | {"seconds": time.median, "spread": time.spread}
        | {"flops_by_hand": by_hand, "flops_by_xla": training.xla_flops}
        | {"of_sgemm_time": time.median * peak / (by_hand or training.xla_flops)}
        | {"temporary_bytes": training.temporary_bytes, "compile_seconds": training.compile_seconds}
    )


class Part(NamedTuple):
    """What was measured with some of the cases in memory.

    Attributes:
      rows: of the table.
      seconds: of the yardsticks in each round, by name.
      over_disarm: the times of `cases.SIBLINGS` over that of DisARM, if they are among the cases.
    """

    rows: list[dict[str, Any]]
    seconds: dict[str, list[float]]
    over_disarm: dict[str, float]


def measure_part(
    part: list[cases.Case], pixels: np.ndarray, yardsticks: dict[str, Callable[[], float]], rounds: int
) -> Part:
    """Compiles some cases and runs them in turn with the yardsticks; on return the programs are gone."""
    trained = dict(zip(map(title_of, part), compiled(part, pixels), strict=True))
    seconds = seconds_in_turn(yardsticks | {name: training.run for name, training in trained.items()}, rounds)
    peak = SGEMM_FLOPS / timing(seconds["sgemm"]).median
    rows = [
        row_of(case, training, timing(seconds[name]), peak)
        for case, (name, training) in zip(part, trained.items(), strict=True)
    ]
    siblings = {name: trained[f"linear, {name}"].run for name in cases.SIBLINGS if f"linear, {name}" in trained}
    over_disarm = paired_ratios(siblings, "disarm", 6 * rounds) if siblings else {}
    return Part(rows, {name: seconds[name] for name in yardsticks}, over_disarm)


def measure_steps(quick: bool, rounds: int) -> dict[str, Any]:
    """The steps of all cases, the evaluation, and the yardsticks, on the one core of this process."""
    images, floats = SPLIT // 10 if quick else SPLIT, 1 << 25
    evaluate, evaluation_flops = cases.evaluation(images)
    yardsticks = {"sgemm": cases.sgemm(), "copy": cases.copy(floats), "evaluation": evaluate}
    pixels = cases.images()
    parts = [measure_part(part, pixels, yardsticks, rounds) for part in in_parts(cases.all_cases(quick))]
    times = {name: timing([second for part in parts for second in part.seconds[name]]) for name in yardsticks}
    peak = SGEMM_FLOPS / times["sgemm"].median
    return {
        "sgemm_flops_per_second": peak,
        "sgemm_spread": times["sgemm"].spread / times["sgemm"].median,
        "copy_bytes_per_second": 8 * floats / times["copy"].median,
        "evaluation": {
            "images": images,
            "samples": 100,
            "seconds": times["evaluation"].median,
            "of_sgemm_peak": evaluation_flops / times["evaluation"].median / peak,
        },
        "steps": [row for part in parts for row in part.rows],
        "over_linear_disarm": {name: ratio for part in parts for name, ratio in part.over_disarm.items()},
        "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


class Worker:
    """A process of its own that trains a model when told to."""

    def __init__(self, *command: str):
        """Starts it; it compiles while others do."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @classmethod
    def of_ours(cls, cores: list[int], seeds: int = 1, config: str = "elbo_linear") -> "Worker":
        """Trains DisARM on some cores."""
        request = json.dumps({"cores": cores, "seeds": seeds, "config": config})
        return cls(sys.executable, "-m", "scripts.benchmark_cases", request)

    def wait(self) -> None:
        """Until it is compiled."""
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError("a process of the benchmark has ended before it was ready")

    def start(self) -> None:
        """Trains some steps."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def seconds(self) -> float:
        """Of one step of all its seeds, when it is done."""
        return float(self._process.stdout.readline())

    def run(self) -> float:
        """Trains some steps; the seconds of one."""
        self.start()
        return self.seconds()

    def close(self) -> None:
        """Ends it."""
        self._process.stdin.close()
        self._process.wait()


def measure_cores(cores: list[int], quick: bool, rounds: int) -> dict[str, Timing]:
    """Seconds of a step by how seeds, devices and processes share the cores: alone, and side by side."""
    numbers = (1, 5) if quick else (1, 2, 5)
    workers = {f"{count(seeds, 'seed')} on one core": [Worker.of_ours(cores[:1], seeds)] for seeds in numbers}
    workers["1 seed per core, one process"] = [Worker.of_ours(cores, len(cores))]
    if not quick:
        workers["1 seed per core, one process each"] = [Worker.of_ours([core]) for core in cores]
        workers["1 seed, XLA uses all cores"] = [Worker.of_ours(cores)]
    for group in workers.values():
        for worker in group:
            worker.wait()

    def together(group: list[Worker]) -> float:
        for worker in group:
            worker.start()
        rates = [1 / worker.seconds() for worker in group]
        return len(rates) / sum(rates)  # as if all were equally fast: what counts is the work they do together

    times = in_turn({name: lambda group=group: together(group) for name, group in workers.items()}, rounds)
    for group in workers.values():
        for worker in group:
            worker.close()
    return times


def measure_torch(python: str, cores: list[int], rounds: int) -> dict[str, Any]:
    """Seconds that DisARM's step occupies a core in versions of PyTorch, and ours beside them, by model.

    Args:
      python: an interpreter that has PyTorch.
      cores: a version has one of them, or all with a thread on each.
      rounds: of measurements.
    """
    ask = "import torch; print(torch.__version__)"
    results: dict[str, Any] = {"version": subprocess.check_output([python, "-c", ask], text=True).strip(), "steps": {}}
    with tempfile.TemporaryDirectory() as folder:
        for group, config in {"linear": "elbo_linear", "nonlinear": "elbo_nonlinear"}.items():
            np.savez(file := f"{folder}/{group}.npz", **cases.reference(cases.config_of(config)))
            workers, shares = {"ours": Worker.of_ours(cores[:1], config=config)}, {"ours": 1}
            for version, used in itertools.product(benchmark_torch.VERSIONS, {1, len(cores)}):
                name = f"{version}, {count(used, 'core')}"
                request = json.dumps({"file": file, "version": version, "cores": cores[:used]})
                workers[name], shares[name] = Worker(python, benchmark_torch.__file__, request), used
            runs = {}
            for name, worker in workers.items():
                worker.wait()
                runs[name] = worker.run
            times = in_turn(runs, rounds)
            results["steps"][group] = {name: times[name].median * shares[name] for name in times}
            for worker in workers.values():
                worker.close()
    return results


def measure_start(cores: list[int], rounds: int) -> dict[str, float]:
    """Seconds of imports, and from the command to the first steps, with and without compiled programs in the cache."""

    def seconds_of(before: str, statement: str) -> float:
        clock = "time.perf_counter()"
        code = f"import time; {before}; start = {clock}; {statement}; print({clock} - start)"
        return float(subprocess.check_output([sys.executable, "-c", code], preexec_fn=unpin))

    def unpin() -> None:
        os.sched_setaffinity(0, cores)

    modules = ("jax", "disarm_jax", "main")
    imports = in_turn({name: lambda name=name: seconds_of("pass", f"import {name}") for name in modules}, rounds)
    result = {f"import {name}": time.median for name, time in imports.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first step, nothing cached", "first step, cached"):
            result[name] = _first_step(pathlib.Path(folder), name, unpin)
        data = f"from disarm_jax import data; data.load('mnist5k', data_dir={folder + '/data'!r})"
        result["load mnist5k, prepared"] = seconds_of("from disarm_jax import data", data)
    return result


def _first_step(folder: pathlib.Path, name: str, unpin: Callable[[], None]) -> float:
    """From the command to the first line of metrics, for the linear model and the data set that needs no download."""
    sizes = ["--config.dataset.name=mnist5k", "--config.seeds=(0,)", "--config.steps=100", "--config.log_every=10"]
    cadence = [f"--config.{field}=100" for field in ("eval.train_every", "eval.test_every", "checkpoint.every")]
    command = [sys.executable, "-m", "main", "--config", "configs/elbo_linear.py", *sizes, *cadence]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder), "DISARM_DATA_DIR": str(folder / "data")}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    metrics, start = folder / name / "metrics.jsonl", time.perf_counter()
    command += ["--workdir", str(folder / name)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env=environment, preexec_fn=unpin, **silent)
    while not (metrics.exists() and metrics.stat().st_size):
        if process.poll() is not None:
            raise RuntimeError(f"{' '.join(command)} has ended with status {process.returncode} before its first step")
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    process.wait()
    return seconds


def define_flags(values: flags.FlagValues) -> None:
    """The command line."""
    flags.DEFINE_boolean("quick", False, "Few cases and rounds.", flag_values=values)
    flags.DEFINE_integer("rounds", None, "Rounds of measurements; none: 4, or 2 if quick.", 2, flag_values=values)
    flags.DEFINE_string("out", None, "Folder for table, JSON and figure; none: print the table.", flag_values=values)
    has_torch = "A Python that has PyTorch, to compare with; none: this one, if it has."
    flags.DEFINE_string("torch", None, has_torch, flag_values=values)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Measures everything, then writes."""
    flags_only(argv)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share an accelerator
    cores, rounds = sorted(os.sched_getaffinity(0)), values.rounds or (2 if values.quick else 4)
    os.sched_setaffinity(0, cores[:1])  # before JAX looks for the cores it may use
    machine = {
        "processor": processor_name(),
        "cores": len(cores),
        "platform": platform.platform(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "command": f"python -m scripts.benchmark{' --quick' if values.quick else ''} --rounds {rounds}",
    }
    results = {"machine": machine, "rounds": rounds} | measure_steps(values.quick, rounds)
    results["cores"] = {name: time.median for name, time in measure_cores(cores, values.quick, rounds).items()}
    results["start"] = measure_start(cores, rounds)
    if python := values.torch or (sys.executable if importlib.util.find_spec("torch") else None):
        results["torch"] = measure_torch(python, cores, rounds)
    table = as_markdown(results)
    if values.out is None:
        print(table)
        return
    out = pathlib.Path(values.out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "benchmark.md", table)
    write_text(out / "benchmark.json", json.dumps(results, indent=1) + "\n")
    draw(results, out / "benchmark.png")
    print(f"in {out}: benchmark.md, benchmark.json, benchmark.png")


if __name__ == "__main__":
    run_script(main, define_flags)
