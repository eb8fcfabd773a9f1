"""Commands about the runs of this machine: runs, open."""

from __future__ import annotations

import json
import sys
import webbrowser

from dht.errors import UsageFault
from peer.cli.named_run import Run, named_run, runs_here
from peer.cli.options import PAGE_PORT, AsJson, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_help import Commands

commands = Commands()


@commands.command(epilog="\b\nExample:\n  peer runs")
@exits_with_sentence
def runs(as_json: AsJson = False) -> int:
    """List the runs that you take part in here: whether a peer of yours is up, its part in the run, and the page."""
    from peer.observe.own_runs import own_runs, run_line

    found = [one for run_id in runs_here() for one in own_runs(run_id)]
    if as_json:
        print(json.dumps([one.facts() for one in found]))
        return 0
    if not found:
        print("You take part in no run here. Join one: peer join https://PAGE. Try it alone: peer demo.")
    for one in found:
        print(run_line(one))
    return 0


@commands.command("open", epilog="\b\nExample:\n  peer open tinybytes")
@exits_with_sentence
def open_(run: Run = None, run_id: RunId = None) -> int:
    """Open the page of a run in the browser; the address is printed, too.

    A run without a page of its own is looked for at port 8080 of this machine, where `peer dashboard` shows it.
    """
    from peer.observe.own_runs import own_run, page_here

    named, _ = named_run(run, run_id, None)
    known = runs_here()
    if named is None and len(known) == 1:
        named = known[0]
    if named is None:
        raise UsageFault(
            "Which run? Expected its id or its name: `peer open RUN`; `peer runs` lists those of this machine."
        )
    page = own_run(named).page or page_here(named, f"http://127.0.0.1:{PAGE_PORT}")
    if page is None:
        raise UsageFault(
            f"No page of {named} is known here; expected one in its manifest, where its owner puts it with "
            "`peer manifest edit --page`; ask its owner for the address, or serve one: `peer dashboard RUN`."
        )
    print(page)
    if sys.stdout.isatty():
        webbrowser.open(page)
    return 0
