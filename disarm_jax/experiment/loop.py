"""The training loop: from a config to a finished run directory, through any number of interruptions.

The loop wakes up once per chunk of steps. What it does at a step depends on the config alone, never on where a run was
interrupted: chunks end at multiples of `log_every`, rows of a step are on disk before its checkpoint, and whatever was
written past the checkpoint that a run resumes from is dropped and made again, the same to the bit.

The devices do not wait for the disk: a chunk is dispatched before the metrics of the one before are fetched, and
checkpoints are written while it runs.
"""

import contextlib
import functools
import os
import pathlib
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from disarm_jax.console import say
from disarm_jax.data.types import SPLITS
from disarm_jax.experiment.build import schedule_of
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.devices import Device, SeedAxis
from disarm_jax.experiment.evaluate import bound_name, bounds_of, split_samples
from disarm_jax.experiment.fields import Config, ConfigError
from disarm_jax.experiment.grid import Member, at_point, members_of, numbers_of, point_text, points_of
from disarm_jax.experiment.load import Prepared, prepare, with_numbers
from disarm_jax.experiment.step import GROUPS, ChunkMetrics, Experiment, State
from disarm_jax.files import write_text
from disarm_jax.progress import ProgressBar
from disarm_jax.report.one_run import draw_curves, draw_samples
from disarm_jax.run_directory.checkpoint import Checkpoints, Saved
from disarm_jax.run_directory.directory import RunDir, RunDirError
from disarm_jax.run_directory.fingerprint import (
    Record,
    array_sum,
    changed_settings,
    check_run,
    read_record,
    settings_now,
)
from disarm_jax.run_directory.record import start_entry, write_summary
from disarm_jax.run_directory.rows import read_rows
from disarm_jax.run_directory.writers import Recorder
from disarm_jax.signals import signals_to

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
TRY_AGAIN = os.EX_TEMPFAIL  # 75, exit status of a run that has saved itself and wants to be continued


