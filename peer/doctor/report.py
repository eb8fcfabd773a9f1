"""What `peer doctor` prints for people: a line or two per finding, 80 columns or as wide as the terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from peer.console.plain_console import PlainConsole, console_of_output
from peer.console.word_wrap import wrapped
from peer.doctor.doctor_facts import DoctorFacts, ReportedRun
from peer.doctor.findings import Finding, Level

MARKS: Final[dict[Level, str]] = {"ok": "ok", "note": "!", "stop": "stop"}
STYLES: Final[dict[Level, str]] = {"ok": "green", "note": "yellow", "stop": "bold red"}

MARK_COLUMNS: Final = 4
HERE: Final = "this machine"
SUBJECT_COLUMNS: Final = 10
"""As the longest subject, so that rows which come later stand below the first ones."""


class Report:
    """Findings in the order in which they come, each once, and at the end the verdict.

    Args:
        about: the run, or this machine.
    """

    def __init__(self, about: str, console: PlainConsole | None = None) -> None:
        self._console = console or console_of_output()
        self._shown: set[Finding] = set()
        self._console.print(Text.assemble(("peer doctor", "bold"), "  ", about), highlight=False)
        self._console.print()

    def show(self, findings: Sequence[Finding]) -> None:
        """Print those that are new, or other than they were."""
        for finding in findings:
            if finding in self._shown:
                continue
            self._shown.add(finding)
            mark = MARKS[finding.level]
            head = f"{mark:<{MARK_COLUMNS}}  {finding.subject:<{SUBJECT_COLUMNS}}  "
            first, *rest = self._lines(finding.what, head, " " * len(head))
            self._print(Text.assemble((mark, STYLES[finding.level]), first[len(mark) :]))
            for line in rest:
                self._print(Text(line))
            for line in self._lines(finding.remedy, "  -> ", "     ") if finding.remedy else ():
                self._print(Text(line, style="bold"))

    def end(self, findings: Sequence[Finding], facts: DoctorFacts, code: int, then: str = "") -> None:
        """Print the rest and the verdict; `then`: the command that joins, shown where that makes sense."""
        self.show(findings)
        self._console.print()
        for line in self._lines(_verdict(findings, facts, code)):
            self._print(Text(line, style="bold"))
        if then and not code and facts.run is not None and not _to_give(facts.run) and not facts.run.own_code_hint:
            self._print(Text(f"Start it with: {then}"))

    def _print(self, line: Text) -> None:
        """Without a break where it is wider than the terminal, so that it is copied whole."""
        self._console.print(line, soft_wrap=True)

    def _lines(self, text: str, first: str = "", rest: str = "") -> list[str]:
        """The text in lines as wide as the console; what is longer, a word or a command in `...`, has its own line."""
        return wrapped(text, self._console.width, first, rest)


def _verdict(findings: Sequence[Finding], facts: DoctorFacts, code: int) -> str:
    if code:
        obstacles = [finding.subject for finding in findings if finding.level == "stop"]
        return f"Joining makes no sense yet: {', '.join(obstacles)}. (exit code {code})"
    if facts.run is None:
        return "Nothing here stands in the way. Name a run to see the rest: peer doctor RUN"
    if facts.run.own_code_hint:
        return f"`peer join` cannot join this run; the code of its owner can: {facts.run.own_code_hint}"
    to_give = _to_give(facts.run)
    return f"Joining makes sense{to_give and f' with {to_give}'}."


def _to_give(run: ReportedRun) -> str:
    """Flags that `peer join` needs besides; empty: none."""
    faults = {"--data": run.data_fault, "--base": run.weights_fault}
    return " and ".join(flag for flag, fault in faults.items() if fault)
