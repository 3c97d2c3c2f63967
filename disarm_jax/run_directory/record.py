"""What made a run (the code, versions, settings outside of the config, machine and data), and what it ended with."""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import disarm_jax as dj
from disarm_jax.experiment.devices import Device, processor_name, usable_cores
from disarm_jax.experiment.fields import Config
from disarm_jax.experiment.grid import point_text, points_of
from disarm_jax.files import write_text
from disarm_jax.run_directory.directory import RunDir

PACKAGES = ("disarm_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
GIT_SECONDS = 10  # a slow file system must not keep a run from starting


def start_entry(
    step: int, config: Config, data: Mapping[str, Any], devices: Sequence[Device], lost: str = ""
) -> dict[str, Any]:
    """The entry of `run.json` for a process that trains from a step on.

    Args:
      step: that it begins or continues at.
      config: resolved.
      data: where the images are from, and their sha256.
      devices: that the seeds are spread over.
      lost: what was found missing, in words.
    """
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "step": step,
        "command": sys.argv,
        "code": code(),
        "versions": versions(),
        "flags": {name: os.environ[name] for name in sorted(os.environ) if _is_flag(name)},
        "matmul_precision": config.matmul_precision,
        "device": device(devices),
        "host": host(),
        "data": data,
    } | ({"lost": lost} if lost else {})


def _is_flag(name: str) -> bool:
    return name.startswith(("JAX_", "XLA_")) or name == "PJRT_NPROC"


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a result may depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def device(devices: Sequence[Device]) -> dict[str, Any]:
    """The devices that the seeds are spread over."""
    return {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}


def host() -> dict[str, Any]:
    """The machine around the devices."""
    return {"processor": processor_name(), "cores": os.cpu_count(), "usable_cores": usable_cores()}


def code(package: pathlib.Path = pathlib.Path(dj.__file__).parent) -> dict[str, Any]:
    """The commit of this code and whether it was changed since; both None where no repository tells.

    Args:
      package: the folder of the package.

    Returns:
      `commit`; `dirty`, whether tracked files have changed or there are new Python files; `version`.
    """
    commit = dirty = None
    # Installed by pip, the package may lie in a checkout of something else, which does not track it.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") and (head := _git(package, "rev-parse", "HEAD")):
        commit = head.strip()
        changed = _git(package, "status", "--porcelain", "--untracked-files=no")
        new = _git(package, "ls-files", "--others", "--exclude-standard", ":/*.py")
        dirty = None if changed is None or new is None else bool(changed or new)
    return {"commit": commit, "dirty": dirty, "version": dj.__version__}


def _git(folder: pathlib.Path, *arguments: str) -> str | None:
    """What git prints in a folder; None if it fails, is not there or takes too long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # a hook sets some
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]  # others may be at work in the repository
    settings = {"env": environment, "capture_output": True, "text": True, "timeout": GIT_SECONDS, "check": True}
    try:
        return subprocess.run(command, **settings).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def final_metrics(rows: Sequence[Mapping[str, Any]], step: int, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The metrics at a step: value of each seed, their mean, and its standard error (None for a single seed).

    A metric that is not finite for all seeds is left out.

    >>> rows = [{"step": 5, "seed": 0, "elbo": -1.0}, {"step": 5, "seed": 1, "elbo": -3.0}]
    >>> final_metrics(rows, 5, [0, 1])
    {'elbo': {'mean': -2.0, 'stderr': 1.0, 'seeds': [-1.0, -3.0]}}
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["step"] == step:
            for name in set(row) - {"step", "seed", "point"}:
                found.setdefault(name, {})[row["seed"]] = row[name]
    final = {}
    for name in sorted(name for name, by_seed in found.items() if by_seed.keys() >= set(seeds)):
        values = [found[name][seed] for seed in seeds]
        stderr = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        final[name] = {"mean": float(np.mean(values)), "stderr": stderr, "seeds": values}
    return final


def final_results(rows: Sequence[Mapping[str, Any]], step: int, config: Config) -> dict[str, Any]:
    """The `metrics` at a step; of a grid `points`, each with these, its `fields` and the seeds that `diverged`."""
    if not config.grid:
        return {"metrics": final_metrics(rows, step, config.seeds)}
    at_step, points = [row for row in rows if row["step"] == step], []
    names = {name for row in at_step for name in row}
    for number, fields in enumerate(points_of(config)):
        own = [row for row in at_step if row["point"] == number]
        has = lambda seed, own=own: {name for row in own if row["seed"] == seed for name in row}
        diverged = [seed for seed in config.seeds if names - has(seed)]
        points.append({"fields": fields, "metrics": final_metrics(own, step, config.seeds), "diverged": diverged})
    return {"points": points}


def write_summary(
    run_dir: RunDir, config: Config, labels: Sequence[str], data: Mapping[str, Any], devices: Sequence[Device]
) -> dict[str, Any]:
    """Writes and returns `summary.json` of a run that has reached its last step.

    `steps_per_second` is of the chunks that were timed without their compilation, which `train_seconds` counts apart.
    """
    timings, machine = run_dir.read_timings(), host()
    seconds = lambda kind: sum(row["seconds"] for row in timings if row["what"].startswith(kind))
    timed = [row for row in timings if row["what"] == "train"]
    summary = {
        **final_results(run_dir.read_metrics(), config.steps, config),
        "seeds": list(config.seeds),
        "steps": config.steps,
        "estimators": list(labels),
        "times": {
            "train_seconds": round(seconds("train"), 2),
            "compile_seconds": round(seconds("compile"), 2),
            "evaluation_seconds": round(seconds("evaluate"), 2),
            "steps_per_second": sum(row["steps"] for row in timed) / seconds("train") if timed else None,
        },
        "device": device(devices) | {"processor": f"{machine['processor']}, {machine['usable_cores']} cores"},
        "versions": versions(),
        "data": data,
        "command": sys.argv,
    }
    write_text(run_dir.summary_file, json.dumps(summary, indent=2) + "\n")
    return summary


def metric_lines(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Metrics, as `final_metrics` gives them, for people: one line each."""
    lines = []
    for name, metric in metrics.items():
        error = f" ± {metric['stderr']:.4g}" if metric["stderr"] is not None else ""
        lines.append(f"  {name:<34} {metric['mean']:.6g}{error}")
    return lines


def result_lines(results: Mapping[str, Any]) -> list[str]:
    """What `final_results` gives for people: one line for each metric, and of a grid the bounds of each point."""
    if "points" not in results:
        return metric_lines(results["metrics"])
    lines = []
    for point in results["points"]:
        diverged = f" (diverged: seeds {', '.join(map(str, point['diverged']))})" if point["diverged"] else ""
        lines.append(f" {point_text(point['fields'])}{diverged}")
        bounds = {name: metric for name, metric in point["metrics"].items() if name.endswith(("_elbo", "_bound"))}
        lines += metric_lines(bounds)
    return lines


def summary_text(summary: Mapping[str, Any]) -> str:
    """The summary as a few lines for people."""
    lines = [f"{summary['estimators'][0]}, {summary['steps']:,} steps, seeds {', '.join(map(str, summary['seeds']))}"]
    lines += result_lines(summary)
    times, rate = summary["times"], summary["times"]["steps_per_second"]
    speed = f" at {rate:,.0f} steps/s" if rate else ""
    rest = (
        f"{times.get('compile_seconds', 0):,.0f} s of compilation, {times['evaluation_seconds']:,.0f} s of evaluation"
    )
    lines.append(f"  {times['train_seconds']:,.0f} s of training{speed}, {rest}")
    return "\n".join(lines)
