"""Records of three peers for hypothesis: any session, sequence, life and anchors."""

from __future__ import annotations

from hypothesis import strategies as st

from dht.records.peer_record import PEER_STATES, PeerRecord
from tests.kit.records import NOW, make_record


@st.composite
def any_records(draw: st.DrawFn) -> PeerRecord:
    session = draw(st.integers(1, 3))
    num_fragments = draw(st.integers(0, 2))
    return make_record(
        draw(st.sampled_from("ABC")),
        session=session,
        sequence=draw(st.integers(0, 3)),
        expires_at=NOW + draw(st.integers(-10, 100)),
        started_at=NOW - draw(st.sampled_from([5.0, 5.0, 10.0])) * session,
        state=draw(st.sampled_from(PEER_STATES)),
        role=draw(st.sampled_from(["trainer", "seed"])),
        versions=(draw(st.integers(0, 2)),) * num_fragments,
        digests=(draw(st.sampled_from([b"1" * 8, b"2" * 8])),) * num_fragments,
        lineage_tokens=(draw(st.integers(0, 2)),) * num_fragments,
    )
