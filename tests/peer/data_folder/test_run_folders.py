"""One's own seed that does not run is named by every command that looks for members, in the words of `peer join`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dht.ground.errors import UsageFault
from dht.identity.keys import Identity
from peer.config.peer_config import ADDRESSES_NAME, PeerConfig, write_cached_peers
from peer.data_folder.data_folder_choice import hold_folder
from peer.data_folder.folder_lock import FolderLock
from peer.data_folder.run_folders import remember_place, stopped_seed
from peer.observe.run_and_address import checked_target
from peer.user_folders import OWNER_KEY_NAME

RUN_ID = "own." + "a" * 20
ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"


@pytest.mark.parametrize(("place", "flags"), [(RUN_ID, ""), (f"{RUN_ID}-2", ""), ("owner", " --data-dir {folder}")])
def test_it_is_named_with_its_command(
    place: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / ("murmuration" if place.startswith(RUN_ID) else "") / place
    folder.mkdir(parents=True)
    remember_place(RUN_ID, folder)
    write_cached_peers(folder / ADDRESSES_NAME, [ADDRESS])
    seed = FolderLock(folder, "peer seed")
    assert stopped_seed(RUN_ID) is None
    checked_target(RUN_ID, None)
    assert capsys.readouterr().err == "", "it runs"
    seed.close()
    said = (
        f"he run's seed on this machine is not running; start it with `peer seed {RUN_ID}{flags.format(folder=folder)}`"
    )
    assert checked_target(RUN_ID, None).addresses == [ADDRESS]
    assert capsys.readouterr().err == f"T{said}.\n"
    checked_target(RUN_ID, [ADDRESS])
    assert capsys.readouterr().err == "", "others were named"
    _, held = hold_folder(PeerConfig(run_id=RUN_ID), "peer join")
    held.give_up()
    assert held.sentence == f"t{said}"


def test_the_owner_of_a_run_that_never_began_hears_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = tmp_path / "murmuration" / RUN_ID
    folder.mkdir(parents=True)
    with pytest.raises(UsageFault, match=r"which `peer seed` prints, or the address of its page\.$"):
        checked_target(RUN_ID, None)
    (folder / OWNER_KEY_NAME).touch()
    with pytest.raises(UsageFault, match=rf"This run is yours: start its seed with `peer seed {RUN_ID}`\.$"):
        checked_target(RUN_ID, None)
