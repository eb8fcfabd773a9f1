"""A run's owner does not choose which files of a volunteer are read: what a manifest may name, and which files are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from dht.ground.errors import UsageFault
from peer.config.data_source import source_here
from peer.config.manifest import RunManifest
from peer.config.peer_config import PeerConfig
from peer.owner.new_run import create_custom_run, create_run
from peer.trainer.data.corpus import open_corpus
from peer.user_folders import paths_in

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----\n"
PATHS = ("text:~/.ssh", "text:/dev/zero", "text:/", "tokens:../../x.u16", "text:.", "text: ", "tokens:~root/x,/etc")


def corpus_of(source: str, context: int = 16):
    return open_corpus(source, vocab_size=256, context=context, held_out_fraction=0.1)


def run_file(folder: Path, source: str) -> Path:
    path = folder / "run.toml"
    path.write_text(f'[data]\nsource = "{source}"\n')
    return path


# ----------------------------------------------------------------------------------------------- what a manifest names


@pytest.mark.parametrize("source", PATHS)
def test_a_path_in_a_manifest_is_not_followed(source: str) -> None:
    with pytest.raises(ValueError, match="a path that would be read on every volunteer's machine"):
        RunManifest.from_fields({"name": "old", "data": {"source": source}})


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_kind_asks_the_volunteer(kind: str) -> None:
    with pytest.raises(UsageFault, match=f"give --data {kind}:PATH"):
        source_here(f"{kind}:", None)
    assert source_here(f"{kind}:", f"{kind}:mine") == f"{kind}:mine"


def test_bytes_are_not_trained_on_as_tokens_of_a_tokenizer() -> None:
    for named in ("tokens:", "tokens:/old/path"):
        for own in ("text:books", "stdlib:"):
            with pytest.raises(UsageFault, match=r"this run reads token shards.*contains bytes"):
                source_here(named, own)
    # Shards of bytes are text all the same.
    assert source_here("text:", "tokens:bytes.u16") == "tokens:bytes.u16"


def test_a_run_that_names_its_shards_takes_no_other_data() -> None:
    for own in ("text:books", "jsonl:rows", "stdlib:", "hf:org/name@v1"):
        with pytest.raises(UsageFault, match=r"same prepared shards \(data\.digest\).*give --data tokens:PATH"):
            source_here("tokens:", own, True, "0" * 64)
    assert source_here("tokens:", "tokens:mine", True, "0" * 64) == "tokens:mine"
    # A loss may be measured on any text, and shards that are named by nobody may give way to text.
    assert source_here("tokens:", "text:books", True) == "text:books"


@pytest.mark.parametrize("source", PATHS)
def test_an_owner_cannot_sign_a_path(source: str, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"would be read on every volunteer's machine.*peer join --data"):
        create_run("new", run_file(tmp_path, source), tmp_path / "owner")
    with pytest.raises(UsageFault, match="would be read on every volunteer's machine"):
        create_custom_run("new", nn.Linear(4, 4), {"data": {"source": source}}, tmp_path / "owner")
    assert not (tmp_path / "owner").exists()  # no key was made for it


def test_a_volunteer_cannot_give_a_kind_without_a_path() -> None:
    for data in ("text:", "tokens:"):
        with pytest.raises(ValueError, match="data"):
            PeerConfig.model_validate({"run_id": "any.aaaaaaaaaaaaaaaaaaaa", "data": data})


# ------------------------------------------------------------------------------------------------- which files are read


def test_pipes_devices_and_sockets_are_refused_in_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.txt").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path, what in (
            (tmp_path / "pipe", "named pipe"),
            (tmp_path / "link.txt", "named pipe"),
            (tmp_path / "socket", "socket"),
            (Path("/dev/zero"), "device"),
            (Path("/dev/null"), "device"),
        ):
            with pytest.raises(UsageFault, match=what):
                corpus_of(f"text:{path}")


def test_a_folder_is_read_without_what_is_no_file_or_leads_out(tmp_path: Path) -> None:
    books, keys = tmp_path / "books", tmp_path / "id_rsa"
    books.mkdir()
    keys.write_text(SECRET * 50)
    (books / "one.txt").write_text("a" * 1000)
    (books / "again.txt").symlink_to("one.txt")
    (books / "key.txt").symlink_to(keys)
    (books / "zero").symlink_to("/dev/zero")
    (books / "gone").symlink_to("nothing")
    os.mkfifo(books / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(books / "socket"))
        corpus = corpus_of(f"text:{books}")
    assert set(corpus.training.names) == {"again.txt", "one.txt"}
    whole = np.concatenate([part.read(0, part.num_tokens) for part in (corpus.training, corpus.held_out)])
    assert set(whole.tolist()) == {ord("a")}
    assert corpus.facts == "2 files, 2.00 kB; left out 5 entries that lead out of the folder or are not files"


def test_a_folder_of_links_that_lead_out_says_so(tmp_path: Path) -> None:
    books, keys = tmp_path / "books", tmp_path / "id_rsa"
    books.mkdir()
    keys.write_text(SECRET * 50)
    (books / "key.txt").symlink_to(keys)
    with pytest.raises(UsageFault, match=r"contains no text.*1 entries that lead out"):
        corpus_of(f"text:{books}")


def test_a_folder_of_text_given_as_shards_says_how_to_make_them(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"text": "words"}\n')
    with pytest.raises(UsageFault, match=r"has no meta\.json; .*peer data prepare"):
        corpus_of(f"tokens:{tmp_path}")


def test_a_comma_in_a_name_that_exists_separates_nothing(tmp_path: Path) -> None:
    first, second = tmp_path / "war, and peace.txt", tmp_path / "two.txt"
    first.write_text("a" * 500)
    second.write_text("b" * 500)
    assert paths_in(f"{first},{second}") == [first, second]
    assert paths_in(f"{second},{first},{second}") == [second, first, second]
    corpus = corpus_of(f"text:{first}")
    assert corpus.training.num_tokens + corpus.held_out.num_tokens == 500
    with pytest.raises(UsageFault, match=r"/no,ne\.txt|/no does not exist.*commas separate"):
        corpus_of(f"text:{tmp_path}/no,ne.txt")


def test_a_home_of_nobody_is_a_sentence() -> None:
    with pytest.raises(UsageFault, match="home folder of an unknown user"):
        corpus_of("text:~nobody-of-that-name/books")


# -------------------------------------------------------------------------------------------------------------- helpers
