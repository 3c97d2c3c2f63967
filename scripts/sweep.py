"""Runs the sweep that a config file states, on Slurm or on this machine, and tells where its trials are.

    python -m scripts.sweep --config configs/sweeps/elbo.py --out runs/elbo --dry_run
    python -m scripts.sweep --config configs/sweeps/elbo.py --out runs/elbo --cluster slurm --partition gpu --gpus 1
    python -m scripts.sweep --config configs/sweeps/elbo.py --out runs/elbo --only dataset=mnist --config.steps=20000
    python -m scripts.sweep --status runs/elbo

`--cluster slurm` submits one job array and returns; `local` runs as many trials side by side as this machine has cores
or GPUs; `debug` runs one after the other in this process, where a debugger reaches them. Every trial has its own run
directory in `--out`, named after what varies. The same command once more launches what is missing or was interrupted,
and with `--rerun_failed` also what has failed. `--config.field=value` holds for all trials.

Exit status: 0 submitted, or all trials are done or on Slurm; 75 interrupted and saved; 1 otherwise, with
one line that says why.
"""

import math
import os
import shlex
import sys
from collections.abc import Sequence

import jax
from absl import flags
from ml_collections import config_flags

from disarm_jax.command_line import check_config_file, flags_only, run_script
from disarm_jax.console import say
from disarm_jax.experiment.config import differences
from disarm_jax.experiment.devices import (
    deterministic_gpu_flag,
    keep_compiled_programs,
    number_of_cpu_devices_is_set,
    one_cpu_device_per_core,
)
from disarm_jax.experiment.fields import ConfigError, flat
from disarm_jax.experiment.grid import members_of
from disarm_jax.experiment.loop import TRY_AGAIN, Interrupted, train
from disarm_jax.run_directory.directory import RunDirError
from disarm_jax.sweep import local, slurm
from disarm_jax.sweep.attempt import Task
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.status import Status, changed_files, file_sum, summary_line, sweep_status, table
from disarm_jax.sweep.trials import (
    SweepError,
    Trial,
    main_command,
    make_trials,
    read_points,
    select,
    stored_command,
)

CLUSTERS = ("slurm", "local", "debug")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    config_flags.DEFINE_config_file("config", None, "The config file, with get_hyper.", lock_config=True, **options)
    flags.DEFINE_string("out", None, "Folder of the sweep.", **options)
    flags.DEFINE_string("status", None, "Tell where the trials of the sweep in this folder are.", **options)
    flags.DEFINE_enum("cluster", "local", CLUSTERS, "Where the trials run.", **options)
    flags.DEFINE_multi_string("only", [], "field=value: only trials with this value; repeatable.", **options)
    flags.DEFINE_bool("dry_run", False, "Print every command and the resources, and do nothing.", **options)
    flags.DEFINE_bool("rerun_failed", False, "Launch failed trials as well.", **options)
    flags.DEFINE_integer(
        "max_parallel",
        None,
        "Trials at once; on Slurm at most, here exactly, even if cores are shared.",
        lower_bound=1,
        **options,
    )
    flags.DEFINE_integer("gpus", None, "GPUs of a trial; default 0 on Slurm, here 1 if any.", lower_bound=0, **options)
    cpus = "CPUs of a trial; default on Slurm one per seed up to 4, or 2 beside a GPU; here an equal share."
    flags.DEFINE_integer("cpus", None, cpus, lower_bound=1, **options)
    flags.DEFINE_float("mem_gb", None, "Slurm: memory of a trial.", lower_bound=0.1, **options)
    flags.DEFINE_integer("time_min", 240, "Slurm: minutes after which a job is requeued.", lower_bound=1, **options)
    flags.DEFINE_string("partition", None, "Slurm: partition.", **options)
    flags.DEFINE_multi_string("sbatch", [], 'Slurm: further options, "key=value,…"; repeatable.', **options)
    flags.DEFINE_multi_string("setup", [], "A line of shell to run before each trial; repeatable.", **options)


def main(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """One launch, or the status."""
    flags_only(argv)
    try:
        sys.exit(show_status(values.status) if values.status is not None else launch(values))
    except (ConfigError, RunDirError, SweepError) as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror or error}: {error.filename or values.out}")
    except KeyboardInterrupt:  # while trials run here, `local` listens
        say("interrupted; the same command continues")
        sys.exit(TRY_AGAIN)


def show_status(path: str) -> int:
    """Prints where all trials of a folder are; the exit status."""
    if not path:
        raise SweepError("--status is empty; accepted: the folder of a sweep, as given to --out")
    folder = SweepFolder(path)
    record = folder.read_record()
    if not record:
        raise SweepError(f"no sweep was launched in {path}: it has no sweep.json")
    found = sweep_status(folder, record)
    print("\n".join([*table(found), summary_line(found), *changed_files(record)]))
    return 0 if all(status.state == "done" for status in found) else 1


