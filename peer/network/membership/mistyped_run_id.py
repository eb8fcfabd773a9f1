"""A mistyped run id: the answer of a member of a different run, and the error message for the user."""

from __future__ import annotations

from dht.ground.errors import UsageFault
from dht.identity.keys import split_run_id

_TRAINS = "of the run "
"""Text before a member's run id in its answer to a peer that asks for a different run."""


def answer_to_other_run(own: str) -> str:
    """Return the answer of a member of the open run `own` to a peer that asks for a different run."""
    return f"{_TRAINS}{own}"


def other_run(refusal: str) -> str | None:
    """Parse the run id in a member's refusal, which is untrusted; None if it contains none."""
    said = refusal.partition(_TRAINS)[2]
    try:
        split_run_id(said)
    except UsageFault:
        return None
    return said


def in_other_run(asked: str, other: str) -> UsageFault:
    """Return the error for members that train a different run than the requested one."""
    return UsageFault(
        f"The members there train {other}, not {asked}; did you mean that run? Check the run id, or the address."
    )
