"""What the commit of a two-level round means for the anchor: rates and shares from sums over its cells."""

from __future__ import annotations

import math

from averaging.fragment.shard_store import terms_of
from averaging.outer.contribution_weights import rates_at, raw_weight, shard_rates, staleness_factor, weights_of
from averaging.outer.outer_settings import OuterRule
from averaging.wire.frames import commit_digest_whole
from averaging.wire.messages import CellRow, Commit


def weigh(rule: OuterRule, name: str, commit: Commit) -> CellRow:
    """What a cell brings into a round: sums over the members that are in at least one of its means."""
    terms = [terms_of(rule, commit, member) for member in commit.included]
    fresh = [term for term in terms if term.staleness <= rule.staleness_limit]
    return CellRow(
        name,
        commit.leader,
        commit_digest_whole(commit),
        len(commit.roster),
        commit.tokens,
        math.fsum(raw_weight(term, rule) for term in terms),
        sum(term.tokens for term in fresh),
        math.fsum(term.tokens * staleness_factor(term.staleness, rule) for term in fresh),
        sum(term.tokens * term.staleness for term in fresh),
    )


def rates_of(commit: Commit, index: int, rule: OuterRule) -> tuple[float, float]:
    """(outer learning rate, outer momentum) of result `index`; of a slice from the sums of the cells that are in it."""
    cells = commit.cells_in(index)
    if not commit.cells:
        return shard_rates([terms_of(rule, commit, member) for member in commit.members_in(index)], rule)
    tokens = sum(row.fresh_tokens for row in cells)
    if not tokens:
        return rates_at(0.0, 0.0, rule)
    mean_rho = math.fsum(row.rho_tokens for row in cells) / tokens
    rounds_late = sum(row.late_tokens for row in cells) / tokens
    return rates_at(mean_rho, rounds_late, rule)


def own_share_of(commit: Commit, own_index: int, rule: OuterRule) -> float:
    """Share of roster member `own_index` in the weights of the whole round."""
    terms = [terms_of(rule, commit, member) for member in range(len(commit.roster))]
    share = weights_of(terms, rule)[own_index]
    if not commit.cells:
        return share
    total = math.fsum(row.weight for row in commit.cells)
    return raw_weight(terms[own_index], rule) / total if total > 0 else 0.0