def launch(values: flags.FlagValues) -> int:
    """Checks everything, then submits or runs what is to be done; the exit status."""
    if values.config is None or not values.out:
        raise SweepError("--config and --out are needed, or --status; for instance --config configs/sweeps/elbo.py")
    config_file = config_flags.get_config_filename(values["config"])
    source = os.path.abspath(str(config_file).partition(":")[0])
    launched_from = {"config_file": source, "config_sha256": file_sum(source)}  # before it is read
    check_config_file(values["config"])
    every = make_trials(values.config, read_points(config_file), config_flags.get_override_values(values["config"]))
    trials, folder = select(every, values.only), SweepFolder(values.out)
    for trial in trials:
        check_owner(folder, trial)
    resources = read_resources(values, every)
    shares = []
    if values.cluster == "local":
        shares = local.machine_shares(len(every), values.gpus, values.cpus, values.max_parallel)
    elif values.cluster == "slurm":
        slurm.check(resources, must_be_there=not values.dry_run)
    elif values.cluster == "debug" and values.setup:
        raise SweepError("--setup is for slurm and local; debug runs in this process")
    gpus = resources.gpus if values.cluster == "slurm" else sum(len(share.gpus) for share in shares)
    tasks = [make_task(trial, folder, values, resources, gpus) for trial in trials]
    record = {
        task.name: {"command": task.command, "steps": trial.config["steps"], "config": trial.config, "job": None}
        | launched_from
        for task, trial in zip(tasks, trials, strict=True)
    }
    if values.dry_run:
        where = {"slurm": f"slurm, each with {resources}", "debug": "debug, one after the other"}
        where["local"] = f"local, {len(shares)} at once: one each on {'; '.join(map(str, shares))}"
        by_hand = [main_command(sys.executable, config_file, trial, folder.path / trial.name) for trial in trials]
        return dry_run(tasks, by_hand, plan(folder, record, values.rerun_failed), where[values.cluster])
    interrupted = False
    with folder.locked():
        chosen = plan(folder, record, values.rerun_failed)
        if lost := [status.name for status, _ in chosen.values() if status.state == "unknown"]:
            forget = f"where that Slurm is no more, remove {folder.record_file}"
            raise SweepError(f"{len(lost)} trials, such as {lost[0]}, may be queued: Slurm does not answer; {forget}")
        todo = [task for task in tasks if chosen[task.name][1]]
        tell_skipped([status for status, chose in chosen.values() if not chose], len(tasks))
        left_alone = {task.name for task in tasks} - {task.name for task in todo}
        known = {name: entry for name, entry in folder.read_record().items() if name in left_alone}
        print("".join(f"{line}\n" for line in changed_files(known)), end="", file=sys.stderr)
        folder.forget_attempts(task.name for task in todo)
        for task in todo:
            folder.write_config(task.name, record[task.name]["config"])
        folder.write_record({task.name: record[task.name] for task in todo})
        if todo and values.cluster == "slurm":
            jobs = slurm.submit(todo, folder, resources)
            submitted = {task.name: record[task.name] | {"job": job} for task, job in zip(todo, jobs, strict=True)}
            folder.write_record(submitted)
            print(f"submitted {len(todo)} trials as job {jobs[0].partition('_')[0]}, each with {resources}")
            print(f"python -m scripts.sweep --status {shlex.quote(values.out)}")
        elif values.cluster == "local":
            interrupted = not local.run_local(todo, folder, record, shares)
        elif values.cluster == "debug":
            names = {task.name for task in todo}
            run_here([trial for trial in trials if trial.name in names], folder, values.gpus)
    if todo and values.cluster == "slurm":
        return 0
    known = folder.read_record()
    found = sweep_status(folder, {name: known.get(name, entry) for name, entry in record.items()})
    print(summary_line(found))
    if interrupted:
        print("interrupted; the same command continues", file=sys.stderr)
        return TRY_AGAIN
    on_their_way = values.cluster == "slurm" and all(status.active or status.state == "done" for status in found)
    return 0 if on_their_way or all(status.state == "done" for status in found) else 1


def check_owner(folder: SweepFolder, trial: Trial) -> None:
    """Refuses a run directory of another config, in one line."""
    run_dir = folder.run_dir(trial.name)
    if run_dir.config_file.exists() and (found := differences(run_dir.read_config(), trial.config)):
        raise SweepError(f"{run_dir.path} is the run of another config; choose another --out. {'; '.join(found)}")


def check_launched(status: Status, config: dict | None, wanted: dict) -> None:
    """Refuses to leave a trial alone that was launched with another config, even if it only has other steps to make."""
    before, now = dict(flat(config or wanted)), dict(flat(wanted))
    changed = [f"{name}: {before.get(name)!r} then, {now[name]!r} now" for name in now if before.get(name) != now[name]]
    if changed:
        what = f"{status.name} is {status.state}, launched with another config: {'; '.join(changed)}"
        raise SweepError(f"{what}; cancel it, wait for its end, or choose another --out")


