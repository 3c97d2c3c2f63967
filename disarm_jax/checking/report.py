"""The result of `check`: findings in words, and the measured estimators."""

import dataclasses
import textwrap

LEVELS = ("ok", "note", "problem")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
      topic: what was checked, in one word.
      level: "ok", "note" (nothing is wrong, but you should know it) or "problem" (a run would fail or mislead).
      text: what was found, what follows from it, and what to do.
    """

    topic: str
    level: str
    text: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """An estimator of the comparison; all numbers are relative to the given estimator.

    Attributes:
      name: the registered name, or "est" for the given estimator.
      variance: the variance of `grad`, summed over all axes.
      time: the time of one compiled call of `apply`.
      product: variance times time. Averaging more draws of an estimator does not change it.
      trainable: whether it has tunables, here at their initial values.
    """

    name: str
    variance: float
    time: float
    product: float
    trainable: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `check`, which `print` shows in words.

    Attributes:
      findings: the findings, in the order in which they were made.
      comparison: the measured estimators, that with the least variance × time first; empty if none were measured.
    """

    findings: tuple[Finding, ...]
    comparison: tuple[Measured, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem; notes are allowed."""
        return all(finding.level != "problem" for finding in self.findings)

    def level(self, topic: str) -> str | None:
        """Returns the worst level among the findings on a topic; None if there are none."""
        found = [LEVELS.index(finding.level) for finding in self.findings if finding.topic == topic]
        return LEVELS[max(found)] if found else None

    def text(self, topic: str) -> str:
        """Returns the texts of the findings on a topic."""
        return " ".join(finding.text for finding in self.findings if finding.topic == topic)

    def __str__(self) -> str:
        """Formats the findings, one paragraph each, and the table."""
        numbers = {level: sum(f.level == level for f in self.findings) for level in ("problem", "note")}
        numbers["finding"] = len(self.findings)
        counts = (f"{number} {word}{'' if number == 1 else 's'}" for word, number in numbers.items())
        lines = [f"dj.check: {', '.join(counts)}"]
        for finding in self.findings:
            head = f"  {finding.level:8} {finding.topic:10} "
            lines.append(textwrap.fill(head + finding.text, 110, subsequent_indent=" " * len(head)))
        if self.comparison:
            lines.append(f"  {'':8} {'':10} {'':30} variance     time  variance × time")
        for row in self.comparison:
            name = row.name + ("*" if row.trainable else "")
            lines.append(f"  {'':8} {'':10} {name:30} {row.variance:8.3g} {row.time:8.2f} {row.product:16.3g}")
        if any(row.trainable for row in self.comparison):
            lines.append(f"  {'':8} {'':10} * has tunables, which were not trained; training them lowers the variance.")
        return "\n".join(lines)
