"""The run's picture: what is taken for one, and how it is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.collect.run_picture import picture_of
from dashboard.page.page import render_sections
from dashboard.server.live_updates import Live
from tests.kit.dashboard.members import in_history
from tests.kit.dashboard.records import TextOnly
from tests.kit.dashboard.scene import history_of_run, state_of
from tests.kit.dashboard.serving import Client, History, in_site

PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0" + bytes(40), "image/jpeg"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", None),
        (b"<html>\x89PNG\r\n\x1a\n", None),
        (b"GIF89a", None),
        (b"RIFF\x00\x00\x00\x00WAVE", None),
    ],
)
def test_a_picture_is_known_by_its_first_bytes(content: bytes, content_type: str | None) -> None:
    found = picture_of(content)
    assert (found.content_type if found is not None else None) == content_type


def test_the_page_serves_the_picture_and_nothing_else(tmp_path: Path) -> None:
    async def check(client: Client, live: Live, history: History) -> None:
        picture = picture_of(PNG)
        assert picture is not None
        assert (await client.get(f"/picture/{picture.mark}")).status == 404
        history.show_picture(picture)
        live.publish(live.state, history.view)
        answer = await client.get(f"/picture/{picture.mark}")
        assert (answer.status, answer.content_type, await answer.read()) == (200, "image/png", PNG)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "immutable" in answer.headers["Cache-Control"]
        assert (await client.get("/picture/other")).status == 404
        assert f'src="/picture/{picture.mark}"' in await (await client.get("/")).text()

    in_site(tmp_path, check)


def test_a_picture_is_there_after_a_restart_though_nobody_gives_it(tmp_path: Path) -> None:
    async def keep(history: History) -> None:
        assert history.stored_picture == b""
        picture = picture_of(PNG)
        assert picture is not None
        history.show_picture(picture)

    async def look(history: History) -> None:
        assert history.stored_picture == PNG

    in_history(keep, tmp_path / "history.sqlite")
    in_history(look, tmp_path / "history.sqlite")


def test_a_run_without_a_picture_shows_none() -> None:
    history = history_of_run()
    assert "img" not in TextOnly(render_sections(state_of(), history)["status"]).tags
    shown = render_sections(state_of(), replace(history, picture=picture_of(PNG)))["status"]
    assert ("alt", "") in TextOnly(shown).attributes
