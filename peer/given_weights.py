"""What somebody is told whose peer lacks the weights that its run stands on."""

from __future__ import annotations

from dht.errors import UsageFault


def no_weights_given(digest: str) -> UsageFault:
    """Of a run whose volunteers bring the weights; `digest`: theirs, hexadecimal."""
    return UsageFault(
        f"--base is missing; expected --base DIR with the weights that this run stands on (digest {digest[:16]}); its "
        "owner knows where they are published"
    )
