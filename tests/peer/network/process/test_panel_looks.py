"""The work that counts is that in signed commits."""

from __future__ import annotations

from peer.network.process.panel_looks import work_in
from tests.kit.averages.credited_rounds import A, B, commit_of


def test_work_is_what_was_averaged_of_members_in_signed_commits() -> None:
    commits = [commit_of(0, (A, B)), commit_of(1, (A, B), shards=((0, (0,)), (0, ())))]
    assert work_in(commits) == {A.peer_id: 150, B.peer_id: 100}
    assert work_in([]) == {}
