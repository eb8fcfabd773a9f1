"""Profiles of contributors: what they may hold, who may change them, and that what was hidden stays hidden."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.collect.profiles import take_over
from dashboard.history.history import open_history
from dht.ground.errors import LocalFault, PeerFault, UsageFault
from dht.identity.keys import Identity
from dht.records.profiles import (
    MAX_MACHINES,
    MAX_PROFILE_BYTES,
    MAX_PROFILE_LIFE_SECONDS,
    Profile,
    clean_name,
    decode_profile,
    encode_profile,
)
from peer.cli import app
from peer.network.membership.profile_file import (
    Choice,
    changed,
    choice_path,
    merged,
    profile_of,
    read_choice,
    write_choice,
)
from peer.network.membership.profile_publisher import Contributing, newest_profiles
from tests.kit.dashboard.records import NOW, RUN_ID, record_of, state_with
from tests.kit.network.memory_networks import fixed_network, named
from tests.simulator.network.host import MemoryHost
from tests.simulator.network.store import MemoryRecords, MemoryStore

ADA = Identity.from_seed(b"a" * 32)
EVE = Identity.from_seed(b"e" * 32)
FIRST, SECOND = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
CHOICE = Choice(7, NOW, "Ada", "NL", False, tuple(sorted((FIRST.peer_id, SECOND.peer_id))))


def profile(**changes: object) -> Profile:
    return replace(profile_of(CHOICE, ADA, RUN_ID, NOW), **changes)  # type: ignore[arg-type]


def test_a_profile_comes_back_and_its_longest_form_fits():
    for one in (profile(), profile(team="Night owls")):
        assert decode_profile(encode_profile(one, ADA), run_id=RUN_ID, now=NOW) == one
    machines = tuple(sorted(named(number) for number in range(MAX_MACHINES)))
    longest = profile(machines=machines, name="\U0001f426" * 40, team="\U0001f426" * 40)
    assert len(encode_profile(longest, ADA)) <= MAX_PROFILE_BYTES


@given(st.data())
def test_any_changed_byte_is_refused(data: st.DataObject):
    encoded = bytearray(encode_profile(profile(), ADA))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PeerFault):
        decode_profile(bytes(encoded), run_id=RUN_ID, now=NOW)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"name": "x" * 41}, "at most 40 printable"),
        ({"name": "a\u202eb"}, "printable"),
        ({"name": " a"}, "trimmed"),
        ({"name": "\uff21da"}, "normal form"),
        ({"team": "x" * 41}, "at most 40 printable"),
        ({"team": "a "}, "trimmed"),
        ({"country": "XX"}, "two letters of ISO 3166"),
        ({"country": "nl"}, "two letters of ISO 3166"),
        ({"is_hidden": True}, "a name, country or team in a hidden profile"),
        ({"machines": (SECOND.peer_id, SECOND.peer_id)}, "each once, in order"),
        ({"machines": tuple(sorted(named(number) for number in range(65)))}, "65 machines; expected at most 64"),
        ({"sequence": -1}, "a whole number from 0"),
        ({"contributor_id": EVE.peer_id}, "to be signed by"),
    ],
)
def test_what_no_profile_may_hold(changes: dict[str, object], sentence: str):
    with pytest.raises(ValueError, match=sentence):
        encode_profile(profile(**changes), ADA)


def test_another_run_or_time_is_refused():
    encoded = encode_profile(profile(), ADA)
    for run_id, now in (("other.abcdefghij234567abcd", NOW), (RUN_ID, NOW + 10**7), (RUN_ID, NOW - 10**5)):
        with pytest.raises(PeerFault):
            decode_profile(encoded, run_id=run_id, now=now)


@given(st.text(max_size=60))
@example("e\u200d\u0301 is a letter, a joiner and an accent")
def test_every_text_becomes_a_name_that_is_accepted(text: str):
    name = clean_name(text)
    assert clean_name(name) == name
    encode_profile(profile(name=name), ADA)


# --- the choice, and what running machines make of it ---


def test_a_choice_survives_its_file(tmp_path: Path):
    path = choice_path(tmp_path / "contributor.key")
    assert read_choice(path) == Choice()
    write_choice(path, CHOICE)
    assert read_choice(path) == CHOICE
    written = json.loads(path.read_bytes())
    wrong = {**written, "sequence": "x"}
    endless = json.dumps({**written, "issued_at": 1e308}).replace("1e+308", "1e999")
    for content in (b"", b"[]", b"{}", b'{"name": 3}', json.dumps(wrong).encode(), endless.encode()):
        path.write_bytes(content)
        with pytest.raises(UsageFault, match="is not a profile"):
            read_choice(path)


def test_machines_of_one_person_end_with_one_list_and_the_newest_name():
    one = merged(Choice(), None, FIRST.peer_id, NOW)
    two = merged(Choice(), profile_of(one, ADA, RUN_ID, NOW), SECOND.peer_id, NOW + 1)
    assert two.machines == CHOICE.machines
    renamed = changed(one, NOW + 2, name="Countess", team="Owls")
    assert merged(renamed, profile_of(two, ADA, RUN_ID, NOW), FIRST.peer_id, NOW + 3).name == "Countess"
    assert merged(two, profile_of(renamed, ADA, RUN_ID, NOW), FIRST.peer_id, NOW + 3).team == "Owls"
    hidden = changed(two, NOW + 3, is_hidden=True)
    back = merged(renamed, profile_of(hidden, ADA, RUN_ID, NOW), FIRST.peer_id, NOW + 4)
    assert (back.is_hidden, back.name, back.country) == (True, "", "")
    assert changed(hidden, NOW, name="Ada").sequence > hidden.sequence


def test_a_running_machine_publishes_it_and_a_replayed_one_changes_nothing(tmp_path: Path):
    async def scenario() -> None:
        network = fixed_network()
        records = MemoryRecords(network, lambda: NOW)
        stores = [MemoryStore(records, MemoryHost(network, person.peer_id)) for person in (FIRST, SECOND)]
        key_path = tmp_path / "contributor.key"
        write_choice(choice_path(key_path), replace(CHOICE, machines=()))
        machine = Contributing(stores[0], ADA, key_path, RUN_ID, FIRST.peer_id, lambda: NOW)
        assert await machine.publish() == 1
        seen = (await newest_profiles(stores[1], RUN_ID, NOW)).get(ADA.peer_id)
        assert seen is not None
        assert (seen.name, seen.machines) == ("Ada", (FIRST.peer_id,))
        write_choice(choice_path(key_path), changed(read_choice(choice_path(key_path)), NOW + 1, is_hidden=True))
        await machine.publish()
        old = encode_profile(replace(seen, expires_at=NOW + MAX_PROFILE_LIFE_SECONDS), ADA)
        await stores[1].publish_profile(RUN_ID, ADA.peer_id, old, NOW + MAX_PROFILE_LIFE_SECONDS)
        seen = (await newest_profiles(stores[1], RUN_ID, NOW)).get(ADA.peer_id)
        assert seen is not None
        assert seen.is_hidden
        with pytest.raises(PeerFault):
            await stores[0].publish_profile(RUN_ID, EVE.peer_id, old, NOW + MAX_PROFILE_LIFE_SECONDS)
        choice_path(key_path).write_text("{")
        with pytest.raises(LocalFault):
            await machine.publish()

    asyncio.run(scenario())


def test_a_change_of_the_file_is_published_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who hides a name wants it gone now, not with the next publication minutes later."""
    monkeypatch.setattr("peer.network.membership.profile_publisher.GLANCE_SECONDS", 0.01)

    async def scenario() -> None:
        network = fixed_network()
        records = MemoryRecords(network, lambda: NOW)
        stores = [MemoryStore(records, MemoryHost(network, person.peer_id)) for person in (FIRST, SECOND)]
        key_path = tmp_path / "contributor.key"
        write_choice(choice_path(key_path), CHOICE)

        async def until_hidden(is_hidden: bool) -> None:
            for _ in range(2000):
                seen = (await newest_profiles(stores[1], RUN_ID, NOW)).get(ADA.peer_id)
                if seen is not None and seen.is_hidden == is_hidden:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError("it was not published")

        running = asyncio.create_task(Contributing(stores[0], ADA, key_path, RUN_ID, FIRST.peer_id, lambda: NOW).run())
        await until_hidden(False)
        write_choice(choice_path(key_path), changed(read_choice(choice_path(key_path)), NOW + 1, is_hidden=True))
        await until_hidden(True)
        running.cancel()

    asyncio.run(scenario())


