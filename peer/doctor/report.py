"""What `peer doctor` prints for people: a line or two per finding, 80 columns or as wide as the terminal is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from peer.console.plain_console import PlainConsole, console_of_output
from peer.doctor.doctor_facts import DoctorFacts
from peer.doctor.findings import Finding, Level, own_part

MARKS: Final[dict[Level, str]] = {"ok": "ok", "note": "!", "stop": "stop"}
STYLES: Final[dict[Level, str]] = {"ok": "green", "note": "yellow", "stop": "bold red"}

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
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
        table.add_column(no_wrap=True, min_width=4)
        table.add_column(no_wrap=True, min_width=SUBJECT_COLUMNS)
        table.add_column(overflow="fold")
        for finding in findings:
            if finding in self._shown:
                continue
            self._shown.add(finding)
            table.add_row(Text(MARKS[finding.level], style=STYLES[finding.level]), finding.subject, Text(finding.what))
            if finding.remedy:
                table.add_row("", "", Padding(Text(f"-> {finding.remedy}", style="bold"), (0, 0, 0, 2), expand=False))
        if table.row_count:
            self._console.print(table)

    def end(self, findings: Sequence[Finding], facts: DoctorFacts, code: int) -> None:
        """Print the rest and the verdict."""
        self.show(findings)
        self._console.print()
        # A command of the run's owner may be longer than a line, and is copied whole.
        is_to_copy = facts.run is not None and bool(facts.run.own_code_hint)
        self._console.print(Text(_verdict(findings, facts, code), style="bold"), soft_wrap=is_to_copy)


def _verdict(findings: Sequence[Finding], facts: DoctorFacts, code: int) -> str:
    if code:
        obstacles = [finding.subject for finding in findings if finding.level == "stop"]
        return f"Joining makes no sense yet: {', '.join(obstacles)}. (exit code {code})"
    if facts.run is None:
        return "Nothing here stands in the way. Name a run to see the rest: peer doctor RUN"
    if facts.run.own_code_hint:
        return f"`peer join` cannot join this run; the code of its owner can: {facts.run.own_code_hint}"
    faults = {"--data": facts.run.data_fault, "--base": facts.run.weights_fault}
    to_give = " and ".join(flag for flag, fault in faults.items() if fault)
    share = facts.share_of_rounds
    rounds = "" if share is None else f": this peer would make about {100 * share:.0f} % of the rounds"
    if rounds and facts.pace is not None:
        rounds += own_part(facts.pace)
    return f"Joining makes sense{to_give and f' with {to_give}'}{rounds}."
