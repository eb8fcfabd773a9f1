"""Prepared shards on a web server, which may break off, lie and forget."""

from __future__ import annotations

import pytest

from dht.ground.errors import LocalFault, UsageFault
from peer.trainer.data import fetching_within_disk_limit as module
from peer.trainer.data.corpus import open_corpus
from peer.trainer.data.shard_download import WebStock
from tests.kit.trainer.prepared_data import prepared
from tests.kit.trainer.shard_server import ShardServer
from tests.kit.waiting import wait_until


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def server(made):
    found = ShardServer(made[0])
    yield found
    found.close()


def test_only_what_is_read_is_downloaded_and_only_once(made, server, tmp_path):
    _, meta, digest, _ = made
    stock = WebStock(server.url, digest, tmp_path, lambda text: None, is_own=True)
    training, folder = stock.corpus_parts(300)
    expected = ["/meta.json", *(f"/{shard.name}" for shard in meta.held_out)]
    assert [path for path, _ in server.requests] == expected
    assert training.group_range(1) is None
    stock.fetch(meta.training[1])
    training.let_go()
    assert training.group_range(1)[1] == meta.training[1].tokens
    # Those who have the folder, and those who download, share the epoch.
    here = open_corpus(f"tokens:{made[0]}", vocab_size=300, context=16, held_out_fraction=0.1)
    assert training.identity == here.training.identity
    again = WebStock(server.url, digest, tmp_path, lambda text: None, is_own=True)
    again.corpus_parts(300)
    again.fetch(meta.training[1])
    assert len(server.requests) == len(expected) + 1
    assert folder.facts().startswith(f"1 of {len(meta.training)} shards")


def test_a_download_that_breaks_off_goes_on_where_it_was(made, server, tmp_path):
    shard = made[1].training[0]
    stock = WebStock(server.url, made[2], tmp_path, lambda text: None, is_own=True)
    server.cut = 3000
    with pytest.raises(LocalFault, match=rf"{shard.name} (ended .* early|cannot be fetched)"):
        stock.fetch(shard)
    server.cut = None
    stock.fetch(shard)
    assert server.requests[-1] == (f"/{shard.name}", "bytes=3000-")


def test_a_shard_that_the_disk_has_spoilt_or_that_was_deleted_is_downloaded_again(made, server, tmp_path):
    _, meta, digest, _ = made
    notes: list[str] = []
    stock = WebStock(server.url, digest, tmp_path, notes.append, is_own=True)
    training, folder = stock.corpus_parts(300)
    stock.fetch(meta.training[0])
    path = folder.folder / meta.training[0].name
    path.write_bytes(bytes(path.stat().st_size))
    assert training.group_range(0) is None
    assert not path.exists()
    assert notes == [notes[0]]
    assert "downloads it again" in notes[0]
    training.want([0])
    wait_until(lambda: training.let_go() or training.group_range(0) is not None, "the shard to come again")


def test_shards_beyond_the_limit_make_room_for_those_that_are_wanted(made, server, tmp_path):
    _, meta, digest, _ = made
    sizes = [meta.num_bytes(shard) for shard in meta.training]
    of_held_out = sum(meta.num_bytes(shard) for shard in meta.held_out)
    limit = of_held_out + max(sizes) + min(sizes)
    stock = WebStock(server.url, digest, tmp_path, lambda text: None, limit_bytes=limit, is_own=True)
    training, folder = stock.corpus_parts(300)

    def here() -> set[int]:
        training.let_go()
        return {group for group in range(len(sizes)) if (folder.folder / meta.training[group].name).exists()}

    last = len(sizes) - 1
    for group in (0, 1, last, 0):
        training.want([group])
        wait_until(lambda group=group: group in here(), f"shard {group}")
        assert training.group_range(group)[1] == meta.training[group].tokens
        training.read(group, 0, 8)
        shards = [path.stat().st_size for path in folder.folder.iterdir() if path.suffix in (".u16", ".u32")]
        assert of_held_out < sum(shards) <= limit
    assert [path for path, _ in server.requests].count(f"/{meta.training[0].name}") == 2


def test_what_a_server_changes_is_refused(made, server, tmp_path):
    with pytest.raises(UsageFault, match=r"has digest .*data\.digest"):
        WebStock(server.url, "f" * 64, tmp_path, lambda text: None, is_own=True)
    stock = WebStock(server.url, made[2], tmp_path, lambda text: None, is_own=True)
    shard = made[1].training[0]
    draft = next(path for path in tmp_path.iterdir() if path.name == made[2][:16]) / f"{shard.name}.part"
    draft.write_bytes(b"wrong")
    with pytest.raises(UsageFault, match=rf"{shard.name}.* has digest"):
        stock.fetch(shard)
    assert not draft.exists()
    stock.fetch(shard)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 302 Found\r\nLocation: file:///etc/hostname\r\n\r\n", "it redirects to file: instead of http:"),
        (b"HTTP/1.0 307 Found\r\nLocation: ftp://127.0.0.1:1/x\r\n\r\n", "it redirects to ftp: instead of http:"),
        (b"HTTP/1.0 302 Found\r\nLocation: //[bad\r\n\r\n", "it redirects to no address instead of http:"),
        (b"HTTP/1.0 500 \x1b[31mred\r\n\r\n", "status 500"),
        (b"\x1b[31mnonsense\r\n\r\n", r"\[31mnonsense"),
    ],
    ids=["file", "ftp", "no address", "status", "no http"],
)
def test_a_server_that_answers_nonsense_or_sends_elsewhere_is_a_sentence(made, server, tmp_path, answer, reason):
    shard = made[1].training[0]
    stock = WebStock(server.url, made[2], tmp_path, lambda text: None, is_own=True)
    server.answer = answer
    with pytest.raises(LocalFault, match=rf"{shard.name} cannot be fetched \({reason}\); expected") as caught:
        stock.fetch(shard)
    assert str(caught.value).isprintable()


def test_a_server_that_is_gone_is_a_sentence_after_some_tries(made, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSES_SECONDS", (0.0, 0.0, 0.0))
    server, notes = ShardServer(made[0]), []
    server.close()
    with pytest.raises(LocalFault, match=r"meta\.json cannot be fetched"):
        WebStock(server.url, made[2], tmp_path, notes.append, is_own=True)
    assert len(notes) == 3
    gone = ShardServer(tmp_path)
    with pytest.raises(LocalFault, match="status 404"):
        WebStock(gone.url, made[2], tmp_path, notes.append, is_own=True)
    gone.close()
