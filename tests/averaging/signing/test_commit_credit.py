"""Credit from signed commits: the same from any order, one of two histories, and nothing for what is not signed."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from averaging.signing.commit_credit import CreditedRound, counted, missing_versions, round_of, totals
from averaging.signing.commit_log import MAX_LOGGED_BYTES, MAX_LOGGED_COMMITS, MAX_PAGE_BYTES, CommitLog
from averaging.signing.receipt_file import ReceiptFault, line_of, read_line, read_receipts, receipt_of
from averaging.signing.round_signatures import Notary
from averaging.wire import frames
from averaging.wire.messages import DIGEST_BYTES, KEPT_COMMITS, Commit
from dashboard.collect.commit_fetcher import proof_line
from dashboard.credit.credited_members import checker_of
from dht.ground.errors import PeerFault
from dht.identity.keys import verify
from dht.identity.speakable import speakable_name
from peer.cli import app
from peer.secret_files import write_secret
from tests.kit.averages.credited_rounds import PEOPLE, RUN, SCOPE, SIZES, A, B, C, D, after, commit_of, rounds_of

BY_ID = {one.peer_id: one for one in PEOPLE}


def credited(rounds: list[CreditedRound]) -> dict[str, tuple[int, int]]:
    return {one.peer_id: (one.milli_witnessed, one.milli_reported) for one in totals(counted(rounds))}


# --- what one commit credits ---


def test_one_pass_over_all_fragments_counts_each_token_once():
    rounds = rounds_of(commit_of(0, fragment=0), commit_of(0, fragment=1))
    assert credited(rounds) == {A.peer_id: (100_000, 100_000), B.peer_id: (100_000, 100_000)}


def test_who_only_signs_for_itself_is_only_reported():
    assert credited(rounds_of(commit_of(0, (A,)))) == {A.peer_id: (0, 30_000)}
    # A averages everything: B's work is witnessed, A's own is not.
    assert credited(rounds_of(commit_of(0, shards=((0, (0, 1)),)))) == {
        A.peer_id: (0, 30_000),
        B.peer_id: (30_000, 30_000),
    }


def test_the_leader_is_a_witness_too():
    """It took the offer, whoever averages the shard."""
    led_by_b = replace(commit_of(0, shards=((0, (0, 1)),)), leader=B.peer_id)
    assert credited(rounds_of(led_by_b)) == {A.peer_id: (30_000, 30_000), B.peer_id: (30_000, 30_000)}


def test_void_and_missed_parts_are_not_credited():
    rounds = rounds_of(commit_of(0, (A, B, C), shards=((0, (0, 1)), (1, ()), (2, (0, 1)))))
    assert credited(rounds) == {A.peer_id: (20_000,) * 2, B.peer_id: (20_000,) * 2, C.peer_id: (0, 0)}
    assert {one.peer_id: (one.rounds, one.rounds_missed) for one in totals(rounds)} == {
        A.peer_id: (1, 0),
        B.peer_id: (1, 0),
        C.peer_id: (0, 1),
    }


# --- which commits count ---


def history(*, seed: int = 0) -> list[Commit]:
    """Twelve versions with a fork from version 4 to 6; the pair's side is longer and heavier."""
    commits: list[Commit] = []
    for version in range(12):
        commits.append(commit_of(version, (A, B, C), previous=after(commits[-1]) if commits else b""))
    lost = commit_of(4, (C, D) if C.peer_id < D.peer_id else (D, C), tokens=10, previous=after(commits[3]))
    lost_2 = commit_of(5, (D,), tokens=10_000, previous=after(lost))
    return [*commits, lost, lost_2, *(commit_of(version, fragment=1) for version in (0, 1, 5))]


HISTORY = history()


def test_only_the_heavier_lineage_counts_even_where_a_single_commit_of_the_other_has_more_tokens():
    found = counted(rounds_of(*HISTORY))
    assert [one.version for one in found] == [*range(12), 0, 1, 5]
    assert D.peer_id not in {share.peer_id for one in found for share in one.shares}


def test_tokens_that_nobody_witnessed_do_not_outweigh_a_round_of_two():
    forged = commit_of(0, (D,), tokens=10**12)
    found = counted(rounds_of(commit_of(0), forged))
    assert [one.leader for one in found] == [A.peer_id]


def test_a_chain_goes_on_across_a_gap_but_not_through_a_commit_that_it_does_not_name():
    first = commit_of(0)
    other = commit_of(1, (C, D) if C.peer_id < D.peer_id else (D, C), previous=after(first))
    behind_gap = commit_of(2, tokens=300, previous=b"x" * DIGEST_BYTES)
    found = counted(rounds_of(first, other, behind_gap))
    assert [(one.version, one.leader) for one in found] == [(0, A.peer_id), (2, A.peer_id)]
    assert missing_versions(rounds_of(first, behind_gap)) == {0: [range(1, 2)]}
    unknown = commit_of(2, tokens=300)
    assert [one.version for one in counted(rounds_of(first, other, unknown))] == [0, 1, 2]


