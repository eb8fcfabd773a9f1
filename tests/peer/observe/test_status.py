"""`peer status`: what a run looks like from outside."""

from __future__ import annotations

import dataclasses

import pytest

from dht.records.signed_records import PeerRecord
from peer.observe.status import _print_table, status_facts
from peer.simulation.scenarios.spec import tiny_manifest
from tests.kit.records import NOW, RUN_ID, anchored

MANIFEST = tiny_manifest(0)


def records_of(**digests: bytes) -> list[PeerRecord]:
    found = [anchored(name, 9, digest, 100) for name, digest in digests.items()]
    return [dataclasses.replace(record, expires_at=1e12) for record in found]


def test_a_peer_with_another_anchor_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    records = records_of(A=b"z", B=b"b", C=b"b")
    facts = status_facts(RUN_ID, MANIFEST, records, NOW)
    assert [peer["differing_fragments"] for peer in facts["peers"]] == [[1], [], []]
    _print_table(RUN_ID, MANIFEST, records)
    shown = capsys.readouterr().out
    assert shown.count("0/9!") == 1
    assert "another anchor" in shown


def test_nothing_is_marked_where_all_agree(capsys: pytest.CaptureFixture[str]) -> None:
    _print_table(RUN_ID, MANIFEST, records_of(A=b"b", B=b"b"))
    assert "!" not in capsys.readouterr().out
