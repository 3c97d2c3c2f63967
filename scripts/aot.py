"""Compiles the training programs of the paper's configs for accelerators that this machine need not have.

    pip install "jax[tpu]"                       # brings libtpu, the compiler; no TPU is needed
    python -m scripts.aot --out results/aot
    python -m scripts.aot --only elbo_linear --only layers:2 --seeds 1

For a TPU, a chunk of steps of all seeds on one device is compiled to the end (`--topology`, by default a v5e); for
CUDA it is lowered by `jax.export`, which is as far as JAX gets without a GPU. The table has, for each config: the
operations of one step after XLA's fusion, of which each is a kernel or a copy; how many of them work on next to no
numbers; memory and floating-point operations as the compiler counts them; how long it took; and the calls that leave
the device's own code. Calls back to Python would stop the device at every step: there must be none, or this ends with
an error. Writes `aot.json` and `README.md` to `--out`, after every config.
"""

import functools
import json
import os
import pathlib
import re
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from disarm_jax.command_line import flags_only, get_config, run_script
from disarm_jax.experiment.build import make_model
from disarm_jax.experiment.config import resolve
from disarm_jax.experiment.devices import for_each
from disarm_jax.experiment.load import make_experiment
from disarm_jax.files import write_text

CONFIGS = (
    "elbo_linear",
    "elbo_nonlinear",
    "layers:2",
    "layers:3",
    "layers:4",
    "multisample:disarm,1",
    "multisample:disarm,10",
    "multisample:vimco,2",
    "multisample:vimco,20",
    "elbo_variance",
    "multisample_variance",
    "static_mnist",
    "categorical",
)
PIXELS, IMAGES = 784, 50_000
SMALL = 4096  # numbers up to which an operation costs its launch and nothing else
# Instructions of XLA that move no numbers.
FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "iota")
FREE += ("copy-done", "slice-done", "async-done")  # the ends of what began as an operation of its own


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_multi_string("only", CONFIGS, "A config, such as elbo_linear or layers:3; repeatable.", **options)
    flags.DEFINE_string("topology", "v5e:2x2", "The TPU; empty to leave it out.", **options)
    flags.DEFINE_integer("seeds", 5, "Seeds on the device.", lower_bound=1, **options)
    flags.DEFINE_string("out", "runs/aot", "Folder for the table.", **options)


def program_of(name: str, num_seeds: int) -> tuple[Any, tuple[Any, Any]]:
    """The chunk of a config as an accelerator runs it, and the shapes of its arguments."""
    config = get_config(name)
    config.seeds = tuple(range(num_seeds))
    config = resolve(config)
    experiment = make_experiment(config, make_model(config.model, PIXELS, np.full(PIXELS, 0.1)))
    chunk = functools.partial(experiment.run_chunk, num_steps=config.log_every)

    def all_seeds(state: Any, images: jax.Array) -> Any:
        with jax.default_matmul_precision(config.matmul_precision):
            return for_each("tpu")(lambda one: chunk(one, images))(state)

    state = jax.eval_shape(jax.vmap(experiment.init), np.asarray(config.seeds, np.uint32))
    return all_seeds, (state, jax.ShapeDtypeStruct((IMAGES, PIXELS), jnp.uint8))


def compiled_for_tpu(program: Any, shapes: Any, topology: str) -> dict[str, Any]:
    """What XLA's compiler for TPUs makes of a program."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no machine to ask
    found = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    place = NamedSharding(Mesh(np.array(found.devices[:1]), ("x",)), PartitionSpec())
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)
    lowered = jax.jit(program, donate_argnums=0).lower(*placed)
    begin = time.monotonic()
    compiled = lowered.compile()
    seconds = time.monotonic() - begin
    text, memory, cost = compiled.as_text(), compiled.memory_analysis(), compiled.cost_analysis()
    return {
        "compile_seconds": round(seconds, 1),
        **count_operations(text),
        "memory_mb": round((memory.temp_size_in_bytes + memory.argument_size_in_bytes) / 1e6, 1),
        "temporary_mb": round(memory.temp_size_in_bytes / 1e6, 1),
        "mflops": round(cost["flops"] / 1e6, 1) if "flops" in cost else None,
        "custom_calls": custom_calls(text),
    }


def count_operations(text: str) -> dict[str, Any]:
    """The operations of the largest loop body of a compiled program, and how many of them are small, by kind."""
    bodies = set(re.findall(r"\bbody=%?([\w.\-]+)", text))
    found = {}
    for name, lines in computations(text).items():
        if name in bodies:
            operations = [operation for line in lines if (operation := parsed(line)) and operation[0] not in FREE]
            found[name] = operations
    step = max(found.values(), key=len, default=[])
    kinds: dict[str, int] = {}
    for kind, _ in step:
        kinds[kind] = kinds.get(kind, 0) + 1
    return {
        "operations": len(step),
        "small_operations": sum(size <= SMALL for _, size in step),
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
        "inner_loops": kinds.get("while", 0),
    }


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation of a program in XLA's text format."""
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if heading := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = heading[1]
            found[name] = []
        elif line.startswith("}"):
            name = None
        elif name is not None:
            found[name].append(line)
    return found


