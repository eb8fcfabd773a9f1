"""The output of `peer doctor` for people: a line or two per finding, as wide as the terminal, otherwise 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from peer.console.plain_console import PlainConsole, console_of_output
from peer.console.word_wrap import wrapped
from peer.doctor.doctor_facts import DoctorFacts, ReportedRun
from peer.doctor.findings import Finding, Level, diagnose, exit_code_of

MARKS: Final[dict[Level, str]] = {"ok": "ok", "note": "!", "stop": "stop"}
STYLES: Final[dict[Level, str]] = {"ok": "green", "note": "yellow", "stop": "bold red"}

MARK_COLUMNS: Final = 4
SUBJECT_COLUMNS: Final = 10
"""The length of the longest subject."""


def print_report(about: str, facts: DoctorFacts, then: str = "", console: PlainConsole | None = None) -> None:
    """Print the findings and the verdict.

    Args:
        about: the run, or this machine.
        then: the command that joins, shown if joining makes sense.
    """
    console = console or console_of_output()
    findings = diagnose(facts)
    code = exit_code_of(findings)
    console.print(Text.assemble(("peer doctor", "bold"), "  ", about), highlight=False)
    console.print()
    for finding in findings:
        mark = MARKS[finding.level]
        head = f"{mark:<{MARK_COLUMNS}}  {finding.subject:<{SUBJECT_COLUMNS}}  "
        first, *rest = wrapped(finding.what, console.width, head, " " * len(head))
        lines = [Text.assemble((mark, STYLES[finding.level]), first[len(mark) :]), *map(Text, rest)]
        if finding.remedy:
            lines += [Text(line, "bold") for line in wrapped(finding.remedy, console.width, "  -> ", "     ")]
        for line in lines:
            # Never broken, even if wider than the terminal, so that the line can be copied completely.
            console.print(line, soft_wrap=True)
    console.print()
    console.tell(_verdict(findings, facts, code), style="bold")
    if then and not code and facts.run is not None and not _to_give(facts.run) and not facts.run.own_code_hint:
        console.print(Text(f"Start it with: {then}"), soft_wrap=True)


def _verdict(findings: Sequence[Finding], facts: DoctorFacts, code: int) -> str:
    if code:
        obstacles = [finding.subject for finding in findings if finding.level == "stop"]
        return f"Joining makes no sense yet: {', '.join(obstacles)}. (exit code {code})"
    if facts.run is None:
        return "This machine is ready to join. To check a run as well: peer doctor RUN"
    if facts.run.own_code_hint:
        return f"`peer join` cannot join this run; the code of its owner can: {facts.run.own_code_hint}"
    to_give = _to_give(facts.run)
    return f"Joining makes sense{to_give and f' with {to_give}'}."


def _to_give(run: ReportedRun) -> str:
    """Return the additional flags that `peer join` needs; empty: none."""
    faults = {"--data": run.data_fault, "--base": run.weights_fault}
    return " and ".join(flag for flag, fault in faults.items() if fault)
