"""The numbers that a run ends with."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from disarm_jax.experiment import provenance
from disarm_jax.experiment.run import Prepared
from disarm_jax.experiment.rundir import RunDir, read_rows, write_text
from disarm_jax.experiment.seeds import SeedAxis


def final_metrics(rows: Sequence[Mapping[str, Any]], step: int, seeds: Sequence[int]) -> dict[str, dict[str, Any]]:
    """The metrics at a step: value of each seed, their mean, and its standard error (None for a single seed).

    >>> rows = [{"step": 5, "seed": 0, "elbo": -1.0}, {"step": 5, "seed": 1, "elbo": -3.0}]
    >>> final_metrics(rows, 5, [0, 1])
    {'elbo': {'mean': -2.0, 'stderr': 1.0, 'seeds': [-1.0, -3.0]}}
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["step"] == step:
            for name in set(row) - {"step", "seed"}:
                found.setdefault(name, {})[row["seed"]] = row[name]
    final = {}
    for name in sorted(found):
        values = [found[name][seed] for seed in seeds]
        stderr = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        final[name] = {"mean": float(np.mean(values)), "stderr": stderr, "seeds": values}
    return final


def write_summary(run_dir: RunDir, prepared: Prepared, axis: SeedAxis) -> dict[str, Any]:
    """Writes and returns `summary.json` of a run that has reached its last step."""
    config, timings = prepared.config, read_rows(run_dir.timings_file)
    rates = [row["steps_per_second"] for row in timings if row["what"] == "train"]
    evaluation = sum(row["seconds"] for row in timings if row["what"].startswith("evaluate"))
    training = sum(row["seconds"] for row in timings if not row["what"].startswith("evaluate"))
    host = provenance.host()
    summary = {
        "metrics": final_metrics(run_dir.read_metrics(), config["steps"], config["seeds"]),
        "seeds": config["seeds"],
        "steps": config["steps"],
        "estimators": list(prepared.experiment.labels),
        "times": {
            "train_seconds": round(training, 2),
            "evaluation_seconds": round(evaluation, 2),
            "steps_per_second": float(np.median(rates)) if rates else None,
        },
        "device": provenance.device(axis.devices) | {"processor": f"{host['processor']}, {host['usable_cores']} cores"},
        "versions": provenance.versions(),
        "data": prepared.dataset.provenance._asdict(),
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


def summary_text(summary: Mapping[str, Any]) -> str:
    """The summary as a few lines for people."""
    lines = [f"{summary['estimators'][0]}, {summary['steps']:,} steps, seeds {', '.join(map(str, summary['seeds']))}"]
    lines += metric_lines(summary["metrics"])
    times, rate = summary["times"], summary["times"]["steps_per_second"]
    speed = f", {rate:,.0f} steps/s" if rate else ""
    lines.append(
        f"  {times['train_seconds']:,.0f} s of training{speed}, {times['evaluation_seconds']:,.0f} s of evaluation"
    )
    return "\n".join(lines)
