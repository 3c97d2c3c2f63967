"""Shows the power of the tests: puts small faults into the estimator library, one at a time, and runs tests on each.

    python -m scripts.mutants                              # all, one after the other
    python -m scripts.mutants --only=chains.py --jobs=2    # those whose file or description matches a pattern
    python -m scripts.mutants --out=mutants.md             # also writes the table as Markdown

The faults, called mutants, are in mutants.toml: a piece of the source, its replacement, and the tests that must notice.
Each mutant is put into a copy of the package and runs there with its tests. A mutant is killed if a test fails. Before
that, the same tests run on a copy without a mutant, where all of them must pass.

Exit status: 0 if all mutants are killed; 1 if one survives, or if its tests could not run; an error if mutants.toml
does not fit the source any more.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.progress import ProgressBar

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPIED = ("disarm_jax", "tests", "pyproject.toml")
PASSED, FAILED = 0, 1  # exit statuses of pytest; others are errors, such as that no test was selected


class Mutant(NamedTuple):
    """A fault.

    Attributes:
      file: relative to disarm_jax.
      what: a short description.
      tests: a file, relative to tests, and the expression that selects the tests of it which must notice.
      piece: occurs in the file exactly once.
      replacement: what stands there instead.
    """

    file: str
    what: str
    tests: tuple[str, str]
    piece: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

    def apply(self, source: str) -> str:
        """Returns the source with the fault. Raises ValueError if the piece does not occur in it exactly once."""
        if (count := source.count(self.piece)) != 1:
            raise ValueError(f"{self}: the piece must occur exactly once, found {count} times: {self.piece!r}")
        return source.replace(self.piece, self.replacement)

    def mutate(self, root: pathlib.Path) -> None:
        """Puts the fault into the package below a folder. Raises ValueError as `apply` does."""
        path = root / "disarm_jax" / self.file
        path.write_text(self.apply(path.read_text()))


class Result(NamedTuple):
    """What the tests say of a mutant.

    Attributes:
      status: "killed", "SURVIVED", or "ERROR" if the tests could not run.
      detail: the first test that fails and its message, or the end of what pytest has printed.
      seconds: how long it took.
    """

    status: str
    detail: str
    seconds: float


def load_mutants() -> list[Mutant]:
    """Reads mutants.toml."""
    tables = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text())
    return [
        Mutant(file, entry["what"], tuple(entry["tests"]), entry["piece"], entry["replacement"])
        for file, entries in tables.items()
        for entry in entries
    ]


def run_tests(mutant: Mutant | None, tests: tuple[str, str], timeout: float) -> Result:
    """Runs tests in a fresh copy of the package, with a mutant or without one, up to the first failure."""
    begin = time.monotonic()
    file, expression = tests
    with tempfile.TemporaryDirectory(prefix="mutant_") as folder:
        root = pathlib.Path(folder)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, root / name)
        if mutant is not None:
            mutant.mutate(root)
        command = [sys.executable, "-m", "pytest", f"tests/{file}", "-k", expression, "-x", "-q", "-rfE", "--tb=no"]
        command += ["-n", "0", "-p", "no:cacheprovider"]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
        try:
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return Result("ERROR", f"more than {timeout:g} s", time.monotonic() - begin)
    return _read(done, time.monotonic() - begin)


def _read(done: subprocess.CompletedProcess, seconds: float) -> Result:
    """Finds the first test that fails. A module that cannot be imported is an error: no test has noticed anything."""
    failure = re.search(r"^FAILED (.+)$", done.stdout, re.MULTILINE)
    if done.returncode == FAILED and failure:
        return Result("killed", failure[1], seconds)
    if done.returncode == PASSED:
        return Result("SURVIVED", done.stdout.strip().splitlines()[-1], seconds)
    return Result("ERROR", " ".join((done.stdout + done.stderr).split())[-200:], seconds)


def selections(mutants: Iterable[Mutant]) -> list[tuple[str, str]]:
    """Returns for each file of tests one expression that selects what any of the mutants selects."""
    expressions: dict[str, list[str]] = {}
    for mutant in mutants:
        file, expression = mutant.tests
        if f"({expression})" not in expressions.setdefault(file, []):
            expressions[file].append(f"({expression})")
    return [(file, " or ".join(found)) for file, found in expressions.items()]


def markdown(mutants: Sequence[Mutant], results: Sequence[Result]) -> str:
    """Returns the table and a summary."""
    killed = sum(result.status == "killed" for result in results)
    lines = [f"{killed} of {len(mutants)} mutants killed.", ""]
    lines += ["| file | mutant | status | first failure | seconds |", "|---|---|---|---|---:|"]
    for mutant, result in zip(mutants, results, strict=True):
        detail = result.detail.replace("|", "\\|")
        lines.append(f"| {mutant.file} | {mutant.what} | {result.status} | `{detail[:140]}` | {result.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def counting(results: Iterable[Result], total: int, what: str) -> Iterator[tuple[Result, ProgressBar]]:
    """Yields results as they come, with the progress bar that counts them."""
    progress = ProgressBar(total)
    progress.describe(what)
    for number, result in enumerate(results, 1):
        yield result, progress
        progress.update(number)
    progress.close()


def run_all(mutants: Sequence[Mutant], jobs: int, timeout: float) -> list[Result]:
    """Runs the tests without mutants and then every mutant. Raises RuntimeError if tests fail without a mutant."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        chosen = selections(mutants)
        without = pool.map(lambda tests: run_tests(None, tests, 10 * timeout), chosen)
        counted = counting(without, len(chosen), "without mutants")
        failed = [
            f"tests/{file}: {result.detail}"
            for (file, _), (result, _) in zip(chosen, counted, strict=True)
            if result.status != "SURVIVED"
        ]
        if failed:
            raise RuntimeError("\n".join(["tests must pass without a mutant", *failed]))
        results = pool.map(lambda mutant: run_tests(mutant, mutant.tests, timeout), mutants)
        found = []
        for mutant, (result, progress) in zip(mutants, counting(results, len(mutants), "mutants"), strict=True):
            progress.say(f"{result.status:8} {result.seconds:4.0f} s  {mutant}\n{'':18}{result.detail[:140]}")
            found.append(result)
    return found


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    options = {"flag_values": values}
    flags.DEFINE_string("only", "", "A regular expression: takes mutants whose file or description matches.", **options)
    flags.DEFINE_integer("jobs", 1, "How many mutants run at the same time.", lower_bound=1, **options)
    flags.DEFINE_float("timeout", 300.0, "Seconds that a mutant may take.", lower_bound=1, **options)
    flags.DEFINE_string("out", None, "File for the table as Markdown.", **options)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Runs the mutants that the flags choose, prints what kills them, and exits with status 1 if one survives."""
    flags_only(argv)
    every = load_mutants()
    try:
        mutants = [mutant for mutant in every if re.search(values.only, str(mutant))]
    except re.error as error:
        sys.exit(f"error: --only={values.only!r} must be a regular expression: {error}")
    if not mutants:
        sys.exit(f"error: no mutant matches --only={values.only!r}")
    try:
        for mutant in every:
            mutant.apply((ROOT / "disarm_jax" / mutant.file).read_text())
        results = run_all(mutants, values.jobs, values.timeout)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    table = markdown(mutants, results)
    if values.out:
        pathlib.Path(values.out).write_text(table)
    print(table.splitlines()[0])
    sys.exit(any(result.status != "killed" for result in results))


if __name__ == "__main__":
    run_script(main, define_flags)
