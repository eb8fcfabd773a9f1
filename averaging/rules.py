"""The rules of a run: a number for everything that decides bits of an anchor or verdicts on members. Pure.

Members of one run must compute the same bits, so a run names the number of its rules in the manifest. Software that
does not know the number refuses the run before it trains. To the set belong:

    averaging/codec/                                  bits of encoded values, and digests of them
    averaging/outer/fragment_layout.py                which values are in which fragment
    averaging/outer/contribution_weights.py           weights of contributions, outer rate and momentum
    averaging/outer/robust_mean.py                    what a mean is, and whose work is refused
    averaging/outer/shard_mean.py                     encoded means, and what encoding lost
    averaging/outer/outer_step.py                     the step, the overlay, the digest of an anchor
    averaging/outer/fragment_anchor_and_residual.py   what waits, what returns, how old it is
    averaging/fragment/broadcast_errors.py            errors carried to the next broadcast
    averaging/rounds/shard_plan.py                    where a fragment is cut
    averaging/rounds/leader_ranking.py                who leads, and which members a round takes
    averaging/wire/                                   what members tell each other, the tokens of a commit
    averaging/signing/                                what is signed, what a commit credits
    averaging/trust/                                  whose claims are believed, whose means are wrong
    averaging/exchange/audit.py                       who recomputes which mean
    dht/records/lineages.py                           which of two anchors counts

`tests/averaging/test_rules.py` keeps digests of what they compute, for each number. Once a number is released, a change
of them is a new number.
"""

from __future__ import annotations

from typing import Final

RULES: Final = 1
"""The rules that this software follows, and gives to new runs."""
UNNUMBERED: Final = 0
"""Of runs that were made before rules had numbers."""
