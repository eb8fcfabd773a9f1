"""A mistyped run id: what a member of another run answers to it, and how that is told to a person."""

from __future__ import annotations

from dht.ground.errors import UsageFault
from dht.identity.keys import split_run_id

_TRAINS = "of the run "
"""Text before a member's run id in its answer to a peer that asks for another run."""


def answer_to_other_run(own: str) -> str:
    """Return the answer of a member of the open run `own` to a peer that asks for another run."""
    return f"{_TRAINS}{own}"


def other_run(refusal: str) -> str | None:
    """The run id in a member's refusal, which may say anything; None: it names none."""
    said = refusal.partition(_TRAINS)[2]
    try:
        split_run_id(said)
    except UsageFault:
        return None
    return said


def in_other_run(asked: str, other: str) -> UsageFault:
    """Return the sentence for members that train another run than the named one."""
    return UsageFault(
        f"The members there train {other}, not {asked}; did you mean that? Check the run id, or the address."
    )
