"""The number of a run's rules, which determine the bits of an anchor and the verdicts on members. Pure.

Members of one run must compute the same bits, so the manifest of a run contains the number of its rules. Software that
does not know the number refuses the run before it trains. These modules belong to the rules:

    averaging/codec/                                  bits and digests of encoded values
    averaging/outer/fragment_layout.py                division of values into fragments
    averaging/outer/contribution_weights.py           weights of contributions, outer rate and momentum
    averaging/outer/robust_mean.py                    combination of contributions, and refusal of work
    averaging/outer/shard_mean.py                     encoded means and their errors
    averaging/outer/outer_step.py                     the step, the overlay, the digest of an anchor
    averaging/outer/fragment_anchor_and_residual.py   waiting work, returned work, and its age
    averaging/fragment/broadcast_errors.py            errors carried to the next broadcast
    averaging/rounds/shard_plan.py                    division of a fragment into shards
    averaging/rounds/leader_ranking.py                choice of the leader and the members of a round
    averaging/wire/                                   messages between members, and the tokens of a commit
    averaging/signing/                                signed bytes, and the credit of a commit
    averaging/trust/                                  checks of claims and of means
    averaging/exchange/audit.py                       choice and outcome of audits
    dht/records/lineages.py                           choice between two anchors
    peer/config/                                      the fields of a manifest: its canonical form has each of them

`tests/averaging/test_rules.py` stores digests of the results of these modules, for each number. Once a number is
released, a change of the results needs a new number.
"""

from __future__ import annotations

from typing import Final

RULES: Final = 1
"""The rules that this software follows, and writes into new runs."""
