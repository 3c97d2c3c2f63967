"""What a run tells while it goes on: metrics, timings, and events for other programs."""

import contextlib
import itertools
import math
import pathlib
import struct
import time
from collections.abc import Collection, Mapping
from typing import Any, Protocol, cast

from disarm_jax.experiment.fields import Config, ConfigError, flat, part, plain
from disarm_jax.experiment.grid import Member, at_point, members_of, point_text, points_of
from disarm_jax.run_directory.directory import POINTS, RunDir
from disarm_jax.run_directory.rows import RowSums, RunningSums, append_rows, rows_text


class Writer(Protocol):
    """What a run tells its numbers to; made by a function of run directory, config and the step it continues after."""

    def scalars(self, step: int, seed: int, values: Mapping[str, float]) -> None:
        """Takes the metrics of one seed."""

    def image(self, step: int, name: str, file: pathlib.Path) -> None:
        """Takes a PNG file of the finished run."""

    def close(self) -> None:
        """Ends what was begun."""


class Recorder:
    """Writes metrics to the run directory: JSON lines, on disk before anything else happens, then to other writers."""

    def __init__(self, run_dir: RunDir, config: Config, step: int):
        """Continues after a step; events past it, from a run that was killed, are marked as void."""
        self._run_dir, self._members = run_dir, members_of(config)
        self._sums = RunningSums(run_dir.metrics_content())
        self._writers: dict[int | None, list[Writer]] = {}
        for member, point in zip(self._members[:: len(config.seeds)], points_of(config), strict=True):
            name = f"{member.point}-{point_text(point)}"[:200]  # of the 255 bytes that a file system allows
            folder = run_dir.path / POINTS / name if config.grid else run_dir.path
            folder.mkdir(parents=True, exist_ok=True)
            own = at_point(config, point)
            self._writers[member.point] = [make_writer(name, folder, own, step) for name in config.writers]

    def metrics(self, step: int, values: Mapping[str, Any], diverged: Collection[Member] = ()) -> None:
        """One row per member, from arrays `[M]`; numbers that are not finite, and of members that diverged, as null."""
        rows = []
        for number, member in enumerate(self._members):
            numbers = {name: float(column[number]) for name, column in values.items()}
            lost = lambda value, member=member: member in diverged or not math.isfinite(value)
            known = {name: None if lost(value) else value for name, value in numbers.items()}
            rows.append({"step": step} | member.columns() | known)
        append_rows(self._run_dir.metrics_file, rows)
        self._sums.add(rows_text(rows))
        for member, row in zip(self._members, rows, strict=True):
            known = {name: row[name] for name in values if row[name] is not None}
            for writer in self._writers[member.point] if known else ():
                writer.scalars(step, member.seed, known)

    def sums(self) -> RowSums:
        """Number and checksum of all rows of metrics that were written."""
        return self._sums.now()

    def timing(self, step: int, what: str, seconds: float, **more: Any) -> None:
        """How long something took that ended at a step."""
        append_rows(self._run_dir.timings_file, [{"step": step, "what": what, "seconds": round(seconds, 4)} | more])

    def image(self, step: int, name: str, file: pathlib.Path) -> None:
        """A picture for the writers that show them."""
        for writer in itertools.chain(*self._writers.values()):
            writer.image(step, name, file)

    def close(self) -> None:
        """Ends all of them."""
        with contextlib.ExitStack() as closing:
            for writer in itertools.chain(*self._writers.values()):
                closing.callback(writer.close)


def make_writer(name: str, folder: pathlib.Path, config: Config, step: int) -> Writer:
    """The writer that a name in `config.writers` stands for.

    Raises:
      ConfigError: if it needs a package that is not installed.
    """
    try:
        return part(name, WRITERS)(folder, config, step)
    except ModuleNotFoundError as error:
        raise ConfigError(f"writers has {name!r}, which needs a package that is not installed: {error.name}") from error


class TensorBoard:
    """Event files, written at once: tensorboardX's own writer has a thread that hangs when the disk is full."""

    def __init__(self, folder: pathlib.Path, config: Config, step: int):
        """Begins one file per seed; the first has the config as text, and at the end the images."""
        from tensorboardX import summary
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import RecordWriter

        # Protocol buffers make their classes at run time, where a type checker cannot see them.
        self._event, self._summary = cast(Any, event_pb2), cast(Any, summary_pb2)
        self._files = {}
        with contextlib.ExitStack() as after_an_error:
            after_an_error.callback(self.close)
            for seed in config.seeds:
                place = folder / "tensorboard" / f"seed_{seed}"
                place.mkdir(parents=True, exist_ok=True)
                self._files[seed] = RecordWriter(str(place / f"events.out.tfevents.{time.time_ns()}"))
                self._write(seed, file_version="brain.Event:2")
                if step:
                    started = self._event.SessionLog(status=self._event.SessionLog.START)
                    self._write(seed, step=step + 1, session_log=started)
            table = "\n".join(f"| {field} | {value} |" for field, value in flat(config))
            text = summary.text("config", f"| field | value |\n|---|---|\n{table}")
            self._write(config.seeds[0], step=step, summary=text)
            after_an_error.pop_all()

    def scalars(self, step: int, seed: int, values: Mapping[str, float]) -> None:
        """One event for all metrics of a seed."""
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(seed, step=step, summary=self._summary.Summary(value=scalars))

    def image(self, step: int, name: str, file: pathlib.Path) -> None:
        """The PNG file as it is."""
        content = file.read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        image = self._summary.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=content)
        value = self._summary.Summary.Value(tag=name, image=image)
        self._write(next(iter(self._files)), step=step, summary=self._summary.Summary(value=[value]))

    def _write(self, seed: int, **fields: Any) -> None:
        self._files[seed].write(self._event.Event(wall_time=time.time(), **fields).SerializeToString())
        self._files[seed].flush()

    def close(self) -> None:
        """Ends the files."""
        for file in self._files.values():
            file.close()


class WandB:
    """Weights & Biases, if it is installed; a run that continues here continues there."""

    def __init__(self, folder: pathlib.Path, config: Config, step: int):
        """Begins a run there, named after the run directory, in the project of WANDB_PROJECT."""
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb, self._seeds = wandb, config.seeds
        folder, several = folder.resolve(), {}
        name = folder.name
        if folder.parent.name == POINTS:  # one of several in this process
            name, several = f"{folder.parents[1].name}-{name}", {"reinit": "create_new"}
        self._run = wandb.init(dir=str(folder), name=name, id=name, resume="allow", config=plain(config), **several)

    def scalars(self, step: int, seed: int, values: Mapping[str, float]) -> None:
        """Metrics, named after the seed if there are several."""
        prefix = f"seed_{seed}/" if len(self._seeds) > 1 else ""
        self._run.log({f"{prefix}{name}": value for name, value in values.items()}, step=step)

    def image(self, step: int, name: str, file: pathlib.Path) -> None:
        """The PNG file as it is."""
        self._run.log({name: self._wandb.Image(str(file))}, step=step)

    def close(self) -> None:
        """Ends the run there."""
        self._run.finish()


WRITERS = {"tensorboard": TensorBoard, "wandb": WandB}