class NonFiniteError(RuntimeError):
    """The objective or its gradient was not finite; the message names step and seed."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """A signal asked the run to stop; it has been saved."""


class Chunk(NamedTuple):
    """Steps that were dispatched: where they end, how many they are, their metrics on the devices, and when it was."""

    step: int
    length: int
    metrics: ChunkMetrics
    begin: float


def train(
    config: Mapping[str, Any],
    workdir: str | os.PathLike,
    devices: list[Device] | None = None,
    profile: str | os.PathLike | None = None,
    *,
    other_random_numbers: bool = False,
) -> dict[str, Any]:
    """Trains a config in a run directory, or continues the run that is there.

    Args:
      config: with the fields of `configs/base.py`, or resolved.
      workdir: the run directory; made if need be.
      devices: what the seeds, and the points of a grid, are spread over; default all of JAX's.
      profile: a folder for a trace of the second chunk of steps, to be opened with xprof or Perfetto; None for none.
      other_random_numbers: whether a run may be continued with settings of JAX that change its random numbers.

    Returns:
      The summary, as in `summary.json`.

    Raises:
      ConfigError: for a bad config, a directory of another one, or a profile where there can be no folder.
      DataError, RunDirError, CheckpointError, NonFiniteError: as their messages say.
      Interrupted: after a signal, when everything is saved.
    """
    config, run_dir = resolve(config), RunDir(workdir)
    if profile is not None:  # before the work: JAX would say only when the trace is written that it is no folder
        place = pathlib.Path(profile).absolute()
        existing = next(path for path in (place, *place.parents) if path.exists())
        if not existing.is_dir():
            raise ConfigError(f"the profile is to be in {os.fspath(profile)}, but {existing} is no folder")
    with run_dir.disk_errors():
        run_dir.check_owner(config)
        if run_dir.done_steps() == config.steps and (summary := run_dir.read_summary()):
            say(f"the run in {run_dir.path} is finished already: {config.steps:,} steps")
            return summary
    prepared = prepare(config)
    members, experiment, num_samples = members_of(config), prepared.experiment, split_samples(config)
    seeds = np.array([member.seed for member in members], np.uint32)
    data, precision, stop = prepared.data_record(), jax.default_matmul_precision(config.matmul_precision), _Stop()
    listening = signals_to(stop, SIGNALS)

    with (
        run_dir.disk_errors(),
        run_dir.locked() as check_place,
        precision,
        listening,
        contextlib.ExitStack() as closing,
    ):
        # --- The directory: once more, now that nobody else can take it.
        run_dir.check_owner(config)
        run_dir.remove_leftovers()
        if not run_dir.config_file.exists():  # before anything else is in the directory, or it would be nobody's
            run_dir.write_config(config, prepared.train_mean)

        # --- The state, from the newest checkpoint or from the seeds, and the images, on the devices.
        axis = SeedAxis(len(members), devices or jax.devices())
        numbers = axis.put(numbers_of(config))
        images = {split: axis.share(getattr(prepared.dataset, split)) for split in SPLITS}
        checkpoints = Checkpoints(run_dir.checkpoints, config.checkpoint.keep)
        closing.callback(checkpoints.close)
        like = jax.eval_shape(jax.vmap(experiment.init), seeds)
        saved, record = last_saved(run_dir, config, checkpoints, like)
        begun = lambda: axis.map(functools.partial(first_state, experiment), num_own=2)(axis.put(seeds), numbers)
        state = begun() if saved is None else axis.put(saved.state)
        step = saved_step = 0 if saved is None else saved.step
        settings = settings_now(axis.devices)
        changed = check_continued(run_dir, prepared, record, settings, other_random_numbers)
        saved_at = time.monotonic()
        if step > config.steps:
            made = f"at least {step}, which the run in {run_dir.path} has made"
            raise ConfigError(f"steps is {config.steps}; accepted: {made}")

        # --- What is written on the way.
        run_dir.done_file.unlink(missing_ok=True)
        run_dir.write_config(config, prepared.train_mean)
        reached = max((row["step"] for row in run_dir.read_metrics()), default=0)
        lost = run_dir.keep_rows(config, step, None if record is None else record.rows)
        run_dir.append_record(start_entry(step, config, data, axis.devices, lost))
        diverged = diverged_members(run_dir)
        recorder, progress = Recorder(run_dir, config, step), ProgressBar(config.steps, "step", step)
        closing.callback(recorder.close)
        closing.callback(progress.close)
        if step:
            progress.say(f"resuming {run_dir.path} at step {step:,}")
        elif reached:
            progress.say(f"{run_dir.path} has rows up to step {reached:,} but no checkpoint: it begins again at step 0")
        if lost:
            progress.say(f"{lost}; they cannot be made again from the checkpoints that are left")
        if changed:
            progress.say(f"since the last checkpoint {'; '.join(changed)}: the results may have other bits")

        def save() -> None:
            nonlocal saved_step, saved_at
            if saved_step != step:
                check_place()
                now = Record(config, prepared.image_sums, array_sum(prepared.train_mean), settings, recorder.sums())
                checkpoints.save(step, axis.take(state), now.as_json())
                saved_step, saved_at = step, time.monotonic()

        def leave_if_told() -> None:
            """Saves and leaves if a signal came; what is left to do at this step is done when the run continues."""
            if stop.name:
                save()
                checkpoints.wait()
                raise Interrupted(f"{stop.name}: saved at step {step:,} of {config.steps:,}")

        def evaluate(splits: list[str]) -> None:
            for split in splits:
                begin, name = time.monotonic(), bound_name(split, num_samples[split])
                bounds = axis.take(bound_of[split](state, images[split]))
                check_place()
                recorder.metrics(step, {name: bounds}, diverged)
                run_dir.write_sums(recorder.sums())
                recorder.timing(step, f"evaluate {split}", time.monotonic() - begin)
                progress.say(f"step {step:,}  {name} {living_mean(bounds, members, diverged):.3f}")
                leave_if_told()

        def report(chunk: Chunk) -> None:
            """Writes down the metrics of a chunk when it has ended."""
            nonlocal reported_at
            checkpoints.wait()  # a kill in the middle of a save must not cost the steps after it as well
            metrics: ChunkMetrics = axis.take(chunk.metrics)
            seconds = time.monotonic() - max(chunk.begin, reported_at)
            for line in note_diverged(metrics, config, diverged):
                progress.say(line)
            check_place()
            recorder.metrics(chunk.step, named_metrics(metrics, prepared) | rates[chunk.step], diverged)
            rate = {"steps": chunk.length, "steps_per_second": round(chunk.length / seconds, 2)}
            recorder.timing(chunk.step, "train", seconds, **rate)
            objective = living_mean(metrics.objective, members, diverged)
            progress.update(chunk.step, f"objective {objective:.2f}", seconds)
            reported_at = time.monotonic()

        # --- The loop.
        programs: dict[int, Callable] = {}
        bound_of, rates = bounds_of(prepared.model, config, axis, num_samples), learning_rates(config, step)
        pending, reported_at, dispatched = None, 0.0, 0
        if step:  # it may have been killed in the middle of an evaluation
            on_record = {name for row in run_dir.read_metrics() if row["step"] == step for name in row}
            missing = lambda split: bound_name(split, num_samples[split]) not in on_record
            evaluate([split for split in due_splits(config, step) if missing(split)])
        while step < config.steps:
            length = min(config.log_every - step % config.log_every, config.steps - step)
            if length not in programs:
                progress.describe("compiling")
                begin = time.monotonic()
                chunk = axis.map(functools.partial(run_chunk, experiment, length), num_own=2, donate=True)
                programs[length] = chunk.lower(state, numbers, images["train"]).compile()
                recorder.timing(step, "compile", time.monotonic() - begin)
                progress.describe("")
            traced = profile if dispatched == 1 else None
            with contextlib.nullcontext() if traced is None else jax.profiler.trace(traced):
                with jax.transfer_guard("disallow"):
                    begin = time.monotonic()
                    state, metrics = programs[length](state, numbers, images["train"])
                if traced is not None:
                    jax.block_until_ready(metrics)
            step, dispatched, before = step + length, dispatched + 1, pending
            pending = Chunk(step, length, metrics, begin)
            if before is not None:
                report(before)
            splits, due = due_splits(config, step), save_is_due(config, step, time.monotonic() - saved_at)
            if splits or due or stop.name:
                report(pending)
                pending = None
                if due:
                    save()
                leave_if_told()
                evaluate(splits)
        checkpoints.wait()

        # --- The end.
        check_place()
        draw_curves(run_dir)
        living = next(number for number, member in enumerate(members) if member not in diverged)
        draw_samples(run_dir, prepared, jax.tree.map(lambda leaf: leaf[living], axis.take(state).params))
        for picture in (run_dir.curves, run_dir.samples):
            if picture.exists():
                recorder.image(step, picture.stem, picture)
        summary = write_summary(run_dir, config, experiment.labels, data, axis.devices)
        write_text(run_dir.done_file, f"{config.steps}\n")
    return summary


def last_saved(
    run_dir: RunDir, config: Config, checkpoints: Checkpoints, like: Any
) -> tuple[Saved | None, Record | None]:
    """The newest checkpoint of a run that can be continued from, and what it says of the run; None without either.

    It is one that no rows are missing before, if there is one.
    """
    content = run_dir.metrics_content()
    record_of = lambda saved: read_record(saved.record, run_dir.platform)
    of_this_run = lambda saved: check_run(record_of(saved), config, saved.state, saved.step)

    def unchanged(saved: Saved) -> bool:
        record = record_of(saved)
        if record is None or run_dir.has_rows(record.rows, content):
            return True
        say(f"{run_dir.metrics_file} is not as it was when checkpoint {saved.step} was saved: rows have changed")
        return False

    saved = checkpoints.restore_latest(like, of_this_run, unchanged)
    return saved, None if saved is None else record_of(saved)


def check_continued(
    run_dir: RunDir, prepared: Prepared, record: Record | None, settings: Mapping[str, Any], other_random_numbers: bool
) -> list[str]:
    """Refuses to continue with other images, and with other random numbers unless they are accepted.

    Returns:
      Settings that have changed since the checkpoint of the record was saved, in words.
    """
    if record is None:
        run_dir.check_images(prepared.train_mean, prepared.image_sums)
    else:
        run_dir.check_sums(record.images, prepared.image_sums)
    other_stream, other_bits = changed_settings(record, settings)
    if other_stream and not other_random_numbers:
        what = f"{'; '.join(other_stream)}: the run in {run_dir.path} would go on with other random numbers"
        raise RunDirError(f"{what}; set it back, or accept them with --other_random_numbers")
    return [*other_stream, *other_bits]


def due_splits(config: Config, step: int) -> list[str]:
    """The splits that are evaluated at a step."""
    every = {"train": config.eval.train_every, "validation": config.eval.test_every, "test": config.eval.test_every}
    return [split for split in SPLITS if step == config.steps or step % every[split] == 0]


def save_is_due(config: Config, step: int, seconds: float) -> bool:
    """Whether to save at a step, so many seconds after the last time."""
    every, minutes = config.checkpoint.every, config.checkpoint.minutes
    in_time = minutes is not None and seconds >= 60 * minutes
    return step == config.steps or in_time or (every is not None and step % every == 0)


def first_state(experiment: Experiment, seed: Any, numbers: Mapping[str, Any]) -> State:
    """The state of a member before the first step."""
    return with_numbers(experiment, numbers).init(seed)


def run_chunk(experiment: Experiment, num_steps: int, state: State, numbers: Mapping[str, Any], images: Any) -> tuple:
    """So many steps of a member."""
    return with_numbers(experiment, numbers).run_chunk(state, images, num_steps)


def note_diverged(metrics: ChunkMetrics, config: Config, diverged: set[Member]) -> list[str]:
    """Adds the members for which a step of the chunk was not finite; a line for each that is new.

    Raises:
      NonFiniteError: if no member is left, or one of a run without a grid has diverged.
    """
    members, points, lines = members_of(config), points_of(config), []
    for member, first_bad in zip(members, metrics.first_bad, strict=True):
        if first_bad and member not in diverged:
            who = f"seed {member.seed}" + (f", {point_text(points[member.point])}" if member.point is not None else "")
            lines.append(f"{who}: the objective or its gradient is not finite at step {first_bad:,}")
            diverged.add(member)
            if not config.grid or len(diverged) == len(members):
                raise NonFiniteError(f"{lines[-1]}; the last checkpoint is untouched")
    return lines


def diverged_members(run_dir: RunDir) -> set[Member]:
    """The members of a grid that have diverged, as the metrics on record tell."""
    rows = read_rows(run_dir.metrics_file)
    return {Member(row["seed"], row.get("point")) for row in rows if row.get("objective", 0.0) is None}


def living_mean(values: Any, members: Sequence[Member], diverged: Collection[Member]) -> float:
    """The mean over the members that have not diverged."""
    return float(np.mean([value for value, member in zip(values, members, strict=True) if member not in diverged]))


def learning_rates(config: Config, begin: int) -> dict[int, dict[str, np.ndarray]]:
    """The learning rates of all members by the steps behind `begin` that are logged, and by column.

    They are computed before the loop, since a schedule runs on the devices and would wait for the chunk that they are
    busy with.
    """
    steps = [*range(begin + config.log_every - begin % config.log_every, config.steps, config.log_every), config.steps]
    configs, columns = [at_point(config, point) for point in points_of(config)], {}
    for group in GROUPS:
        rates = []
        for rate in (schedule_of(point.optimizer[group]) for point in configs):
            with jax.numpy_dtype_promotion("standard"):  # schedules mix integers and floats
                found = jax.vmap(rate)(jnp.asarray(steps)) if callable(rate) else rate
            rates.append(np.broadcast_to(np.asarray(found, np.float64), len(steps)))
        columns[f"learning_rate/{group}"] = np.repeat(np.stack(rates, axis=1), len(config.seeds), axis=1)
    return {step: {name: rows[n] for name, rows in columns.items()} for n, step in enumerate(steps)}


def named_metrics(metrics: ChunkMetrics, prepared: Prepared) -> dict[str, Any]:
    """The columns of metrics.jsonl that a chunk fills."""
    values: dict[str, Any] = {"objective": metrics.objective}
    variances = zip(prepared.experiment.labels, metrics.gradient_variance, strict=True)
    for number, (label, variance) in enumerate(variances):
        values[f"gradient_variance/{label}" if number else "gradient_variance"] = variance
    return values | metrics.at_end


class _Stop:
    """Remembers that a signal came, for the loop to look at when it is ready."""

    def __init__(self):
        self.name = None

    def __call__(self, number: int, frame: Any) -> None:
        self.name = signal.Signals(number).name
        if number == signal.SIGINT:
            # Not through sys.stderr, which may be in the middle of a line of its own.
            with contextlib.suppress(OSError):
                os.write(2, b"\nstopping at the end of this chunk of steps; Ctrl-C again stops at once\n")
            signal.signal(number, signal.SIG_DFL)
