"""A compressed stream is a gzip file, and each piece can be read as soon as it is there."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dashboard.history.history import History
from dashboard.page.page import SECTIONS, TABS
from dashboard.server.live_updates import Live
from dashboard.server.shared_compression import HEAD, PackedEnd, packed
from tests.kit.dashboard.scene import history_of_run, state_of
from tests.kit.dashboard.serving import Client, in_site, until_tick


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_pieces_are_a_gzip_file_and_readable_one_by_one(pieces: list[bytes]) -> None:
    end, reader, stream = PackedEnd(), zlib.decompressobj(zlib.MAX_WBITS | 16), HEAD
    reader.decompress(HEAD)
    for piece in pieces:
        end.took(piece)
        stream += packed(piece)
        assert reader.decompress(packed(piece)) == piece
    assert gzip.decompress(stream + end.tail()) == b"".join(pieces)


def test_every_section_belongs_to_one_tab() -> None:
    placed = ["status", *(section for sections in TABS.values() for section in sections)]
    assert sorted(placed) == sorted(set(SECTIONS))
    assert len(placed) == len(set(placed))


def test_a_viewer_gets_what_is_in_its_tab_and_less_of_it_packed() -> None:
    live = Live(state_of(300), "boot", history_of_run(300))
    (everything, all_packed), (people, _) = live.since(0), live.since(0, "people")
    assert b'"section":"contributors"' in people
    assert b'"section":"peers"' not in people
    assert b'"section":"status"' in people
    assert live.since(0, "no such tab")[0] == everything
    for tab in TABS:
        events, piece = live.since(0, tab)
        assert zlib.decompressobj(-zlib.MAX_WBITS).decompress(piece) == events
    assert 5 * len(all_packed) < len(everything)


def test_page_and_stream_are_compressed_for_those_who_can(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        for path in ("/", "/events/stream?tab=people"):
            for wanted, expected in (("gzip", "gzip"), ("identity", None)):
                response = await client.get(path, headers={"Accept-Encoding": wanted})
                assert response.headers.get("Content-Encoding") == expected, path
                assert "Accept-Encoding" in response.headers["Vary"]
                text = await (response.text() if path == "/" else until_tick(response))
                assert "tinybytes" in text or "section" in text
                response.close()

    in_site(tmp_path, check)
