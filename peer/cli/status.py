"""`peer status`: shows the state of a run."""

from __future__ import annotations

from dht.observer.host_choice import choose_backend
from peer.cli.options import AsJson, Backend, DataDir, InviteFile, LookTimeout, Peers, Run, RunId
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import named_or_only_run, named_run
from peer.observe.run_and_address import checked_target

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer status --run-id tinybytes.abcdefghij234567abcd \\\n"
    "              --peers /ip4/203.0.113.5/tcp/4001/p2p/12D3KooW...",
)
@exits_with_sentence
def status(
    run: Run = None,
    run_id: RunId = None,
    peers: Peers = None,
    invite: InviteFile = None,
    timeout: LookTimeout = 20.0,
    host_backend: Backend = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> int:
    """Show the peers, versions, rates and loss of a run.

    Without RUN, the command shows the only run on this machine.
    """
    is_told = invite is not None or data_dir is not None
    named = (named_run if is_told else named_or_only_run)(run, run_id, peers)
    target = checked_target(named.run_id, named.peers, invite, data_dir, named.end)
    backend = choose_backend(host_backend)
    target.look_first(timeout)
    from peer.observe.status import show_status

    return show_status(target, as_json, timeout, backend)
