"""`peer note`: writes a note beside the curve of a run."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from dht.ground.errors import UsageFault
from dht.ground.quantities import date_text
from peer.cli.options import AsJson, LookTimeout, Peers
from peer.cli.owned import and_published, owned_run, publish_if_known
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands

app = Commands()


@app.command(
    epilog='\b\nExample:\n  peer note ./owner "raised H to 40"\n  peer note ./owner',
)
@exits_with_sentence
def note(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id or name, or the folder that `peer init` wrote.")],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="One line of text; without it the command lists the notes.")
    ] = None,
    peers: Peers = None,
    timeout: LookTimeout = 20.0,
    as_json: AsJson = False,
) -> None:
    """Sign a note with the owner's key. Each page of the run shows it beside the loss curve."""
    from pydantic import ValidationError

    from peer.config.access_sections import ChangeSection
    from peer.config.validation_sentences import explain

    owned = owned_run(run, None, None)
    if text is None:
        notes = [(change.noted_at or 0, change.note) for change in owned.manifest.changes if change.note]
        if as_json:
            print(json.dumps([{"noted_at": at, "note": words} for at, words in notes]))
        elif not notes:
            print(f'There are no notes yet. `peer note {run} "raised H to 40"` adds a note.')
        else:
            for at, words in notes:
                print(f"{date_text(at)}  {words}")
        return
    if not text.strip():
        raise UsageFault("the note is empty; expected one line of text, such as: raised H to 40")
    try:
        change = ChangeSection(at_version=0, note=text.strip(), noted_at=int(time.time()))
    except ValidationError as error:
        raise UsageFault(explain(error, ChangeSection, lambda name: "TEXT" if name == "note" else name)) from error
    owned.change_now(change)
    published = publish_if_known(owned, peers or owned.known_addresses(), timeout)
    if as_json:
        print(json.dumps({"noted_at": change.noted_at, "note": change.note, "published": published}))
        return
    print(f"Noted       {change.note}")
    print(f"Signed      as revision {owned.manifest.revision}{and_published(owned, published)}")