def parsed(line: str) -> tuple[str, int] | None:
    """The kind of an instruction and the size of its largest result.

    >>> parsed("  %add.1 = f32[5,200]{1,0} add(%a, %b)")
    ('add', 1000)
    """
    match = re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][\w\-]*)\(", line)
    if not match:
        return None
    shapes = re.findall(r"\w+\[([\d,]*)\]", match[1])
    return match[2], max((int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes), default=0)


def custom_calls(text: str) -> dict[str, int]:
    """The calls of a program into code that XLA did not make, by target."""
    targets = re.findall(r'custom_call_target="([^"]+)"|stablehlo.custom_call @([\w.$]+)', text)
    counted: dict[str, int] = {}
    for target in ("".join(each) for each in targets):
        counted[target] = counted.get(target, 0) + 1
    return counted


def lowered_for_cuda(program: Any, shapes: Any) -> dict[str, Any]:
    """What JAX hands to XLA's compiler for GPUs."""
    begin = time.monotonic()
    exported = export.export(jax.jit(program), platforms=["cuda"])(*shapes)
    text = exported.mlir_module()
    operations = len(re.findall(r"^\s+%\S+ = ", text, re.MULTILINE))
    return {
        "lower_seconds": round(time.monotonic() - begin, 1),
        "stablehlo_operations": operations,
        "custom_calls": custom_calls(text),
    }


def callbacks(calls: dict[str, int]) -> list[str]:
    """The calls that go back to Python."""
    return [target for target in calls if "callback" in target or "python" in target]


def as_markdown(rows: dict[str, Any], topology: str, num_seeds: int) -> str:
    """The table."""
    lines = [
        "# The training programs on accelerators",
        "",
        f"Compiled by `python -m scripts.aot` for a TPU {topology}, lowered for CUDA, on a machine that has neither:",
        f"JAX {jax.__version__}, a chunk of 1,000 steps of {num_seeds} seeds on one device. No time was measured.",
        "Operations are those of one step after fusion; small ones work on at most "
        f"{SMALL:,} numbers and cost their launch.",
        "MFLOP are counted by the compiler, which counts the loop's body once, and what is measured after it.",
        "",
        "| config | operations | small | inner loops | memory, MB | of it temporary | MFLOP | compiled in, s | calls "
        "| CUDA: operations before fusion | calls |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    listed = lambda calls: ", ".join(f"{count} × {name}" for name, count in calls.items()) or "none"
    for name, row in rows.items():
        tpu, cuda = row.get("tpu"), row["cuda"]
        cells = ["–"] * 8
        if tpu:
            fields = ("operations", "small_operations", "inner_loops", "memory_mb", "temporary_mb")
            fields += ("mflops", "compile_seconds")
            cells = [f"{tpu[field]}" for field in fields] + [listed(tpu["custom_calls"])]
        cells += [f"{cuda['stablehlo_operations']}", listed(cuda["custom_calls"])]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Compiles all of them, one after the other."""
    flags_only(argv)
    out = pathlib.Path(values.out)
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    for name in values.only:
        program, shapes = program_of(name, values.seeds)
        row = {"cuda": lowered_for_cuda(program, shapes)}
        if values.topology:
            row["tpu"] = compiled_for_tpu(program, shapes, values.topology)
        rows[name] = row
        print(f"{name}: {json.dumps(row)}", file=sys.stderr, flush=True)
        if found := [target for part in row.values() for target in callbacks(part["custom_calls"])]:
            sys.exit(f"error: {name} calls back to Python: {', '.join(found)}")
        write_text(out / "aot.json", json.dumps(rows, indent=1) + "\n")
        write_text(out / "README.md", as_markdown(rows, values.topology, values.seeds))
    print(f"in {out}: README.md, aot.json")


if __name__ == "__main__":
    run_script(main, define_flags)
