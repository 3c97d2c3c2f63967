"""Trials on Slurm: one job array, submitted by submitit; nothing stays behind on the machine that submits.

A job that is preempted or reaches its time limit is warned by USR2 (or SIGTERM). `main` saves and ends with status 75;
the job then puts itself back into the queue and later continues from its checkpoint. A cancelled job gets SIGTERM too:
Slurm does not call it running any more, so it is left alone.
"""

import contextlib
import io
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from disarm_jax.sweep.attempt import CONTINUE, AlreadyRunning, Attempt, NoProgress, Task, checked_setup
from disarm_jax.sweep.folder import SweepFolder
from disarm_jax.sweep.trials import SweepError

PENDING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
RUNNING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
# What --sbatch may not change, because requeueing and the same bits depend on it, and what says it instead.
_FLAGS = {"--cpus": "cpus-per-gpu cpus-per-task", "--mem_gb": "mem mem-per-cpu mem-per-gpu", "--partition": "partition"}
_FLAGS |= {
    "--gpus (and --sbatch constraint=… for a kind of them)": "gpus gpus-per-node gpus-per-socket gpus-per-task gres"
}
_FLAGS |= {"--time_min": "time time-min", "--max_parallel": "array"}
_NOTHING = "error no-requeue nodes ntasks ntasks-per-core ntasks-per-node open-mode output requeue signal wrap"
_NOTHING += " parsable quiet test-only wait"  # submitit reads what sbatch says, and nothing waits for jobs to end
OURS = {option: flag for flag, options in _FLAGS.items() for option in options.split()}
OURS |= dict.fromkeys(_NOTHING.split(), "")
# Any other option without a value would take the next line of the job script for its value.
WITHOUT_VALUE = "contiguous exclusive hold nice no-kill overcommit oversubscribe reboot spread-job use-min-nodes"
WARNING_SECONDS = 300  # before the time limit; an evaluation may have to end first
POLL_SECONDS = 0.2
TURN_SECONDS = 60  # to wait for another process that works on the trial, before the job goes back into the queue


class Resources(NamedTuple):
    """What each job asks for.

    Attributes:
      partition: None is the cluster's default.
      gpus: for each trial, 0 for none.
      cpus: for each trial.
      mem_gb: None is the cluster's default.
      time_min: limit, after which a job is requeued.
      max_parallel: how many jobs may run at once, None for all.
      sbatch: further options, by name without dashes; True for one without a value.
      setup: lines of shell that a job begins with.
    """

    partition: str | None
    gpus: int
    cpus: int
    mem_gb: float | None
    time_min: int
    max_parallel: int | None
    sbatch: dict[str, str | bool]
    setup: tuple[str, ...]

    def __str__(self) -> str:
        """In one line."""
        parts = [f"{self.gpus} GPUs", f"{self.cpus} CPUs"]
        parts.append(f"{self.mem_gb:g} GB" if self.mem_gb else "the default memory")
        parts += [f"{self.time_min} minutes", f"partition {self.partition or '(default)'}"]
        parts.append(f"at most {self.max_parallel} at once" if self.max_parallel else "all at once")
        parts += [f"--{key}" if value is True else f"--{key}={value}" for key, value in self.sbatch.items()]
        return ", ".join(parts)


def parse_sbatch(texts: Sequence[str]) -> dict[str, str | bool]:
    """Options of sbatch from "key=value,key=value"; a value may have commas, and an option no value.

    >>> parse_sbatch(["account=lab,exclude=n1,n2", "--exclusive"])
    {'account': 'lab', 'exclude': 'n1,n2', 'exclusive': True}
    """
    options: dict[str, str | bool] = {}
    for part in (part for text in texts for part in re.split(r",(?=[A-Za-z_-]+=)", text) if part):
        if not part.isprintable():
            raise SweepError(f"--sbatch={part!r}: accepted: one line, without control characters")
        key, equals, value = part.strip().partition("=")
        key = key.removeprefix("--").replace("_", "-")
        ours = [option for option in OURS if option.startswith(key)] if key else []  # sbatch takes "arr" for "array"
        if flag := next((OURS[option] for option in ours), ""):
            raise SweepError(f"--sbatch={part}: accepted: {flag}")
        if not re.fullmatch(r"[A-Za-z][A-Za-z-]*", key) or ours:
            raise SweepError(f"--sbatch={part}: accepted: options of sbatch as key=value, except {_NOTHING}")
        if not (equals and value) and key not in WITHOUT_VALUE.split():
            raise SweepError(f"--sbatch={part}: accepted: key=value, or without a value {WITHOUT_VALUE}")
        options[key] = value or True
    return options


