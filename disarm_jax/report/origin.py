"""Where a run comes from: run.json, which has an entry for each start and resume, and the results of `--mode eval`.

Runs older than run.json have no entries. Whatever is missing or damaged is left out: a report never fails for it.
"""

import contextlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from disarm_jax.report.palette import count
from disarm_jax.untrusted import read_json


class Code(NamedTuple):
    """The code that made a run, as far as it is known.

    Attributes:
      commit: 40 hex digits, None if it is not known.
      dirty: whether files differed from the commit, None if that is not known.
      versions: of jax and jaxlib; of this package too if the commit is not known.
    """

    commit: str | None
    dirty: bool | None
    versions: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        """The commit, shortened.

        >>> str(Code("0123456789" * 4, True, ())), str(Code(None, None, ()))
        ('0123456 + changes', 'unknown commit')
        """
        return (self.commit[:7] if self.commit else "unknown commit") + (" + changes" if self.dirty else "")


class Entry(NamedTuple):
    """A start or resume of a run.

    Attributes:
      started: date and time.
      step: at which it began.
      command: that started it.
      code: that it ran.
      precision: of products of matrices.
      device: in words.
      data_sums: the sha256 of the images by split.
    """

    started: str
    step: int
    command: tuple[str, ...]
    code: Code
    precision: str
    device: str
    data_sums: dict[str, str]


class Evaluation(NamedTuple):
    """What `--mode eval` has written: metrics at a step, each a mean over seeds, its standard error, and their number.

    The standard error of a single seed is None.
    """

    step: int
    metrics: dict[str, tuple[float, float | None, int]]


def read_entries(file: pathlib.Path) -> tuple[Entry, ...]:
    """The entries of a run.json in their order; none if there is no such file or it is damaged."""
    found = _section(_read(file)).get("entries")
    return tuple(_entry(entry) for entry in found if isinstance(entry, Mapping)) if isinstance(found, list) else ()


def _read(file: pathlib.Path) -> Any:
    with contextlib.suppress(OSError, ValueError):
        return read_json(file)
    return None


def _entry(entry: Mapping[str, Any]) -> Entry:
    data = _section(entry.get("data"))
    command = entry.get("command")
    return Entry(
        started=_text(entry.get("started")),
        step=entry["step"] if isinstance(entry.get("step"), int) else 0,
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        code=code_of(_section(entry.get("code")), _section(entry.get("versions"))),
        precision=_text(entry.get("matmul_precision")),
        device=_device(_section(entry.get("device")), _section(entry.get("host"))),
        data_sums={str(split): str(value) for split, value in _section(data.get("sha256")).items()},
    )


def code_of(code: Mapping[str, Any], versions: Mapping[str, Any]) -> Code:
    """From the sections of run.json; summary.json has the versions alone."""
    commit, dirty = _text(code.get("commit")) or None, code.get("dirty")
    versions = dict(versions) | ({"disarm_jax": code["version"]} if "version" in code else {})
    names = ("jax", "jaxlib") if commit else ("disarm_jax", "jax", "jaxlib")
    known = tuple((name, str(versions[name])) for name in names if name in versions)
    return Code(commit, dirty if isinstance(dirty, bool) else None, known)


def _device(device: Mapping[str, Any], host: Mapping[str, Any]) -> str:
    if not device:
        return ""
    parts = [f"{device.get('count', 1)} × {device.get('kind', 'unknown')}", _text(host.get("processor"))]
    parts += [count(host["usable_cores"], "core")] if isinstance(host.get("usable_cores"), int) else []
    return ", ".join(filter(None, parts))


def _section(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def read_evaluations(folder: pathlib.Path, point: int | None = None) -> tuple[Evaluation, ...]:
    """What `--mode eval` has left in a run directory, of one point of a grid; files that are damaged left out."""
    found = []
    for file in sorted(folder.glob("evaluation_*_samples.json")):
        with contextlib.suppress(IndexError, KeyError, TypeError, ValueError):
            results = _read(file)
            found_here = results if point is None else results["points"][point]
            metrics = {
                name: (float(metric["mean"]), _number(metric["stderr"]), len(metric["seeds"]))
                for name, metric in found_here["metrics"].items()
            }
            found.append(Evaluation(int(results["step"]), metrics))
    return tuple(found)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def differing_codes(codes: Iterable[Code]) -> tuple[Code, ...]:
    """The different codes among those of several runs; nothing if all runs were made by the same.

    Code with changes that no commit has may be another each time, so it is never the same as that of another run.
    Versions that are not known are taken to be the same.
    """
    codes = list(codes)
    same = lambda one, other: (
        one.commit == other.commit and (one.versions == other.versions or not one.versions or not other.versions)
    )
    if all(same(one, other) and not one.dirty for one in codes for other in codes if one is not other):
        return ()
    return tuple(dict.fromkeys(codes))


def listed_codes(codes: Iterable[Code]) -> str:
    """Commits in words, with the versions of JAX where these differ.

    >>> one, two = Code("a" * 40, False, (("jax", "1"),)), Code("a" * 40, False, (("jax", "2"),))
    >>> listed_codes([one, two])
    'aaaaaaa (jax 1), aaaaaaa (jax 2)'
    """
    codes = list(codes)
    other_versions = len({code.versions for code in codes if code.versions}) > 1
    versions = [" ".join(f"{name} {version}" for name, version in code.versions) for code in codes]
    shown = [f"{code} ({version or 'unknown JAX'})" for code, version in zip(codes, versions, strict=True)]
    return ", ".join(dict.fromkeys(shown if other_versions else map(str, codes)))
