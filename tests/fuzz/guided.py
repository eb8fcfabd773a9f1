"""One target under atheris (libFuzzer), in a process that `fuzz` starts with TARGET SEEDS FLAG..."""

from __future__ import annotations

import logging
import sys


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["dht", "averaging", "peer", "msgpack", "json"]):
        from tests.fuzz.targets import all_targets

    logging.disable(logging.WARNING)
    target = all_targets()[sys.argv[1]]

    def take(data: bytes) -> None:
        target.take(data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], take)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
