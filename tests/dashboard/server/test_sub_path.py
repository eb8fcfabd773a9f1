"""A page below a path of its address works behind a proxy that takes the path away, and behind one that leaves it."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiohttp.test_utils import TestClient, TestServer

from dashboard.server.routes import also_below_its_base
from dashboard.share.page_address import checked_address, path_of
from tests.kit.dashboard.records import PEERS, record_of, state_with
from tests.kit.dashboard.serving import in_memory

ADDRESS = "https://example.org/swarms/starlings/"


@pytest.mark.parametrize("path", ["", "/swarms/starlings"])
def test_every_link_of_a_page_below_a_path_leads_somewhere(path: str) -> None:
    async def check() -> None:
        base = path_of(checked_address(ADDRESS))
        origin = "https://example.org"
        async with (
            in_memory(state_with(record_of(PEERS[0])), base=base, page_address=origin) as (_, app),
            TestClient(TestServer(also_below_its_base(app))) as client,
        ):
            html = await (await client.get(f"{path}/")).text()
            links = set(re.findall(r'(?:href|src)="(/[^"#?]*)', html))
            assert f"{base}/" in links
            assert all(link.startswith(f"{base}/") for link in links)
            assert f'data-base="{base}"' in html
            for link in links:
                answer = await client.get(path + link.removeprefix(base))
                assert answer.status == 200, link
            assert f"{origin}{base}/" in html
            assert (await client.get(f"{path}/api/v1/join")).status == 200

    asyncio.run(check())
