"""`peer runs`: lists the runs on this machine."""

from __future__ import annotations

import json
import shutil
import sys

from peer.cli.options import AsJson
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.word_wrap import print_fitting
from peer.observe.run_names import every_run_here

app = Commands()


@app.command(epilog="\b\nExample:\n  peer runs")
@exits_with_sentence
def runs(as_json: AsJson = False) -> int:
    """List the runs on this machine, with the state of your peer, its contribution, and the page."""
    from peer.observe.own_runs import own_runs, run_lines

    found = [one for run_id in every_run_here() for one in own_runs(run_id)]
    if as_json:
        print(json.dumps([one.facts() for one in found]))
        return 0
    if not found:
        print_fitting("No run on this machine yet. Join a run: `peer join https://PAGE`. Try a demo: `peer demo`.")
        return 0
    print("\n".join(run_lines(found, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)))
    return 0
