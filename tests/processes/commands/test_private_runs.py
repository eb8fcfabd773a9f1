"""A private run with real processes: who gets in, who hears nothing, and what the owner changes while it goes on."""

from __future__ import annotations

import json

from averaging.rounds.round_facts import RoundCommitted
from peer.events.peer_events import CheckpointSaved, LeftRun, RefusedPeer, RunChanged
from tests.kit.processes.process_swarm import TINY_RUN, assert_one_sentence, process_swarm, wait_until

RUN = TINY_RUN + '[access]\nmode = "invite"\n'
SOON_SECONDS = 180.0
SLOW_SECONDS = 0.25
"""Of a step: the peers train while a dozen commands run beside them, and need no more than a few rounds."""
LOCAL = ("--listen", "/ip4/127.0.0.1/tcp/0", "--device", "cpu", "--json")


def test_an_invited_peer_trains_strangers_hear_nothing_and_a_revocation_is_followed() -> None:
    with process_swarm(RUN) as swarm:
        owner, invite = str(swarm.folder_of("owner")), str(swarm.folder / "friend.invite")
        seed = swarm.start("owner", command="seed")
        wait_until(lambda: "Listening on" in seed.stderr, "the seed is up", SOON_SECONDS)
        given = swarm.call("invite", "--data-dir", owner, "--one-time", "--out", invite)
        assert (given.returncode, given.stderr) == (0, "")
        data = ("--data", f"text:{swarm.text}")
        friend = swarm.start("friend", "--invite", invite, "--max-steps", "1000000", step_seconds=SLOW_SECONDS)
        friend.wait_joined(seconds=SOON_SECONDS)
        # The seed remembers who used the invite, also when it is started again.
        seed.kill_all()
        seed = swarm.start("owner", command="seed", port=seed.port)
        friend.wait_for(RoundCommitted)

        reused = swarm.call(
            *("join", "--invite", invite, "--data-dir", str(swarm.folder / "other"), *data, *LOCAL),
            environment={"XDG_DATA_HOME": str(swarm.folder / "elsewhere" / "other")},
        )
        assert reused.returncode == 4
        assert "Listening on" not in reused.stderr
        assert_one_sentence(
            reused.stderr,
            "one-time invite was already used by another key",
            "ask the owner of the run for an invite for that key",
        )

        stranger = swarm.call(
            *("join", "--run-id", swarm.run_id, "--peers", seed.address, "--join-timeout", "0"),
            *("--data-dir", str(swarm.folder / "stranger"), *data, *LOCAL),
            environment={"XDG_DATA_HOME": str(swarm.folder / "elsewhere" / "stranger")},
        )
        assert stranger.returncode == 3
        assert_one_sentence(stranger.stderr, r"No member (of \S+ )?answered", "--invite")
        seed.wait_for(RefusedPeer, lambda event: "no membership proof" in event.reason or "list" in event.reason)

        watching = str(swarm.folder / "watching.invite")
        assert swarm.call("invite", "--data-dir", owner, "--one-time", "--out", watching).returncode == 0
        look = ("status", "--run-id", swarm.run_id, "--peers", seed.address, "--timeout", "20", "--json")
        unseen = swarm.call(*look)
        assert unseen.returncode == 3
        assert_one_sentence(unseen.stderr, "a private run needs --invite FILE")
        # The first look uses the invite up, the next ones have what it became; both transports show it.
        for more in (("--invite", watching, "--host-backend", "p2pd"), ()):
            seen = swarm.call(*look, *more)
            assert (seen.returncode, seen.stderr) == (0, "")
            assert friend.peer_id in {peer["peer_id"] for peer in json.loads(seen.stdout)["peers"]}

        site = str(swarm.folder / "site.invite")
        key = swarm.identity_of("site").peer_id
        assert swarm.call("invite", "--data-dir", owner, "--key", key, "--out", site).returncode == 0
        # Before it joins, with the key and the invite that it will join with.
        doctor = ("doctor", "--invite", site, "--data-dir", str(swarm.folder_of("site")), "--device", "cpu", "--json")
        asked = swarm.call(*doctor)
        assert (asked.returncode, asked.stderr) == (0, "")
        assert json.loads(asked.stdout)["facts"]["run"]["num_members"] >= 2
        trainer = swarm.start("site", "--invite", site, step_seconds=SLOW_SECONDS)
        trainer.wait_joined(seconds=SOON_SECONDS)
        trainer.wait_common_round(friend.peer_id, after=0)

        spare = str(swarm.folder / "spare.invite")
        assert swarm.call("invite", "--data-dir", owner, "--key", friend.peer_id, "--out", spare).returncode == 0
        revoked = swarm.call("revoke", "--data-dir", owner, "--key", friend.peer_id)
        assert (revoked.returncode, revoked.stderr) == (0, "")
        trainer.wait_for(RunChanged, lambda event: event.revision == 2)
        assert friend.wait_end(SOON_SECONDS) == 4
        assert_one_sentence(friend.stderr, r"owner of the run revoked this (peer's )?key", "ask the owner")
        assert any(isinstance(event.fact, CheckpointSaved) for event in friend.events())
        assert not friend.family()
        again = swarm.call(
            *("join", "--run-id", swarm.run_id, "--data-dir", str(swarm.folder_of("friend"))), *data, *LOCAL
        )
        assert again.returncode == 4
        assert_one_sentence(again.stderr, "owner of the run revoked this", "ask the owner")
        listed = swarm.call("members", "--data-dir", owner, "--json")
        states = {invite["key"]: invite["state"] for invite in json.loads(listed.stdout)["invites"]}
        assert (states[friend.peer_id], states[key]) == ("revoked", "good")

        # It goes on for those who stay, and ends on all of them at the stated version.
        end = max(trainer.versions().values()) + 5
        assert swarm.call("manifest", "edit", "--data-dir", owner, "--at-version", str(end), "--end").returncode == 0
        assert swarm.call("manifest", "sign", "--data-dir", owner).returncode == 0
        published = swarm.call("manifest", "publish", "--data-dir", owner)
        assert (published.returncode, published.stderr) == (0, "")
        assert trainer.wait_end(SOON_SECONDS) == 0, trainer.last_words()
        assert seed.wait_end(SOON_SECONDS) == 0
        for peer in (trainer, seed):
            assert [
                event.fact.end_version
                for event in peer.events()
                if isinstance(event.fact, RunChanged) and event.fact.has_ended
            ] == [end]
            left = [event.fact for event in peer.events() if isinstance(event.fact, LeftRun)]
            assert left[-1].reason == "the run has ended"
        assert not swarm.processes()
