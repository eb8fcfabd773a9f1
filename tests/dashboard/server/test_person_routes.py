"""Addresses about one person, over HTTP."""

from __future__ import annotations

from pathlib import Path

from dashboard.history.history import History
from dashboard.server.live_updates import Live
from dashboard.server.page_access import PageAccess
from tests.kit.dashboard.records import profile_of
from tests.kit.dashboard.serving import ADA, IDS, TOKEN, Client, in_site

PROFILE = profile_of(ADA.peer_id, IDS[0], name="Ada Ö", team="Owls")


def test_a_missing_page_says_so_and_a_persons_page_has_a_card(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        missing = await client.get("/no/where", headers={"Accept": "text/html,*/*;q=0.8"})
        text = await missing.text()
        assert (missing.status, missing.content_type) == (404, "text/html")
        assert "mistyped" in text
        assert '<a href="/">' in text
        assert '<link rel="stylesheet"' in text
        assert "default-src 'none'" in missing.headers["Content-Security-Policy"]
        page = await (await client.get(f"/c/{ADA.peer_id}", headers={"Host": "run.example.org"})).text()
        assert f'property="og:image" content="http://run.example.org/card/{ADA.peer_id}.png"' in page
        assert f"http://run.example.org/c/{ADA.peer_id}</code>" in page
        assert "team <bdi>Owls</bdi>" in page
        assert "signed by" in page

    in_site(tmp_path, check, profile=PROFILE)


def test_a_host_of_somebodys_invention_is_nowhere_in_the_page(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        page = await (await client.get("/", headers={"Host": 'evil"><script>alert(1)</script>'})).text()
        assert "alert(1)" not in page
        assert "og:image" not in page

    in_site(tmp_path, check)


def test_certificate_and_cards(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        paper = await (await client.get(f"/c/{ADA.peer_id}/certificate")).text()
        assert "Ada Ö" in paper
        # An address of this machine alone helps nobody who is shown the paper.
        assert f"/api/v1/contributors/{ADA.peer_id}/proof" not in paper
        assert "Anyone who has the file can check them" in paper
        assert (
            "That is every fourth token of the run, rank 4 of 4 contributors. The work was done on 17 March 2030."
            in paper
        )
        assert " in 1 round" not in paper, "which may be one without the others who signed"
        assert "<script" not in paper
        there = {"Host": "run.example.org"}
        paper = await (await client.get(f"/c/{ADA.peer_id}/certificate", headers=there)).text()
        assert f"http://run.example.org/api/v1/contributors/{ADA.peer_id}/proof" in paper
        for name in ("run", ADA.peer_id):
            card = await client.get(f"/card/{name}.png")
            assert card.headers["Content-Type"] == "image/png"
            assert "public" in card.headers["Cache-Control"]
        assert (await client.get("/card/nobody.png")).status == 404

    in_site(tmp_path, check, profile=PROFILE)


def test_a_private_page_promises_no_picture_that_nobody_could_load(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        page = await (await client.get("/", headers={**allowed, "Host": "run.example.org"})).text()
        assert "og:image" not in page
        assert (await client.get("/card/run.png")).status == 401

    in_site(tmp_path, check, access=PageAccess(TOKEN))
