"""Copies what a report needs of finished runs to a folder that can be committed or sent to others.

    python -m scripts.collect --runs runs/reproduction --out results/paper/cells
    python -m scripts.report --runs results/paper/cells --out results/paper

Every finished run directory below `--runs` is copied under its own name: config.json, run.json, metrics.jsonl and
summary.json, without checkpoints, pictures and events. Folders of this machine are taken out of the paths in these
files, so that a path ends up as its last part. A run that was collected before is replaced if it has been made anew.
"""

import json
import pathlib
import re
import sys
from collections.abc import Mapping
from typing import Any

from absl import flags

from disarm_jax.command_line import flags_only, run_script
from disarm_jax.files import expand_user, write_text
from disarm_jax.report.runs import Run, read_runs
from disarm_jax.run_directory.directory import RunDir
from disarm_jax.untrusted import MAX_ROWS, BadFileError, read_bytes, read_json

# Folders that an absolute path begins with, wherever it stands in a text: "--workdir=/home/me/runs/1" keeps "1".
_FOLDERS = re.compile(r"(?<![\w.~/])[~/](?:[^/\s'\"]*/)+")


def define_flags(values: flags.FlagValues) -> None:
    """The command line. Not at import, so that scripts with flags of the same names can be imported together."""
    flags.DEFINE_multi_string("runs", ["runs"], "A folder with run directories; repeatable.", flag_values=values)
    flags.DEFINE_string("out", "results/paper/cells", "The folder to copy them to.", flag_values=values)


def without_folders(value: Any) -> Any:
    """A JSON value in which no text has an absolute path.

    >>> without_folders({"command": ["/usr/bin/python", "--workdir=/home/me/runs/1"], "steps": 5})
    {'command': ['python', '--workdir=1'], 'steps': 5}
    """
    if isinstance(value, dict):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return _FOLDERS.sub("", value) if isinstance(value, str) else value


def collect(run: Run, contents: Mapping[str, str], out: pathlib.Path) -> None:
    """Writes the small files of one finished run into `out`, the file that says it is finished last."""
    target = RunDir(out / run.path.name)
    target.path.mkdir(parents=True, exist_ok=True)
    target.done_file.unlink(missing_ok=True)
    for name, content in contents.items():
        write_text(target.path / name, content)
    write_text(target.done_file, f"{run.config['steps']}\n")


def read_contents(run: Run) -> dict[str, str]:
    """What is copied of a run, by name of the file; of a run directory that may be anybody's.

    Raises:
      OSError: for a file that cannot be read or is damaged, which it names.
    """
    source, contents = RunDir(run.path), {}
    for file in (source.config_file, source.record_file, source.summary_file, source.metrics_file):
        try:
            if file == source.metrics_file:
                contents[file.name] = read_bytes(file, MAX_ROWS).decode()
            elif file.exists() or file.is_symlink():
                contents[file.name] = json.dumps(without_folders(read_json(file)), indent=2) + "\n"
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadFileError(f"{file} cannot be copied: {reason}") from error
    return contents


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS) -> None:
    """Copies all finished runs."""
    flags_only(argv)
    try:
        missing = [folder for folder in values.runs if not expand_user(folder).is_dir()]
        out = expand_user(values.out)
    except FileNotFoundError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}")
    if missing:
        sys.exit(f"error: --runs: no such folder: {', '.join(missing)}")
    runs, problems = read_runs(values.runs)
    for problem in problems:
        print(f"skipped: {problem}", file=sys.stderr)
    finished = list({run.path: run for run in runs if run.finished}.values())
    names = [run.path.name for run in finished]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        sys.exit(f"error: several run directories are called {', '.join(twice)}; collect them into different folders")
    collected = 0
    for run in finished:
        try:
            contents = read_contents(run)
        except BadFileError as error:
            print(f"skipped: {error}", file=sys.stderr)
            continue
        try:
            collect(run, contents, out)
        except OSError as error:
            sys.exit(f"error: cannot write to --out={out}: {error.strerror or error}")
        collected += 1
    print(f"{collected} finished runs of {len({run.path for run in runs})} are in {out}")


if __name__ == "__main__":
    run_script(main, define_flags)