# --- what the dashboard takes over ---


def test_only_a_machine_that_names_the_contributor_back_brings_its_profile_in():
    async def scenario() -> None:
        async with open_history(None, RUN_ID, clock=lambda: NOW, warn=print) as history:
            state = state_with(record_of(FIRST, contributor_key=ADA.public_key), record_of(SECOND))
            history.look(state)
            encoded = encode_profile(profile(), ADA)
            stranger = encode_profile(profile_of(CHOICE, EVE, RUN_ID, NOW), EVE)
            take_over(history, [encoded, stranger, b"", encoded[:-1]], RUN_ID, NOW)
            assert list(history.ledger.profiles) == [ADA.peer_id]
            assert history.ledger.contributor_of(FIRST.peer_id) == ADA.peer_id
            assert history.ledger.contributor_of(SECOND.peer_id) == SECOND.peer_id
            assert history.ledger.shown_name(FIRST.peer_id) == "Ada"
            hidden = profile(sequence=8, is_hidden=True, name="", country="")
            take_over(history, [encode_profile(hidden, ADA), encoded], RUN_ID, NOW)
            assert history.ledger.shown_name(FIRST.peer_id) == ""
            assert FIRST.peer_id in history.withdrawn

    asyncio.run(scenario())


# --- the command ---


def test_the_command_makes_a_key_shows_changes_and_withdraws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert app.run(["profile", "show"]) == 2
    assert "You have no profile yet" in (told := capsys.readouterr().err)
    assert "`peer profile set --name Ada` creates one" in told
    assert (
        app.run(["profile", "set", "--name", "Ada", "--country", "nl", "--machine", FIRST.peer_id, "--team", "Owls"])
        == 0
    )
    assert (tmp_path / "murmuration" / "contributor.key").stat().st_mode & 0o077 == 0
    capsys.readouterr()
    assert app.run(["profile", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["country"], shown["machines"]) == ("Ada", "NL", [FIRST.peer_id])
    assert shown["team"] == "Owls"
    assert app.run(["profile", "hide"]) == 0
    assert "name         hidden" in capsys.readouterr().out
    for flags, sentence in (
        (["--name", "x" * 41], "cannot be shown"),
        (["--team", "x" * 41], "cannot be shown"),
        (["--country", "Utopia"], "is not a country"),
        (["--machine", "nobody"], "is not a PeerId"),
    ):
        assert app.run(["profile", "set", *flags]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert "Traceback" not in said
