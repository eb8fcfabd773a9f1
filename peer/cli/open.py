"""`peer open`: opens the page of a run."""

from __future__ import annotations

import sys
import webbrowser

from dht.ground.errors import UsageFault
from peer.cli.options import PAGE_PORT, Run, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.notices import notice
from peer.observe.named_run import named_run
from peer.observe.run_names import every_run_here

app = Commands()


@app.command("open", epilog="\b\nExample:\n  peer open tinybytes")
@exits_with_sentence
def open_(run: Run = None, run_id: RunId = None) -> int:
    """Open the page of a run in the browser, and print its address.

    For a run without a page, the command looks for a dashboard on this machine at port 8080.
    """
    from peer.observe.own_runs import find_page

    named = named_run(run, run_id, None).run_id
    if named is None and len(known := every_run_here()) == 1:
        named = known[0]
    if named is None:
        raise UsageFault(
            "Which run? Expected an id or a name: `peer open RUN`; `peer runs` lists the runs on this machine."
        )
    page = find_page(named, PAGE_PORT)
    print(page)
    if sys.stdout.isatty() and not webbrowser.open(page):
        notice("No browser opened. Open this address yourself.")
    return 0
