"""What a peer sees to before anything heavy is loaded: libraries, ports, its data, and a member that answers."""

from __future__ import annotations

from importlib.util import find_spec

from dht.errors import UsageFault
from peer.config.peer_config import PeerConfig
from peer.observe.waiting_for_members import wait_for_answer
from peer.panel.terminal import Terminal


def _check_data(config: PeerConfig) -> None:
    kind, _, places = (config.data or "").partition(":")
    if kind in ("text", "jsonl", "parquet", "tokens"):
        from peer.trainer.text.files import check_not_empty

        check_not_empty(places)


def _check_libraries(config: PeerConfig) -> None:
    if config.track is not None:
        from peer.tracking.trackers import check_tracker

        check_tracker(config.track)
    for flag, bits in (("--optimizer-bits", config.optimizer_bits), ("--base-bits", config.base_bits)):
        if bits not in ("32", "full") and find_spec("bitsandbytes") is None:
            raise UsageFault(
                f"{flag} {bits} needs bitsandbytes, which is not installed here; expected it; run: pip install "
                f"bitsandbytes, or leave {flag} out"
            )


def wait_for_members(config: PeerConfig, terminal: Terminal, *, trains: bool) -> None:
    """See that ports are free, data is there and a member answers, before anything heavy is loaded.

    Raises:
        UsageFault: a library that the configuration needs is not installed.
        LocalFault: a port is taken, data is missing or empty, nobody answered in time, or it is no run that this peer
            can join.
    """
    if trains:
        _check_libraries(config)
        _check_data(config)
    if {"listen", "port_range"} & config.model_fields_set:
        from dht.identity.multiaddr import parse_multiaddr
        from dht.p2pd.daemon import claim_ports

        claim_ports([parse_multiaddr(address) for address in config.listen_addresses], config.ports)
    terminal.step("run")
    wait_for_answer(config, terminal.show, trains=trains)
    terminal.step("run")
    terminal.step("program")
