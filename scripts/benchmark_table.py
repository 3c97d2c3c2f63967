"""The table of `scripts.benchmark`, and the project's aims beside what was measured."""

from typing import Any, NamedTuple


class Target(NamedTuple):
    """What was hoped for, and what came of it."""

    what: str
    measured: float | None
    limit: float
    at_most: bool = True

    def verdict(self) -> str:
        """In one word."""
        if self.measured is None:
            return "not measured"
        met = self.measured <= self.limit if self.at_most else self.measured >= self.limit
        return "met" if met else "not met"


def targets(results: dict[str, Any]) -> list[Target]:
    """The project's aims as ratios within one run."""
    steps = {(row["group"], row["name"]): row for row in results["steps"]}
    cores, start = results["cores"], results["start"]

    def ratio(group: str, name: str, other_group: str, other: str) -> float | None:
        if (group, name) not in steps or (other_group, other) not in steps:
            return None
        return steps[group, name]["seconds"] / steps[other_group, other]["seconds"]

    def of_sgemm(group: str) -> float:
        return steps[group, "disarm"]["of_sgemm_time"]

    bounds = [
        ratio(group, f"multisample_disarm, {k} pairs", group, f"vimco, {2 * k} samples")
        for group in ("multi-sample, linear", "multi-sample, nonlinear")
        for k in (1, 10)
    ]
    group = "multi-sample, linear"
    of_bound = ratio(group, "multisample_disarm_midpoint, 10 pairs", group, "multisample_disarm, 10 pairs")
    group = "20 × 10 classes, linear"
    of_classes = ratio(group, "disarm_iw_midpoint", group, "disarm_iw")
    over_disarm = results["over_linear_disarm"]
    siblings = [over_disarm[name] for name in ("arm", "reinforce_loo")]
    per_row = per_operation = None
    if deep := ratio("4 layers", "disarm", "2 layers", "disarm"):
        operations = [steps[f"{t} layers", "disarm"]["flops_by_hand"] for t in (4, 2)]
        per_row, per_operation = deep * 3 / 5, deep * operations[1] / operations[0]
    five_seeds = cores["5 seeds on one core"] / cores["1 seed on one core"]
    two_cores = None
    if shared := [seconds for name, seconds in cores.items() if "per core" in name]:
        two_cores = results["machine"]["cores"] * cores["1 seed on one core"] / min(shared)
    return [
        Target("linear DisARM step, times the sgemm time of its operations", of_sgemm("linear"), 2.5),
        Target("nonlinear DisARM step, times the sgemm time of its operations", of_sgemm("nonlinear"), 2.0),
        Target(f"throughput of {results['machine']['cores']} cores over that of one", two_cores, 1.8, False),
        Target("linear RELAX over DisARM", over_disarm["relax"], 2.0),
        Target("linear DisARM with slopes at midpoints over DisARM", over_disarm["disarm_midpoint"], 1.25),
        Target("the same for a bound of ten pairs", of_bound, 1.5),
        Target("the same for classes, DisARM-IW", of_classes, 1.3),
        Target("multi-sample DisARM over VIMCO, the largest", max(b for b in bounds if b), 1.1),
        Target("LOO and ARM over DisARM, the largest distance from 1", max(abs(s - 1) for s in siblings), 0.05),
        Target("T layers: time per T + 1 rows, 4 over 2 layers", per_row, 1.1),
        Target("T layers: time per operation by hand, 4 over 2 layers", per_operation, 1.1),
        Target("5 seeds in one program over one seed, one core", five_seeds, 5.2),
        Target("import of disarm_jax over that of jax", start["import disarm_jax"] / start["import jax"], 1.2),
        Target("seconds to the first step of a cached configuration", start["first step, cached"], 6.0),
        *(
            Target(f"PyTorch's step over ours, {group}", ratio, 2.2, False)
            for group, ratio in over_torch(results).items()
        ),
        Target("100-sample bound, share of the sgemm peak", results["evaluation"]["of_sgemm_peak"], 0.4, False),
    ]


def over_torch(results: dict[str, Any]) -> dict[str, float]:
    """The time of DisARM's step in the fastest version of PyTorch over ours, by model, where that was measured."""
    steps = results.get("torch", {}).get("steps", {})
    return {
        group: min(times[name] for name in times if name != "ours") / times["ours"] for group, times in steps.items()
    }


