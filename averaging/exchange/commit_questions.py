"""Limits on questions that a member answers with a commit: for each remote, and for all remotes together.

A question has 23 bytes, and the commit of a round of 256 members 80,000. A remote that asks therefore costs others far
more than itself.
"""

from __future__ import annotations

from typing import Final

from averaging.rounds.round_machine import RoundMachine
from averaging.wire import frames
from averaging.wire.messages import Commit, CommitRequest, Message, Offer, Plan
from dht.ground.bounds import Allowances
from dht.ground.host import PeerId

QUESTIONS_AT_ONCE = 256
"""Questions of one remote at once: enough for all fragments after an absence of some rounds."""
QUESTION_SECONDS = 1 / 8
"""Seconds until one more question is answered. The commit of a large round has a thousand times the bytes of a
question."""
ANSWER_BYTES_AT_ONCE, SECONDS_PER_ANSWER_BYTE = 64 * 1024 * 1024, 1e-6
"""Bytes of commits to all remotes together, since one host may use many keys: 1200 commits of rounds of 256 members at
once, then 20 a second. A member that gets no answer eventually fetches the fragment."""
EVERYBODY: Final = PeerId("")


class CommitQuestions:
    """Remaining allowances.

    Args:
        answer_bytes: bytes of commits to all remotes at once.
        seconds_per_answer_byte: seconds until one more byte is allowed.
    """

    def __init__(
        self, answer_bytes: int = ANSWER_BYTES_AT_ONCE, seconds_per_answer_byte: float = SECONDS_PER_ANSWER_BYTE
    ) -> None:
        self._questions = Allowances[PeerId](QUESTIONS_AT_ONCE, QUESTION_SECONDS)
        self._answer_bytes = Allowances[PeerId](answer_bytes, seconds_per_answer_byte)

    def is_one_too_many(self, machine: RoundMachine, sender: PeerId, message: Message, now: float) -> bool:
        """Return whether the answer would be a commit, and the allowance of the sender, or of all, is spent."""
        # Offers for the version whose commit is being applied are answered with that commit.
        version = machine.version + (machine.applying is not None)
        asks = (
            isinstance(message, CommitRequest)
            or (isinstance(message, Offer | Plan) and message.version < version)
            or (isinstance(message, Commit) and machine.outweighs(message))
        )
        if not asks:
            return False
        answer = machine.known_commit(message.version) or machine.log.newest.get(message.version)
        return not self._questions.spend(sender, now) or (
            answer is not None and not self._answer_bytes.spend(EVERYBODY, now, len(frames.encode(answer)))
        )