def test_a_commit_weighs_what_was_averaged():
    """A member that got into a part of the values counts with that part: the rest returns to it, and counts later."""
    whole = commit_of(1, (A, B), fragment=1, tokens=1000)
    quarter = commit_of(1, (A, B), fragment=1, tokens=1000, shards=((0, (0, 1)), (1, ()), (0, ()), (1, ())))
    mixed = commit_of(1, (A, B), fragment=1, tokens=1000, shards=((0, (0, 1)), (1, (1,)), (0, (1,)), (1, ())))
    assert [commit.tokens for commit in (whole, quarter, mixed)] == [2000, 500, 1000]
    assert (quarter.tokens_averaged, mixed.tokens_averaged) == ((250, 250), (250, 750))
    # In whole tokens: work that is in nearly nothing still makes a longer history the heavier one.
    assert commit_of(1, (A, B), fragment=1, tokens=1, shards=((0, (0,)), (1, ()), (0, ()), (1, ()))).tokens == 1


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 2]), unique=True).map(sorted), min_size=1, max_size=7),
    st.integers(1, 10**12),
)
def test_the_weight_of_a_commit_is_the_credit_of_its_members(included: list[list[int]], tokens: int):
    commit = commit_of(1, (A, B, C), fragment=1, tokens=tokens, shards=tuple((0, tuple(one)) for one in included))
    credited = sum(share.milli_tokens for share in round_of(commit, SIZES[1]).shares)
    assert 1000 * (commit.tokens - 1) - 2 <= credited <= 1000 * commit.tokens + 2


@given(st.sets(st.integers(0, 14)))
def test_nothing_is_counted_twice_whatever_is_missing(left_out: set[int]):
    rounds = rounds_of(*(commit for number, commit in enumerate(HISTORY) if number not in left_out))
    found = counted(rounds)
    places = [(one.fragment, one.version) for one in found]
    assert len(set(places)) == len(places)
    assert {one.digest for one in found} <= {one.digest for one in rounds}


# --- receipts ---

LINES = [line_of(frames.encode(commit), RUN) for commit in HISTORY]


def test_a_file_of_receipts_gives_the_same_rounds():
    found = read_receipts([LINES[0] + "\n", "\n", *LINES[1:]], verify, RUN.run_id)
    assert list(found.rounds) == rounds_of(*HISTORY)
    assert (found.run_id, found.num_parameters) == (RUN.run_id, 200)


@given(st.data())
def test_no_character_of_a_receipt_can_be_changed(data: st.DataObject):
    line = data.draw(st.sampled_from(LINES[:2]))
    place = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(codec="ascii"))
    changed = line[:place] + other + line[place + 1 :]
    try:
        run, commit = read_line(changed, verify)
    except ReceiptFault:
        return
    # What does not matter may change: white space, and the size of a fragment that this commit is not of.
    assert (run.run_id, run.manifest_hash, commit) == (RUN.run_id, RUN.manifest_hash, read_line(line, verify)[1])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": 10**9}, r'line 2: its field "tokens" is 1000000000; the signed bytes contain 300'),
        ({"contributors": {}}, "line 2: its field .contributors. is"),
        ({"run_id": "other.abcdefghij234567abcd"}, "line 2: .* is not signed by its leader"),
        ({"manifest_hash": "00" * 32}, "line 2: .* is not signed by its leader"),
        ({"manifest_hash": "00"}, "line 2: its .manifest_hash. is not a hash"),
        ({"fragment_sizes": [61, 140]}, "line 2: its bytes are not a signed commit: shards cover"),
        ({"fragment_sizes": [60, 10]}, "line 2: its fragment sizes differ from those of earlier lines"),
        ({"fragment_sizes": [2**60] * 9}, "line 2: its .fragment_sizes. is not a list"),
        ({"commit": "!"}, "line 2: its .commit. is not base64"),
        ({"commit": None}, "line 2: its bytes are not a signed commit"),
        ({"kind": "something"}, "line 2: it is not a receipt"),
        ({"commit": base64.b64encode(frames.encode(replace(HISTORY[1], signature=bytes(64)))).decode()}, "not signed"),
    ],
)
def test_tampering_is_named_with_its_line(change: dict[str, object], sentence: str):
    changed = json.dumps({**json.loads(LINES[1]), **change})
    with pytest.raises(ReceiptFault, match=sentence):
        read_receipts([LINES[0], changed], verify)


