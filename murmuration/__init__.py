"""Murmuration as a library: all names that a script, a notebook or your own training loop needs.

    import murmuration

    with murmuration.join(run_id, module=model, optimizer=optimizer, peers=[address]) as swarm:
        ...

Each name is loaded on first use, so importing this package does not import torch. The names are stable; the modules
behind them are not.

    own_packages.py  our `peer.import_path`, even if the script has its own module `peer`
    command.py       entry point of the `peer` script
    integrations/    callbacks for the training loops of other libraries
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.

from __future__ import annotations

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
    "read_model": "peer.export.formats.model_reading",
    "ExportedModel": "peer.export.formats.model_reading",
    "load_export": "peer.export.formats.custom_module",
    # What goes wrong
    "MurmurationError": "dht.ground.errors",
    "LocalFault": "dht.ground.errors",
    "UsageFault": "dht.ground.errors",
    "NobodyReachable": "dht.ground.errors",
    "Incompatible": "dht.ground.errors",
    "DeviceFault": "dht.ground.errors",
}
"""Public name -> the module that defines it. Type checkers and editors read `__init__.pyi` instead."""

__all__ = [*_HOMES]

_USED_HERE = ("dht", "averaging", "peer")
"""Packages that define the names above. `dashboard` is not included, so a script may have its own `dashboard`."""


def __getattr__(name: str) -> object:
    # Imported here, so that the `peer` script gets past this file at once; before that, Ctrl+C prints a traceback.
    import importlib

    from murmuration.own_packages import import_path

    if name == "__version__":
        home, inside = "peer.version", "full_version"
    elif name in _HOMES:
        home, inside = _HOMES[name], name
    else:
        raise AttributeError(f"module 'murmuration' has no attribute {name!r}")
    if fault := import_path().package_fault(_USED_HERE):
        raise ImportError(fault)
    found = getattr(importlib.import_module(home), inside)
    value = globals()[name] = found() if name == "__version__" else found
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
