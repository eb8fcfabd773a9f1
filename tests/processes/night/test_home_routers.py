"""Real peers behind home routers that translate addresses: each of them contributes to rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nat_lab.spaces import what_is_missing

MISSING = what_is_missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

ADDRESSES = ("203.0.113.9", "198.18.0.9", "240.0.0.9", "100.64.0.9", "169.254.7.9", "172.17.0.9")
"""Three of ranges that libp2p passes on as names alone, of carrier-grade NAT, of a link alone, of docker's bridge."""
THROUGH_A_THIRD = """
import asyncio, subprocess, sys
from dht.identity.keys import Identity
from dht.p2pd.host import P2pdHost

async def run(ip):
    first, second, third = [P2pdHost(Identity.generate(), ["/ip4/0.0.0.0/tcp/0"]) for _ in range(3)]
    second.handle("/murmuration/test/1", lambda stream: stream.send(b"here"))
    async with first, second, third:
        for host in (first, second):
            await host.connect(third.addresses()[0], 5.0)
        await asyncio.sleep(1.0)
        stream = await first.open_stream(second.peer_id, "/murmuration/test/1", 5.0)
        assert await stream.receive(10) == b"here"
        assert all(f"/ip4/{ip}/" in address for address in first.addresses())

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", sys.argv[1], "dev", "lo"], check=True)
asyncio.run(run(sys.argv[1]))
"""
LAB = [sys.executable, "-m", "benchmarks.nat_lab", "--seeds", "2", "--minutes", "2", "--json"]


@pytest.mark.parametrize("nats", ["public,cone", "cone,cone", "cone,symmetric"])
def test_every_home_contributes_whatever_its_router(nats: str) -> None:
    root = Path(__file__).parents[3]
    ended = subprocess.run([*LAB, "--nats", nats], capture_output=True, text=True, cwd=root, check=False)
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert facts["rounds"] > 0
    assert len(facts["homes"]) == 2
    assert all(home["rounds"] > 0 for home in facts["homes"]), facts["homes"]


@pytest.mark.parametrize("ip", ADDRESSES)
def test_two_peers_find_each_other_through_a_third_whatever_their_addresses(ip: str) -> None:
    command = ["unshare", "--net", sys.executable, "-c", THROUGH_A_THIRD, ip]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
    assert ended.returncode == 0, ended.stderr
