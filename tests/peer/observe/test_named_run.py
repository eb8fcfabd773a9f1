"""RUN in a command line: an id, a page, a link, or the name of a run that was joined here."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dht.ground.errors import NobodyReachable, UsageFault
from dht.identity.keys import Identity, make_run_id
from dht.records.signed_manifest import encode_run_record, sign_run_record
from peer.cli import app
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig, load_config, read_cached_peers, write_cached_peers
from peer.doctor import doctor
from peer.observe import run_page
from peer.observe.ended_run import NamedRun
from peer.observe.known_addresses import check_addresses
from peer.observe.named_run import named_or_only_run, named_run, names_run, to_name_again
from peer.observe.run_and_address import checked_target
from peer.observe.run_names import near_run

OWNER = Identity.from_seed(bytes([1]) * 32)
RUN_ID, OTHER_ID = make_run_id("demo", OWNER.public_key), make_run_id("other", OWNER.public_key)
ADDRESS, ELSEWHERE = (f"/ip4/203.0.113.{last}/tcp/4001/p2p/{OWNER.peer_id}" for last in (5, 6))
PAGE = "https://run.example.org"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "murmuration"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses of pages that were asked; each refers to the run and says where it can be joined."""
    urls: list[str] = []

    def answer(url: str, **_: bool) -> NamedRun:
        urls.append(url)
        return NamedRun(RUN_ID, [ADDRESS])

    monkeypatch.setattr(run_page, "ask_page", answer)
    return urls


def config_here(page: str | None) -> PeerConfig:
    """Of a peer in whose folder the owner's manifest is."""
    config: PeerConfig = load_config({"run_id": RUN_ID})
    config.data_dir.mkdir(parents=True)
    manifest = RunManifest.from_fields({"name": "demo", **({} if page is None else {"page": page})})
    config.run_record_path.write_bytes(encode_run_record(sign_run_record(RUN_ID, manifest.to_bytes(), OWNER)))
    return config


