"""Kills a run again and again, and compares what it ends with to a run that nobody killed.

    python -m scripts.kill_test --config configs/quickstart.py --kills 20    # some five minutes on 2 cores
    python -m scripts.kill_test --all --kills 100                            # tiny runs of every kind of config

Trains the config once in peace, and again with SIGKILLs, a third of them each in the middle of a save, while it trains,
and at any moment of its start; every time the same command continues. Both must end with the same metrics, byte for
byte, and the same state, array for array, and no kill may cost more than one interval between checkpoints. Prints the
steps that it resumed from: without any of them nothing was tested. `--all` does so with one layer, several layers, a
multi-sample bound, classes, RELAX, several seeds and a schedule, on images that it draws, and prints a table.

Exit status: 0 the same; 1 different, too much lost, or never resumed.
"""

import itertools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.experiment.load import load_run
from disarm_jax.run_directory.directory import RunDir

POLL_SECONDS = 0.001
KINDS = {"in a save": 0.03, "in training": 0.2, "at the start": 6.0}  # a kill comes within so many seconds of it
BASE = "configs/base.py"
TINY = {
    "dataset.name": "npz",
    "model.latents": (8,),
    "steps": 1500,
    "batch_size": 5,
    "seeds": (0,),
    "log_every": 10,
    "eval.train_every": 500,
    "eval.test_every": 500,
    "eval.batch_size": 8,
    "checkpoint.every": 50,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "several layers": {"model.latents": (8, 6, 4), "model.hidden": (7,)},
    "multi-sample bound": {
        "objective.name": "multisample",
        "estimator.name": "multisample_disarm",
        "estimator.options.num_pairs": 3,
    },
    "classes": {"model.latents": ((5, 4),), "estimator.name": "disarm_iw"},
    "RELAX and its state": {
        "estimator.name": "relax",
        "estimator.options.hidden": 5,
        "variance.estimators": ("disarm", "interpolated"),
    },
    "several seeds": {"seeds": (0, 3, 7)},
    "schedule": {
        "optimizer.encoder.schedule": "cosine",
        "optimizer.encoder.warmup_steps": 200,
        "optimizer.decoder.clip": 1.0,
        "dataset.binarization": "static",
    },
}


class Kill(NamedTuple):
    """One kill.

    Attributes:
      kind: what it was aimed at, one of `KINDS`.
      in_save: whether it left an unfinished checkpoint behind.
      reached: the last step with a row of metrics when it came.
      resumed: the step that the killed process had begun from; 0 if there was none, or it came to no step.
    """

    kind: str
    in_save: bool
    reached: int
    resumed: int


def train_command(config_file: str, overrides: Mapping[str, Any], workdir: pathlib.Path) -> list[str]:
    """The command line that trains, and continues, a config in a directory."""
    fields = [f"--config.{name}={value}" for name, value in overrides.items()]
    return [sys.executable, "-m", "main", f"--config={config_file}", *fields, f"--workdir={workdir}"]


