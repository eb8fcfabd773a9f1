"""`peer key`: prints the public key of this machine for a run."""

from __future__ import annotations

from peer.cli.options import DataDir, IdentityFile, RunId
from peer.cli.owned import OwnedRun
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.observe.named_run import named_or_only_run

app = Commands()


@app.command(
    epilog="\b\nExample:\n  peer key --data-dir ./site-b\n  peer key --run-id tinybytes.abcdefghij234567abcd",
)
@exits_with_sentence
def key(run: OwnedRun = None, run_id: RunId = None, data_dir: DataDir = None, identity: IdentityFile = None) -> None:
    """Print the public key (PeerId) of this machine's peer, and create the key file if it is missing.

    Without RUN, the command uses the only run on this machine.
    """
    from dht.identity.keys import Identity
    from peer.config.peer_config import IDENTITY_NAME, load_config
    from peer.user_folders import expanded

    if identity is not None:
        path = expanded(identity)
    elif data_dir is not None:
        path = expanded(data_dir) / IDENTITY_NAME
    elif run is not None and expanded(run).is_dir():
        path = expanded(run) / IDENTITY_NAME
    else:
        path = load_config({"run_id": named_or_only_run(run, run_id, None).run_id}).identity
    print(Identity.load_or_create(path).peer_id)
