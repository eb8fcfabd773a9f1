"""Signed records of peers, and of a run."""

from __future__ import annotations

import time

from dht.admission.admission import Admission, MemberRules
from dht.ground.host import PeerId
from dht.identity.keys import Identity, make_run_id
from dht.records.peer_record import encode_peer_record
from dht.records.signed_manifest import encode_run_record, sign_run_record
from tests.kit.records import make_record

OWNER = Identity.generate()
RUN_ID = make_run_id("tiny", OWNER.public_key)


def signed_record(
    identity: Identity, life_seconds: float = 90.0, sequence: int = 1, level: int = 0
) -> tuple[bytes, float]:
    expires_at = time.time() + life_seconds
    record = make_record(
        identity.peer_id,
        run_id=RUN_ID,
        sequence=sequence,
        expires_at=expires_at,
        level=level,
        started_at=0.0,
    )
    return encode_peer_record(record, identity), expires_at


def run_record(revision: int) -> bytes:
    return encode_run_record(sign_run_record(RUN_ID, b'{"revision":%d}' % revision, OWNER))


def open_admission(*revoked: PeerId) -> Admission:
    """Of a member of the open run `RUN_ID`, which has revoked these keys."""
    rules = MemberRules("open", OWNER.public_key, revoked=frozenset(revoked))
    return Admission(Identity.generate(), RUN_ID, time.time, lambda: bytes(16), rules=rules)