def check(resources: Resources, must_be_there: bool) -> None:
    """Refuses to go on without Slurm, submitit, or the partition, or with more CPUs than a node of it has.

    Args:
      resources: what each job asks for.
      must_be_there: whether to refuse a machine without Slurm, or one where it does not answer.

    Raises:
      SweepError: which says what is missing.
    """
    if not must_be_there and (shutil.which("sinfo") is None or _run("sinfo", "--noheader") is None):
        return
    if shutil.which("sbatch") is None:
        raise SweepError("no Slurm on this machine: there is no sbatch; --cluster=local runs the sweep here")
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise SweepError('submitit is missing; pip install -e ".[slurm]"') from None
    try:
        asked = ["sinfo", "--noheader", "--Node", "--format=%P|%c"]  # a node in each line; the default partition: main*
        found = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    except subprocess.CalledProcessError as error:
        raise SweepError(f"Slurm does not answer: {_reason(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SweepError(f"Slurm does not answer: {error}") from error
    nodes = [(partition, int(cpus)) for partition, _, cpus in (line.partition("|") for line in found)]
    known = sorted({partition.rstrip("*") for partition, _ in nodes})
    wanted = resources.partition.split(",") if resources.partition is not None else known
    if not set(wanted) <= set(known):
        raise SweepError(f"--partition={resources.partition}: no such partition; accepted: {', '.join(known)}")
    default = resources.partition is None and any(partition.endswith("*") for partition, _ in nodes)
    most = max(cpus for name, cpus in nodes if (name.endswith("*") if default else name.rstrip("*") in wanted))
    if resources.cpus > most:
        raise SweepError(f"--cpus={resources.cpus}: accepted: up to {most}, as many as a node has")


def submit(tasks: Sequence[Task], folder: SweepFolder, resources: Resources) -> list[str]:
    """Submits all tasks as one job array; their job ids.

    Raises:
      SweepError: if Slurm refuses it; nothing is submitted then.
    """
    import submitit  # only where there is a cluster
    from submitit.core.utils import FailedJobError

    warning = min(WARNING_SECONDS, resources.time_min * 60 // 4)
    executor = submitit.AutoExecutor(folder.submitted, cluster="slurm")
    options = {
        "name": folder.path.name,
        "timeout_min": resources.time_min,
        "cpus_per_task": resources.cpus,
        "mem_gb": resources.mem_gb,
        "gpus_per_node": resources.gpus or None,
        "slurm_partition": resources.partition,
        "slurm_array_parallelism": resources.max_parallel or len(tasks),
        "slurm_signal_delay_s": warning,
        "slurm_setup": checked_setup(resources.setup) if resources.setup else None,
        "slurm_srun_args": [f"--cpus-per-task={resources.cpus}"],  # which srun does not take over from sbatch
        "slurm_additional_parameters": {"requeue": True} | resources.sbatch,
    }
    executor.update_parameters(**{name: value for name, value in options.items() if value is not None})
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # what sbatch says is in the error as well
            jobs = executor.map_array(run_task, tasks, [warning * 0.7] * len(tasks))
    except FailedJobError as error:
        raise SweepError(f"Slurm has refused the job: {_reason(str(error))}") from error
    return [job.job_id for job in jobs]


def run_task(task: Task, patience: float) -> None:
    """What a job does: attempts its trial, and puts itself back into the queue if that is not the end of it.

    Args:
      task: the trial.
      patience: seconds that `main` has to save when it is asked to stop; after them its last checkpoint must do.
    """
    asked: list[float] = []
    # Instead of submitit's handler, which would requeue, and so kill, the job before `main` has saved.
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, lambda number, frame: asked.append(time.monotonic()))
    job = _this_job()
    try:
        attempt, passed_on = _start(task, f"job {job}, {platform.node()}", asked), False
    except AlreadyRunning:  # by `local`, or by a job that Slurm has lost sight of; whoever comes next finds it done
        print("another process is at work on this trial", file=sys.stderr)
        _requeue(job)
        return
    except NoProgress:
        sys.exit(1)
    while (status := attempt.poll()) is None and not (asked and time.monotonic() > asked[0] + patience):
        time.sleep(POLL_SECONDS)
        if asked and not passed_on and time.monotonic() > asked[0] + 5:
            attempt.send(signal.SIGTERM)  # Slurm signals all processes of a job, but not in every configuration
            passed_on = True
    if status is None:  # it would outlive this job, and keep the next one from its work
        status = attempt.kill(f"killed: not saved within {patience:.0f} s; the last checkpoint must do")
    if status in CONTINUE:
        _requeue(job)
    sys.exit(status)


def _this_job() -> str:
    """What Slurm calls this job; SLURM_JOB_ID is the whole array to it, if this is the last task of one."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]  # submitit makes no array of a single trial


def _start(task: Task, where: str, asked: Sequence[float]) -> Attempt:
    """Starts an attempt, once nobody else works on the trial; not for ever, and not when asked to stop."""
    end = time.monotonic() + TURN_SECONDS
    while True:
        try:
            return Attempt(task, where)
        except AlreadyRunning:
            if asked or time.monotonic() > end:
                raise
            time.sleep(1)


def _requeue(job: str) -> None:
    """Puts this job back into the queue, unless Slurm has other plans with it."""
    for _ in range(5):
        state = _run("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        if state is not None and "RUNNING" not in state:
            print(f"not requeued: Slurm calls the job {state.strip() or 'gone'}", file=sys.stderr)
            return
        if state is not None and _run("scontrol", "requeue", job) is not None:
            return
        time.sleep(5)  # a controller that is busy
    print("not requeued: Slurm does not answer", file=sys.stderr)


class Queued(NamedTuple):
    """What Slurm says of a job.

    Attributes:
      state: such as PENDING.
      reason: why it is pending.
    """

    state: str
    reason: str = ""


def queue_states(jobs: Collection[str]) -> dict[str, Queued] | None:
    """What Slurm says of the jobs that it knows; long after their end only its accounting does, if it is on.

    None if Slurm does not answer: the jobs may be anywhere then.
    """
    if not jobs:
        return {}
    listed = _run("squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r")
    if listed is None:
        return None
    states = {job: Queued(*rest) for job, *rest in (line.split("|") for line in listed.splitlines())}
    missing = {job.partition("_")[0] for job in jobs if job not in states}
    if missing and shutil.which("sacct"):
        asked = ("--noheader", "--parsable2", "--allocations", "--format=JobID,State", f"--jobs={','.join(missing)}")
        for line in (_run("sacct", *asked) or "").splitlines():
            job, _, state = line.partition("|")
            states.setdefault(job, Queued(state.partition(" ")[0]))  # "CANCELLED by 1000"
    return {job: states[job] for job in jobs if job in states}


def _run(*command: str) -> str | None:
    """What a command of Slurm prints, None if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        reason = _reason(getattr(error, "stderr", None) or str(error))
        if "disabled" not in reason:  # no accounting, which is common
            print(f"{command[0]}: {reason}", file=sys.stderr)
        return None


def _reason(text: str) -> str:
    """The line that says what is wrong; programs of Slurm like to end with a hint at their help."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search("error:|invalid|unrecognized|option '", line, re.IGNORECASE)]
    return (telling or lines or ["no reason given"])[-1]
