"""Whose work is in the signed commits that members keep: the measure of whose word counts to an observer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from averaging.signing.commit_credit import CreditedRound, counted, round_of, totals
from averaging.signing.receipt_file import ReceiptFault, RunFrame, commit_of
from averaging.signing.round_signatures import Verify
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord

FRAGMENT: Final = 0
"""Each fragment gets the work of all members in turn, so one is enough."""
NUM_VERSIONS: Final = 32
"""A member that contributes is in several of so many commits."""
MAX_DONORS: Final = 16
"""Members that are asked, chosen at random: free records hide an honest member only in great numbers."""
DONOR_SECONDS: Final = 5.0
"""For all answers together."""
MORE_SECONDS: Final = 1.0
"""After the first answer, for the others: a free record never answers."""
NUM_WITNESSES: Final = 2
"""Members that give a commit before it counts, as long as there is one that so many give."""

FetchLog = Callable[[PeerId, int, int], Awaitable[Sequence[bytes]]]
"""(donor, fragment, from_version) -> frames of signed commits, nothing checked; raises PeerFault."""

log = logging.getLogger(__name__)


async def signed_work(
    records: Sequence[PeerRecord],
    fetch: FetchLog,
    run: RunFrame,
    verify: Verify,
    choice: random.Random,
    num_versions: int = NUM_VERSIONS,
) -> dict[PeerId, int]:
    """Return of each member how much work the newest signed commits hold; see `work_in`. Empty: none was had in time.

    Args:
        records: of live members.
        num_versions: newest commits that are read.
    """
    donors = [record for record in records if len(record.versions) > FRAGMENT]
    donors = choice.sample(donors, min(len(donors), MAX_DONORS))

    async def ask(donor: PeerRecord) -> list[bytes]:
        try:
            first = max(0, donor.versions[FRAGMENT] - num_versions)
            return list(await fetch(donor.peer_id, FRAGMENT, first))[-num_versions:]
        except PeerFault as fault:
            log.info("no signed commits: %s", fault)
            return []

    asked = [asyncio.create_task(ask(donor)) for donor in donors]
    given: list[list[bytes]] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + DONOR_SECONDS
    waiting = set(asked)
    try:
        while waiting and (seconds := end - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            frames = [task.result() for task in done]
            if any(frames) and not given:
                end = min(end, loop.time() + MORE_SECONDS)
            given += [one for one in frames if one]
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    givers = Counter(chain.from_iterable(set(frames) for frames in given))
    return work_in(await _checked(givers, run, verify))


def work_in(rounds: Mapping[CreditedRound, int]) -> dict[PeerId, int]:
    """Return the work of each member in commits, each with the number of members that gave it. Pure.

    It is thousandths of tokens in rounds of several members. What nobody but the member signed for counts up to the
    most that was witnessed of any: who always leads and averages has no witness. Where no round had several members,
    each one that committed has the same: 1.
    """
    is_confirmed = any(number >= NUM_WITNESSES for number in rounds.values())
    taken = [one for one, number in rounds.items() if number >= NUM_WITNESSES or not is_confirmed]
    shared = totals([one for one in counted(taken) if sum(share.milli_tokens > 0 for share in one.shares) > 1])
    most = max((total.milli_witnessed for total in shared), default=0)
    work = {total.peer_id: min(total.milli_reported, most) for total in shared if total.milli_reported}
    return work if most else {total.peer_id: 1 for total in totals(taken) if total.milli_reported}


async def _checked(givers: Mapping[bytes, int], run: RunFrame, verify: Verify) -> dict[CreditedRound, int]:
    """Commits whose signatures hold, and how many members gave each."""
    found: dict[CreditedRound, int] = {}
    for frame, number in givers.items():
        await asyncio.sleep(0)  # a page goes on meanwhile: each commit has as many signatures as members
        try:
            credited = round_of(commit_of(frame, run, verify), sum(run.fragment_sizes))
        except ReceiptFault as fault:
            log.info("a commit that proves nothing: %s", fault)
            continue
        found[credited] = found.get(credited, 0) + number
    return found