def test_an_id_a_link_and_a_page_name_the_same_run(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert named_run(RUN_ID, None, None)[:2] == (RUN_ID, None)
    assert named_run(f"murmuration://{RUN_ID}@203.0.113.5:4001/{OWNER.peer_id}", None, None)[:2] == (RUN_ID, [ADDRESS])
    assert not asked
    assert named_run(PAGE, None, None)[:2] == (RUN_ID, [ADDRESS])
    assert capsys.readouterr().err == f"run.example.org refers to the run {RUN_ID}, with 1 address.\n", "no fault"
    assert named_run("http://run.example.org", RUN_ID, [ELSEWHERE])[:2] == (RUN_ID, [ELSEWHERE])
    assert "not protected (http)" in capsys.readouterr().err
    assert named_run(None, RUN_ID, [ADDRESS])[:2] == (RUN_ID, [ADDRESS])


@pytest.mark.parametrize("run", [RUN_ID, f"murmuration://{RUN_ID}@203.0.113.5:4001/{OWNER.peer_id}", f"{PAGE}/demo"])
def test_what_came_along_when_a_run_was_copied_is_left_out(run: str, asked: list[str]) -> None:
    meant = named_run(run, None, None)
    middle = len(run) - 30
    for copied in (
        *(f"'{run}'", f'"{run}"', f"\u201c{run}\u201d", f"<{run}>", f"`{run}`", f" {run}\n"),
        *(f"{run}.", f"({run}),", f"{run}!", f"'{run}';"),
        *(f"{run[:middle]}{between}{run[middle:]}" for between in ("\n", "\r\n    ", " ", "\u200b")),
    ):
        assert named_run(copied, None, None) == meant, copied
        assert named_run(None, copied, None) == meant, copied
        assert names_run(copied), copied
    assert set(asked) <= {f"{PAGE}/demo"}


def test_a_link_of_which_only_a_part_was_copied_is_no_wrong_run_id() -> None:
    link = f"murmuration://{RUN_ID}@203.0.113.5:4001/{OWNER.peer_id}"
    for part in (f"'{link[:60]}", link[:-1], "murmuration://", f'"{link[:-53]}'):
        with pytest.raises(UsageFault, match=r"^The link is cut off"):
            named_run(part, None, None)
    for part in (link.partition("//")[2], link.partition("@")[2], link[-60:]):
        with pytest.raises(UsageFault, match=r"is a link without its beginning"):
            named_run(part, None, None)
    with pytest.raises(UsageFault, match=r"is the address of a member; .* with --peers"):
        named_run(ADDRESS, None, None)
    with pytest.raises(UsageFault, match=r"or a page \(https://"):
        named_run("run.example.org:8080", None, None)


def test_a_name_is_enough_for_a_run_that_was_joined_here(home: Path) -> None:
    (home / RUN_ID).mkdir(parents=True)
    (home / "datasets").mkdir()
    assert named_run("demo", None, None)[:2] == (RUN_ID, None)
    for run, run_id in (("other", None), (None, "other")):
        with pytest.raises(UsageFault, match=r"'other' is neither a run id .* `peer runs` lists"):
            named_run(run, run_id, None)
    second = make_run_id("demo", Identity.from_seed(bytes([2]) * 32).public_key)
    (home / second).mkdir()
    with pytest.raises(UsageFault, match="the name of 2 runs here"):
        named_run("demo", None, None)
    with pytest.raises(UsageFault, match="Two runs are given"):
        named_run(RUN_ID, OTHER_ID, None)


def test_a_page_that_knows_nobody_yet_is_told_as_such(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = NamedRun(RUN_ID)
    monkeypatch.setattr(run_page, "ask_page", lambda url: says)
    with pytest.raises(NobodyReachable, match=f"The page {PAGE} has no address of a member of .* in a minute"):
        named_run(PAGE, None, None)
    assert named_run(PAGE, None, [ADDRESS])[:2] == (RUN_ID, [ADDRESS])
    (home / RUN_ID).mkdir(parents=True)
    (home / RUN_ID / "addresses.json").touch()
    assert named_run(PAGE, None, None)[:2] == (RUN_ID, None), "this machine may know one"
    (home / RUN_ID / "addresses.json").unlink()
    says = NamedRun(RUN_ID, is_private=True)
    assert named_run(PAGE, None, None)[:2] == (RUN_ID, None), "an invite has them"


def test_a_name_stands_for_the_run_that_was_joined_and_not_for_one_that_was_mistyped(home: Path) -> None:
    for name in (RUN_ID, make_run_id("demo", Identity.from_seed(bytes([2]) * 32).public_key)):
        (home / name).mkdir(parents=True)
        (home / name / "identity.key").touch()
    for kept in ("run.record", "owner.key", "membership.pass"):
        (home / RUN_ID / kept).touch()
        assert named_run("demo", None, None)[:2] == (RUN_ID, None)
        (home / RUN_ID / kept).unlink()
    with pytest.raises(UsageFault, match="`peer forget RUN` removes one"):
        named_run("demo", None, None)


def test_a_mistyped_run_is_named_as_it_is_here(home: Path) -> None:
    assert near_run(RUN_ID) is None
    (home / RUN_ID).mkdir(parents=True)
    wrong = RUN_ID.replace("demo", "dem0")
    for typed in ("demi", "DEMO", RUN_ID[:-1], RUN_ID[:9], wrong):
        for run, run_id in ((typed, None), (None, typed)):
            with pytest.raises(UsageFault, match=f"'{typed}' is not a run on this machine; did you mean {RUN_ID}?"):
                named_run(run, run_id, None)
    # It may be a run of its own: who answers at an address says so.
    assert named_run(wrong, None, [ADDRESS]).run_id == wrong
    assert (near_run("another"), near_run(RUN_ID)) == (None, None)
    of_two_owners = [make_run_id("x" * 40, Identity.from_seed(bytes([seed]) * 32).public_key) for seed in (1, 2)]
    (home / of_two_owners[0]).mkdir()
    assert near_run(of_two_owners[1]) is None


def test_the_page_in_the_manifest_gives_addresses_to_whoever_comes_back(asked: list[str]) -> None:
    config = config_here(PAGE)
    write_cached_peers(config.cached_peers_path, [ELSEWHERE])
    check_addresses(config)
    assert asked == [PAGE]
    assert read_cached_peers(config.cached_peers_path) == [ADDRESS, ELSEWHERE]
    check_addresses(config.model_copy(update={"peers": (ADDRESS,)}))
    assert asked == [PAGE], "addresses that were given by hand are the ones that are meant"
    config.cached_peers_path.unlink()
    assert checked_target(RUN_ID, None).addresses == [ADDRESS]


def test_a_page_of_another_run_or_of_nobody_changes_nothing(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_here(PAGE)
    write_cached_peers(config.cached_peers_path, [ELSEWHERE])
    monkeypatch.setattr(run_page, "ask_page", lambda url, **_: NamedRun(OTHER_ID, [ADDRESS]))
    check_addresses(config)
    assert f"now belongs to {OTHER_ID}, not {RUN_ID}" in capsys.readouterr().err

    def nobody(url: str, **_: bool) -> NamedRun:
        raise NobodyReachable("The page is down.")

    monkeypatch.setattr(run_page, "ask_page", nobody)
    check_addresses(config)
    assert "The page is down. Continuing with" in capsys.readouterr().err
    assert read_cached_peers(config.cached_peers_path) == [ELSEWHERE]


def test_without_an_address_nothing_is_loaded() -> None:
    with pytest.raises(UsageFault, match=f"No address of a member of {RUN_ID} is known"):
        check_addresses(load_config({"run_id": RUN_ID}))
    check_addresses(config_here(None))  # the run begins on this machine


def test_the_command_of_the_doctor_names_the_run_so_that_a_fresh_machine_finds_it(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    told: list[str] = []
    monkeypatch.setattr(doctor, "run_doctor", lambda *given: told.append(given[-1]) or 0)
    link = f"murmuration://{RUN_ID}@203.0.113.5:4001/{OWNER.peer_id}"
    named = {
        link: [link],
        PAGE: [PAGE],
        f"--run-id={PAGE}": [PAGE],
        f"{RUN_ID} --peers {ADDRESS} {ELSEWHERE}": [RUN_ID, "--peers", ADDRESS, ELSEWHERE],
    }
    for given, again in named.items():
        assert app.run(["doctor", *given.split()]) == 0
        assert shlex.split(told.pop()) == ["peer", "join", *again]
    config = config_here(None)
    write_cached_peers(config.cached_peers_path, [ADDRESS])
    assert app.run(["doctor", RUN_ID]) == 0
    assert told.pop() == f"peer join {RUN_ID}", "its address is known here"
    assert to_name_again(RUN_ID, RUN_ID, [ADDRESS], "in vite") == [RUN_ID, "--invite", f"{Path.cwd()}/in vite"]
    assert to_name_again(None, RUN_ID, [], "-") == [RUN_ID, "--invite", "-"]


def test_the_only_run_here_needs_no_name_in_status_and_key(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["key"]) == 2, "no run is here"
    config = config_here(None)
    assert named_or_only_run(None, None, None).run_id == RUN_ID
    assert named_or_only_run(None, None, [ADDRESS]).run_id is None, "addresses of which run?"
    capsys.readouterr()
    assert app.run(["key"]) == 0
    assert capsys.readouterr().out.strip() == Identity.load_or_create(config.identity).peer_id
    asked: list[str | None] = []

    def look(run_id: str | None, *rest: object) -> None:
        asked.append(run_id)
        raise UsageFault("looked")

    monkeypatch.setattr("peer.cli.status.checked_target", look)
    assert app.run(["status"]) == 2
    assert asked == [RUN_ID]
    (home / OTHER_ID).mkdir()
    assert app.run(["status"]) == 2
    assert asked == [RUN_ID, None], "of two it is asked which"
