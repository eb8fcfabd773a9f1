"""Murmuration as a library: everything that a script, a notebook or an own training loop needs, under one name.

    import murmuration

    with murmuration.join(run_id, module=model, optimizer=optimizer, peers=[address]) as swarm:
        ...

Each name is loaded when it is first used, so that importing this package takes no torch. The names are stable; the
modules behind them are not.
"""

from __future__ import annotations

import importlib

from peer.version import VERSION

__version__ = VERSION

_HOMES = {
    # Training with a swarm
    "join": "peer.join.session",
    "Swarm": "peer.join.session",
    "Event": "peer.events.peer_events",
    # Making a run
    "create_run": "peer.owner.new_run",
    "create_custom_run": "peer.owner.new_run",
    "NewRun": "peer.owner.new_run",
    "RunManifest": "peer.config.manifest",
    # Using its model
    "read_model": "peer.export.model_file",
    "ModelFile": "peer.export.model_file",
    # What goes wrong
    "MurmurationError": "dht.errors",
    "LocalFault": "dht.errors",
    "UsageFault": "dht.errors",
    "NobodyReachable": "dht.errors",
    "Incompatible": "dht.errors",
    "DeviceFault": "dht.errors",
}
"""Public name -> the module that has it. Type checkers and editors read them in `__init__.pyi`."""

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'murmuration' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