def test_what_proves_nothing_credits_nobody_and_says_why():
    foreign = commit_of(3, scope=replace(SCOPE, run_id="other.abcdefghij234567abcd"))
    unsigned = replace(HISTORY[2].shards[0], signature=bytes(64))
    half = replace(HISTORY[2], shards=(unsigned, *HISTORY[2].shards[1:]))
    half = Notary(SCOPE, BY_ID[half.leader].sign, verify).sign_commit(half)
    kept = [receipt_of(RUN, frames.encode(commit)) for commit in (HISTORY[0], foreign, half)]
    check = checker_of(RUN, verify, lambda count: 2 * count)
    assert check(kept[0]).version == 0
    for receipt, reason in (
        (kept[1], "not signed by its leader"),
        (kept[2], "not signed by its reducer"),
        (b"", "bytes that are not a receipt"),
        (receipt_of(replace(RUN, fragment_sizes=(60,)), b""), "a model with different fragments"),
    ):
        with pytest.raises(PeerFault, match=f"gave a commit that proves nothing: .*{reason}"):
            check(receipt)
    assert proof_line(RUN.run_id, kept[0]) == LINES[0]


def test_a_credit_says_what_the_page_shows():
    receipt = receipt_of(RUN, frames.encode(commit_of(0, (A, B, C), shards=((0, (0, 1)), (1, ()), (2, (0, 1))))))
    credit = checker_of(RUN, verify, lambda count: 2 * count)(receipt)
    assert credit.shares == ((A.peer_id, 20_000, True), (B.peer_id, 20_000, True), (C.peer_id, 0, False))
    assert (credit.num_void_shards, credit.tokens) == (1, 134)
    assert dict(credit.drop_reasons) == {
        "planned and nothing of it arrived in time": 1,
        "a reducer gave no mean in time": 1,
    }


def test_the_command_says_what_a_file_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "proof.jsonl"
    path.write_text("\n".join(LINES) + "\n")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "murmuration" / RUN.run_id
    folder.mkdir(parents=True)
    write_secret(folder / "identity.key", A.to_bytes())
    assert app.run(["receipts", "verify", str(path), "--run-id", RUN.run_id]) == 0
    shown = capsys.readouterr().out
    assert A.peer_id in shown
    assert f"{speakable_name(A.peer_id)} (yours)" in shown
    assert shown.count("(yours)") == 1
    assert "Work is counted in tokens." in shown
    assert "15 rounds counted. Left out: 2, duplicates or rounds of a side history with less work." in shown
    assert "3 rounds of the run in between did not involve these machines." in shown
    with monkeypatch.context() as narrow:
        narrow.setenv("COLUMNS", "60")
        assert app.run(["receipts", "verify", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"  {speakable_name(A.peer_id)} (yours)" in shown.splitlines()
    assert A.peer_id in shown.splitlines(), "a key that is cut cannot be copied"
    assert re.search(r"^  \S+.* confirmed of .* reported, 1?[0-9] rounds, [0-9] missed$", shown, re.MULTILINE)
    assert app.run(["receipts", "verify", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["receipts"] == 17
    assert (
        facts["machines"][0]["tokens_witnessed"]
        == credited(rounds_of(*HISTORY))[facts["machines"][0]["peer_id"]][0] / 1000
    )
    for arguments, sentence in (
        ([str(path), "--run-id", "other.abcdefghij234567abcd"], "line 1: it belongs to run"),
        ([str(tmp_path / "none.jsonl")], "none.jsonl cannot be read"),
        ([str(tmp_path)], "cannot be read"),
        ([str(path), "--run-id", "nonsense"], "is not a run id"),
    ):
        assert app.run(["receipts", "verify", *arguments]) != 0
        assert sentence in capsys.readouterr().err
    for content, sentence in ((b"", "contains no receipt"), (b"\xff\xfe", "is not text"), (b"x" * 10**6, "characters")):
        path.write_bytes(content)
        assert app.run(["receipts", "verify", str(path)]) == 1
        said = capsys.readouterr().err
        assert sentence in said
        assert "Traceback" not in said


# --- what members keep ---


def test_a_member_keeps_many_commits_within_limits_and_gives_them_page_by_page():
    log = CommitLog()
    small = commit_of(0)
    for version in range(2 * MAX_LOGGED_COMMITS):
        log.add(replace(small, version=version))
    assert len(log) <= MAX_LOGGED_COMMITS
    assert log.num_bytes <= MAX_LOGGED_BYTES
    found, at = [], 0
    while page := log.page(at):
        assert sum(map(len, page)) <= MAX_PAGE_BYTES
        commits = [frames.decode(frame, A.peer_id, RUN.limits)[0] for frame in page]
        found += [commit.version for commit in commits]
        at = found[-1] + 1
    assert found == list(range(2 * MAX_LOGGED_COMMITS - len(log), 2 * MAX_LOGGED_COMMITS))
    log.replace([replace(small, version=7), replace(small, version=6)])
    assert [len(log.page(version)) for version in (0, 7, 8)] == [2, 1, 0]


def test_the_last_commits_stay_however_large_they_are():
    log = CommitLog()
    large = replace(commit_of(0), shards=tuple(commit_of(0).shards) * 500)
    for version in range(40):
        log.add(replace(large, version=version))
    assert len(log) == max(KEPT_COMMITS, MAX_LOGGED_BYTES // len(frames.encode(large)))
    assert 1 <= len(log.page(0)) <= len(log)
