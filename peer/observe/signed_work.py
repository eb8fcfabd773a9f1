"""Computes each member's work in signed commits, which weights the member's claims for an observer."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from averaging.signing.commit_credit import CreditedRound, round_of
from averaging.signing.receipt_file import ReceiptFault, RunFrame, commit_of
from averaging.signing.round_signatures import Verify
from dht.ground.errors import PeerFault
from dht.ground.host import PeerId
from dht.records.peer_record import PeerRecord
from peer.view.run_view import NUM_COMMITS, work_in

FRAGMENT: Final = 0
"""The fragment that is read; each fragment receives the work of all members in turn, so one is enough."""
MAX_DONORS: Final = 16
"""Members asked, chosen at random: only very many free records could hide an honest member."""
DONOR_SECONDS: Final = 5.0
"""Time limit for all answers together."""
MORE_SECONDS: Final = 1.0
"""Time limit for the others after the first answer: a member with a free record never answers."""
NUM_WITNESSES: Final = 2
"""Members that must send a commit before it counts, if any commit reaches this number."""

FetchLog = Callable[[PeerId, int, int], Awaitable[Sequence[bytes]]]
"""(donor, fragment, from_version) -> frames of signed commits, nothing checked; raises PeerFault."""

log = logging.getLogger(__name__)


async def signed_work(
    records: Sequence[PeerRecord],
    fetch: FetchLog,
    run: RunFrame,
    verify: Verify,
    choice: random.Random,
    num_versions: int = NUM_COMMITS,
) -> dict[PeerId, int]:
    """Return each member's work in the newest signed commits, as `work_in` does. Empty if none arrived in time.

    Args:
        records: records of live members.
        num_versions: number of newest commits that are read.
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
    rounds = await _checked(givers, run, verify)
    is_confirmed = any(number >= NUM_WITNESSES for number in rounds.values())
    return work_in([one for one, number in rounds.items() if number >= NUM_WITNESSES or not is_confirmed])


async def _checked(givers: Mapping[bytes, int], run: RunFrame, verify: Verify) -> dict[CreditedRound, int]:
    """Return the commits with valid signatures, and how many members sent each."""
    found: dict[CreditedRound, int] = {}
    for frame, number in givers.items():
        await asyncio.sleep(0)  # lets a page continue meanwhile: each commit has as many signatures as members
        try:
            credited = round_of(commit_of(frame, run, verify), sum(run.fragment_sizes))
        except ReceiptFault as fault:
            log.info("ignored an invalid commit: %s", fault)
            continue
        found[credited] = found.get(credited, 0) + number
    return found