def read_resources(values: flags.FlagValues, trials: Sequence[Trial]) -> slurm.Resources:
    """What each Slurm job asks for."""
    gpus = values.gpus or 0
    cpus = values.cpus or (2 if gpus else min(4, max(len(members_of(trial.config)) for trial in trials)))
    limits = (values.mem_gb, values.time_min, values.max_parallel)
    if values.mem_gb is not None and not math.isfinite(values.mem_gb):
        raise SweepError(f"--mem_gb={values.mem_gb}: accepted: a number of gigabytes")
    if values.partition is not None and not values.partition.isprintable():
        raise SweepError(f"--partition={values.partition!r}: accepted: the name of a partition")
    options = slurm.parse_sbatch(values.sbatch)
    return slurm.Resources(values.partition, gpus, cpus, *limits, options, tuple(values.setup))


def make_task(
    trial: Trial,
    folder: SweepFolder,
    values: flags.FlagValues,
    resources: slurm.Resources,
    gpus: int,
) -> Task:
    """What a process needs to know to attempt a trial."""
    workdir = folder.path / trial.name
    command = stored_command(sys.executable, folder.config_file(trial.name), trial, workdir)
    env = {}
    if values.gpus == 0 or (values.cluster == "slurm" and not gpus):
        env["JAX_PLATFORMS"] = "cpu"  # a GPU that was not asked for may be there all the same
    if values.cluster == "slurm" and not gpus:
        # As many threads and devices as were asked for, however many cores a node has: the bits depend on both.
        env["PJRT_NPROC"] = str(resources.cpus)
        if not number_of_cpu_devices_is_set():
            env["JAX_NUM_CPU_DEVICES"] = str(min(resources.cpus, len(members_of(trial.config))))
    setup = tuple(values.setup) if values.cluster == "local" else ()  # Slurm's jobs begin with it
    flag = deterministic_gpu_flag() if gpus else ""  # or a continued run would end with other bits
    return Task(trial.name, tuple(command), str(folder.path), os.getcwd(), env, flag, setup)


def plan(folder: SweepFolder, record: dict, rerun_failed: bool) -> dict[str, tuple[Status, bool]]:
    """Where each trial is, and whether it is to be launched."""
    known = folder.read_record()
    current = {name: entry | {"job": known.get(name, entry)["job"]} for name, entry in record.items()}
    left = ("done",) if rerun_failed else ("done", "failed")
    found = sweep_status(folder, current)
    for status in found:
        if status.active:
            check_launched(status, known.get(status.name, {}).get("config"), record[status.name]["config"])
    return {status.name: (status, not status.active and status.state not in left) for status in found}


def dry_run(
    tasks: Sequence[Task], by_hand: Sequence[list[str]], chosen: dict[str, tuple[Status, bool]], where: str
) -> int:
    """Prints what a launch would do, with the command that does the same by hand."""
    for task, command in zip(tasks, by_hand, strict=True):
        status, chose = chosen[task.name]
        print(f"{task.name}: {'would be launched' if chose else status.state}")
        print(f"    {shlex.join(command)}")
    print(f"{len(tasks)} trials, {sum(chose for _, chose in chosen.values())} of them to be launched on {where}")
    return 0


def tell_skipped(skipped: Sequence[Status], count: int) -> None:
    """Says which trials are left alone."""
    for state in sorted({status.state for status in skipped}):
        names = [status.name for status in skipped if status.state == state]
        print(f"{len(names)} of {count} trials are {state} and left alone", file=sys.stderr)
        if state == "failed":
            print(f"  {'; '.join(names)}; --rerun_failed launches them again", file=sys.stderr)


def run_here(trials: Sequence[Trial], folder: SweepFolder, gpus: int | None) -> None:
    """One after the other in this process; what they raise is not caught."""
    if gpus == 0:
        jax.config.update("jax_platforms", "cpu")
    elif local.machine_gpus():
        os.environ["XLA_FLAGS"] = f"{deterministic_gpu_flag()} {os.environ.get('XLA_FLAGS', '')}"
        keep_compiled_programs()  # as `main` does: what XLA has found to be the fastest may differ the next time
    one_cpu_device_per_core(max((len(members_of(trial.config)) for trial in trials), default=1))
    for trial in trials:
        print(f"== {trial.name}", file=sys.stderr)
        try:
            train(trial.config, folder.path / trial.name)
        except Interrupted as interrupted:
            print(f"{interrupted}; the same command continues", file=sys.stderr)
            sys.exit(TRY_AGAIN)


if __name__ == "__main__":
    run_script(main, define_flags)