def rates_of_all_seeds(results: dict[str, Any]) -> dict[str, float]:
    """Steps per second, of all seeds together, by how they share the cores."""
    num_cores = results["machine"]["cores"]
    seeds = {name: num_cores if "per core" in name else int(name.split()[0]) for name in results["cores"]}
    return {name: seeds[name] / seconds for name, seconds in results["cores"].items()}


def as_markdown(results: dict[str, Any]) -> str:
    """The table for people."""
    machine = results["machine"]
    lines = [
        "# Benchmark",
        "",
        f"{machine['processor']}, {machine['cores']} cores; JAX {machine['jax']}, {machine['platform']}; "
        f"{results['rounds']} rounds, all cases in turn. Made by `{machine['command']}`.",
        "",
        f"sgemm 1024³ on one core: {results['sgemm_flops_per_second'] / 1e9:.0f} GFLOP/s "
        f"(± {100 * results['sgemm_spread']:.0f}%); memory: {results['copy_bytes_per_second'] / 1e9:.1f} GB/s. "
        f"Peak memory of the process with all these cases: {results['peak_memory_bytes'] / 1e6:.0f} MB.",
        "",
        "| target | measured | limit | |",
        "|---|---|---|---|",
    ]
    for target in targets(results):
        measured = "" if target.measured is None else f"{target.measured:.3g}"
        bound = f"{'≤' if target.at_most else '≥'} {target.limit:g}"
        lines.append(f"| {target.what} | {measured} | {bound} | {target.verdict()} |")
    lines += [
        "",
        "## Steps",
        "",
        "One core; batch 50, 200 bits per layer where nothing else is said. Operations by hand are those of products",
        "that a step cannot do without, blank where f is differentiated in b; XLA's count has element-wise work too.",
        "The last columns: the time over that of an sgemm with as many operations (by hand, or else XLA's), memory",
        "beside state and data, seconds to compile, and how often our time the fastest version of PyTorch takes.",
        "",
        "| model | estimator | ms/step | ± | steps/s | MFLOP by hand | by XLA | × sgemm | MB | compiled in | PyTorch |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["steps"]:
        ratio = over_torch(results).get(row["group"]) if row["name"] == "disarm" else None
        torch = f"{ratio:.2f} ×" if ratio else ""
        by_hand = f"{row['flops_by_hand'] / 1e6:.0f}" if row["flops_by_hand"] else ""
        lines.append(
            f"| {row['group']} | {row['name']} | {1e3 * row['seconds']:.2f} | {1e3 * row['spread']:.2f} "
            f"| {1 / row['seconds']:.0f} | {by_hand} | {row['flops_by_xla'] / 1e6:.0f} | {row['of_sgemm_time']:.2f} "
            f"| {row['temporary_bytes'] / 1e6:.1f} | {row['compile_seconds']:.1f} | {torch} |"
        )
    if "torch" in results:
        lines += [
            "",
            "## PyTorch",
            "",
            f"PyTorch {results['torch']['version']}. Milliseconds that a step of DisARM occupies a core; ",
        ]
        lines[-1] += "with several cores, a thread on each, its time is multiplied by their number."
        lines += ["", "| model | version | ms of a core |", "|---|---|---|"]
        for group, times in results["torch"]["steps"].items():
            lines += [f"| {group} | {name} | {1e3 * seconds:.2f} |" for name, seconds in times.items()]
    lines += [
        "",
        "## Cores",
        "",
        "| linear DisARM | ms for a step of all seeds | steps/s of all seeds |",
        "|---|---|---|",
    ]
    rates = rates_of_all_seeds(results)
    for name, seconds in results["cores"].items():
        lines.append(f"| {name} | {1e3 * seconds:.2f} | {rates[name]:.0f} |")
    evaluation = results["evaluation"]
    lines += [
        "",
        "## Evaluation and start",
        "",
        f"The {evaluation['samples']}-sample bound of {evaluation['images']:,} images: {evaluation['seconds']:.2f} s, "
        f"{100 * evaluation['of_sgemm_peak']:.0f}% of the sgemm peak.",
        "",
        "| | seconds |",
        "|---|---|",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in results["start"].items()),
        "",
    ]
    return "\n".join(lines)
