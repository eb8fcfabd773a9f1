"""How many questions that are answered with a commit a member answers: of each remote, and of all together.

A question has 23 bytes, and the commit of a round of 256 members 80,000. So who asks costs others more than itself.
"""

from __future__ import annotations

from typing import Final

from averaging.rounds.round_machine import RoundMachine
from averaging.wire import frames
from averaging.wire.messages import Commit, CommitRequest, Message, Offer, Plan
from dht.ground.bounds import Allowances
from dht.ground.host import PeerId

QUESTIONS_AT_ONCE = 256
"""Of one remote, which are answered with commits: those of all fragments, for one that was away for some rounds."""
QUESTION_SECONDS = 1 / 8
"""Until one more is answered. The commit of a large round takes a thousand times the bytes of a question."""
ANSWER_BYTES_AT_ONCE, SECONDS_PER_ANSWER_BYTE = 64 * 1024 * 1024, 1e-6
"""Of commits to all remotes together, who may be one with many keys: 1200 of rounds of 256 members, then 20 a second.
A member without an answer fetches the fragment in the end."""
EVERYBODY: Final = PeerId("")


class CommitQuestions:
    """What is left of the allowances.

    Args:
        answer_bytes: of commits to all remotes at once.
        seconds_per_answer_byte: until one more byte is answered.
    """

    def __init__(
        self, answer_bytes: int = ANSWER_BYTES_AT_ONCE, seconds_per_answer_byte: float = SECONDS_PER_ANSWER_BYTE
    ) -> None:
        self._questions = Allowances[PeerId](QUESTIONS_AT_ONCE, QUESTION_SECONDS)
        self._answer_bytes = Allowances[PeerId](answer_bytes, seconds_per_answer_byte)

    def is_one_too_many(self, machine: RoundMachine, sender: PeerId, message: Message, now: float) -> bool:
        """Whether a message is answered with a commit, and its sender, or all, had as many as anybody needs."""
        # Offers for the version whose commit is applied now are answered with that.
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
