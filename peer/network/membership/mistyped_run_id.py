"""A mistyped run id: what a member of another run answers to it, and how that is told to a person."""

from __future__ import annotations

from dht.ground.errors import UsageFault
from dht.identity.keys import split_run_id

_TRAINS = "of the run "
"""What stands before a member's run id, in its answer to those who ask for another run."""


def answer_to_other_run(own: str) -> str:
    """What a member of the open run `own` says to those who ask for another one."""
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
    """What is said when members train another run than the one that was named."""
    return UsageFault(
        f"The members there train {other}, not {asked}; did you mean that? Check the run id, or the address."
    )
