"""`peer stop`: stops the peer that runs on this machine."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dht.ground.errors import LocalFault, UsageFault
from peer.cli.options import DataDir, Run, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.word_wrap import print_fitting
from peer.observe.named_run import named_run, names_run

app = Commands()


@app.command(epilog="\b\nExample:\n  peer stop\n  peer stop tinybytes")
@exits_with_sentence
def stop(
    run: Run = None,
    run_id: RunId = None,
    data_dir: DataDir = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0, max=3600, metavar="SECONDS", help="How long to wait for the peer to leave."),
    ] = 120.0,
) -> int:
    """Stop the peer on this machine, as Ctrl+C does in its terminal, and wait until it has left.

    RUN may also be the name of a peer, as in `peer runs`. If several peers match, the command asks which peer to stop;
    without a terminal it lists the peers and stops none.
    """
    from peer.observe.own_runs import own_folders
    from peer.observe.running_peer import ask_to_leave, has_left, names_in, running_in_any

    found = []
    if run is not None and run_id is None and not names_run(run):
        wanted = run.strip().casefold()
        every = running_in_any(own_folders(None, data_dir))
        found = [one for one in every if wanted in (name.casefold() for name in names_in(one.folder))]
    if not found:
        found = running_in_any(own_folders(named_run(run, run_id, None)[0], data_dir))
    if not found:
        named = f" of {run or run_id}" if run or run_id else ""
        where = f"in {data_dir}" if data_dir else "on this machine"
        print_fitting(f"No peer{named} runs {where}; `peer runs` lists the runs on this machine.")
        return 0
    chosen = found[0] if len(found) == 1 else _chosen(found)
    if chosen is None:
        print("No peer was stopped.")
        return 0
    if not ask_to_leave(chosen):
        print(f"It has already left: {chosen.named}.")
        return 0
    print_fitting(f"Asked {chosen.named} to leave: it finishes its step and its round.")
    if not has_left(chosen, timeout):
        raise LocalFault(
            f"the peer still runs after {timeout:g} s; expected it to leave in that time; `peer stop` again ends it at "
            "once, without notice to the members"
        )
    print("It has left.")
    return 0


def _chosen(running: Sequence[Any]) -> Any:
    """Return the peer that the user chooses from a list, or None for no peer.

    Raises:
        UsageFault: there is no terminal, or the answer is not a number of the list.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        lines = [shlex.join(["peer", "stop", "--data-dir", str(one.folder)]) for one in running]
        shown = [f"{command}\n  ends {one.named}" for command, one in zip(lines, running, strict=True)]
        raise UsageFault("\n".join([f"{len(running)} peers run here; expected one of these commands.", *shown]))
    for number, one in enumerate(running, 1):
        print(f"{number:>2}  {one.named}\n    {one.folder}")
    choices = {str(number): one for number, one in enumerate(running, 1)}
    try:
        typed = input(f"Which peer should stop? 1 to {len(running)}; Enter: none.  ").strip()
    except EOFError:
        return None
    if typed and typed not in choices:
        raise UsageFault(f"{typed[:80]!a} is not the number of a peer; expected 1 to {len(running)}.")
    return choices.get(typed)