def shared_compilations(folder: pathlib.Path) -> dict[str, str]:
    """The environment in which processes compile nothing twice."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return os.environ | cache | {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}


def run_to_the_end(command: list[str], env: Mapping[str, str], log: pathlib.Path) -> int:
    """Runs a command that must succeed, its output added to a file; returns the step that it resumed from, or 0."""
    start = log.stat().st_size if log.exists() else 0
    with open(log, "ab") as stream:
        status = subprocess.run(command, env=env, stdout=stream, stderr=stream, check=False).returncode
    said = log.read_bytes()[start:].decode(errors="replace")
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{said}")
    return _resumed(said)


def _resumed(said: str) -> int:
    found = re.search(r"^resuming .* at step ([\d,]+)$", said, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def _reached(run_dir: RunDir) -> int:
    return max((row["step"] for row in run_dir.read_metrics()), default=0)


def _unfinished_saves(run_dir: RunDir) -> set[tuple[str, int]]:
    found = set()
    for path in run_dir.checkpoints.glob("*.orbax-checkpoint-tmp"):
        try:
            found.add((path.name, path.stat().st_ino))
        except FileNotFoundError:  # it has been finished in the meantime
            continue
    return found


def kill_once(
    command: list[str],
    workdir: pathlib.Path,
    kind: str,
    rng: np.random.Generator,
    env: Mapping[str, str],
    log: pathlib.Path,
) -> Kill | None:
    """Starts the command, waits for the moment that is aimed at and kills it; None if the run has ended before."""
    run_dir, start = RunDir(workdir), log.stat().st_size if log.exists() else 0
    left_before, rows_before = _unfinished_saves(run_dir), len(run_dir.read_metrics())
    rows, saves, seen = rows_before + int(rng.integers(1, 4)), int(rng.integers(1, 3)), set()

    def in_save() -> bool:
        """Whether the first save goes on, or the second: so that a run which is killed in every save comes forward."""
        seen.update(_unfinished_saves(run_dir) - left_before)
        return len(seen) >= saves

    moments: dict[str, Callable[[], bool]] = {
        "in a save": in_save,
        "in training": lambda: len(run_dir.read_metrics()) >= rows,
        "at the start": lambda: True,
    }
    with open(log, "ab") as stream:
        process = subprocess.Popen(command, env=env, stdout=stream, stderr=stream)
    while process.poll() is None and not moments[kind]():
        time.sleep(POLL_SECONDS)
    try:
        process.wait(rng.uniform(0, KINDS[kind]))
    except subprocess.TimeoutExpired:
        process.kill()
    status = process.wait()
    said = log.read_bytes()[start:].decode(errors="replace")
    if status == 0:
        return None
    if status != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{said}")
    return Kill(kind, bool(_unfinished_saves(run_dir) - left_before), _reached(run_dir), _resumed(said))


def run_with_kills(
    command: list[str],
    workdir: pathlib.Path,
    kinds: Iterable[str],
    rng: np.random.Generator,
    env: Mapping[str, str],
    log: pathlib.Path,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[list[Kill], list[int]]:
    """Runs a command to its end through kills.

    Returns:
      The kills, and the steps that the processes began from, one more; 0 if not known.
    """
    kills: list[Kill] = []
    for kind in kinds:
        kill = kill_once(command, workdir, kind, rng, env, log)
        if kill is None:
            tell("this run has come to its end before the next kill")
            break
        kills.append(kill)
        save = ", a save was unfinished" if kill.in_save else ""
        tell(f"kill {len(kills)}, {kind}: begun from step {kill.resumed:,}, reached {kill.reached:,}{save}")
    return kills, [*(kill.resumed for kill in kills), run_to_the_end(command, env, log)]


def most_lost(kills: list[Kill], resumed: list[int]) -> int:
    """The most steps that a kill has cost.

    Args:
      kills: all of them.
      resumed: the steps that the processes began from, one more than there are kills; 0 if not known.
    """
    lost = 0
    for number, kill in enumerate(kills):
        following = next((step for step in resumed[number + 1 :] if step), kill.reached)
        lost = max(lost, kill.reached - following)
    return lost


def compare(reference: pathlib.Path, other: pathlib.Path) -> list[str]:
    """In what two finished runs of one config differ, one line each."""
    found = []
    if RunDir(reference).metrics_file.read_bytes() != RunDir(other).metrics_file.read_bytes():
        found.append("metrics.jsonl")
    leaves = [jax.tree_util.tree_leaves_with_path(load_run(path).state) for path in (reference, other)]
    for (path, expected), (_, actual) in zip(*leaves, strict=True):
        if expected.dtype != actual.dtype or expected.tobytes() != actual.tobytes():
            found.append(f"state{jax.tree_util.keystr(path)}")
    return found


class Result(NamedTuple):
    """What the kills of one config came to.

    Attributes:
      kills: all of them.
      resumed: the steps that processes resumed from.
      lost: the most steps that a kill has cost.
      runs: that it took to be killed so often.
      seconds: that all of it took.
    """

    kills: list[Kill]
    resumed: list[int]
    lost: int
    runs: int
    seconds: float


def kill_config(
    config_file: str,
    overrides: Mapping[str, Any],
    every: int,
    folder: pathlib.Path,
    count: int,
    rng: np.random.Generator,
    env: Mapping[str, str],
    tell: Callable[[str], None],
) -> Result:
    """Kills a config so often, in as many runs as it takes, and compares each to the reference.

    Raises:
      RuntimeError: if a run differs, a kill has cost more than `every` steps, or the run is too short.
    """
    reference, begin = folder / "reference", time.monotonic()
    kills: list[Kill] = []
    resumed: list[int] = []
    most = 0
    run_to_the_end(train_command(config_file, overrides, reference), env, folder / "reference.log")
    tell(f"{reference}: {time.monotonic() - begin:.0f} s without kills")
    for number in itertools.count(1):
        killed = folder / f"killed_{number}"
        kinds = itertools.islice(itertools.cycle(KINDS), count - len(kills))
        command = train_command(config_file, overrides, killed)
        new, begun = run_with_kills(command, killed, kinds, rng, env, killed.with_suffix(".log"), tell)
        if not new:
            raise RuntimeError("the run is too short to be killed; more --config.steps would help")
        if different := compare(reference, killed):
            raise RuntimeError(f"{reference} and {killed} differ in {', '.join(different)}")
        most = max(most, lost := most_lost(new, begun))
        if lost > every:
            raise RuntimeError(f"a kill has cost {lost:,} steps; there was to be a checkpoint every {every:,}")
        kills, resumed = kills + new, resumed + [step for step in begun if step]
        if len(kills) == count:
            break
    return Result(kills, resumed, most, number, time.monotonic() - begin)


def kill_all(
    count: int, folder: pathlib.Path, rng: np.random.Generator, env: Mapping[str, str], tell: Callable[[str], None]
) -> dict[str, Result]:
    """As many kills, in equal parts over every kind of config, on images that are drawn here."""
    images = lambda number: rng.integers(0, 256, (number, 16), np.uint8)
    np.savez(folder / "images.npz", train=images(60), validation=images(13), test=images(17))
    results = {}
    for number, (name, changes) in enumerate(CONFIGS.items()):
        part = count * (number + 1) // len(CONFIGS) - count * number // len(CONFIGS)
        if part:
            place = folder / name.replace(" ", "_")
            place.mkdir()
            overrides = TINY | {"dataset.path": str((folder / "images.npz").absolute())} | changes
            results[name] = kill_config(BASE, overrides, TINY["checkpoint.every"], place, part, rng, env, tell)
            tell(table(results).splitlines()[-1])
    return results


def table(results: Mapping[str, Result]) -> str:
    """A line of Markdown for each config."""
    header = ("config", "kills", "in a save", "resumed", "most steps lost", "runs", "seconds")
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, result in results.items():
        saves = sum(kill.in_save for kill in result.kills)
        numbers = (len(result.kills), saves, len(result.resumed), result.lost, result.runs, f"{result.seconds:.0f}")
        lines.append(f"| {name} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines)


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    config_flags.DEFINE_config_file("config", "configs/quickstart.py", "The config file.", lock_config=True, **options)
    flags.DEFINE_bool("all", False, "Tiny runs of every kind of config, instead of --config.", **options)
    flags.DEFINE_integer("kills", 20, "How often to kill.", lower_bound=1, **options)
    flags.DEFINE_integer("seed", 0, "Seed of the moments.", lower_bound=0, **options)
    flags.DEFINE_string("out", "runs", "Where the folder with both runs is made.", **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """The reference, the run with kills, and the comparison."""
    flags_only(argv)
    holder = values["config"]
    config = config_flags.get_config_filename(holder), config_flags.get_override_values(holder)
    try:
        pathlib.Path(values.out).mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kill_test_", dir=values.out))
    except OSError as error:
        sys.exit(f"error: {error.strerror}: {error.filename}")
    env, rng = shared_compilations(folder / "compilations"), np.random.default_rng(values.seed)
    tell = lambda line: print(line, flush=True)
    try:
        if values.all:
            results = kill_all(values.kills, folder, rng, env, tell)
        else:
            every = values.config.checkpoint.every
            results = {config[0]: kill_config(*config, every, folder, values.kills, rng, env, tell)}
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    kills = [kill for result in results.values() for kill in result.kills]
    resumed = [step for result in results.values() for step in result.resumed]
    tell(table(results))
    tell(f"{len(kills)} kills, {sum(kill.in_save for kill in kills)} of them in the middle of a save")
    tell(f"resumed from the steps {', '.join(f'{step:,}' for step in resumed) or 'none'}")
    if not resumed:
        sys.exit("error: never resumed, so nothing was tested; a smaller --config.checkpoint.every would help")
    tell("the same metrics byte for byte, the same state array for array")


if __name__ == "__main__":
    run_script(main, define_flags)
