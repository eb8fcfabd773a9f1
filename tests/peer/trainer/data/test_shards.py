"""Prepared shards: what meta.json says, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from dht.ground.errors import UsageFault
from peer.data_division.block_order import BlockOrder
from peer.trainer.data.corpus import open_corpus
from peer.trainer.data.shards import META_NAME, parse_meta
from peer.trainer.prepare import prepare_data
from peer.trainer.text.held_out import hash_fraction
from tests.kit.trainer.prepared_data import WorkerHere, in_this_process, json_lines, prepared, sentences

LITTLE_ROOM = (
    "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    "runpy.run_module('peer', run_name='__main__', alter_sys=True)"
)
"""Runs `peer` where no file can have more than 20 kB, as on a disk that is full then."""


def opened(shards, **rules):
    return open_corpus(f"tokens:{shards}", vocab_size=300, context=16, held_out_fraction=0.1, **rules)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def copy(made, tmp_path):
    for path in made[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_every_document_is_in_one_shard_and_ends(made):
    shards, meta, digest, tokenizer = made
    found = {True: [], False: []}
    for shard in meta.shards:
        tokens = np.fromfile(shards / shard.name, meta.token_type)
        assert (len(tokens), int(tokens.max())) == (shard.tokens, shard.largest)
        texts = in_this_process(tokenizer).decode(tokens.tolist()).split("<|endoftext|>")
        assert texts.pop() == ""
        assert sum(len(text.encode()) for text in texts) == shard.text_bytes
        found[shard.held_out] += texts
    documents = sentences(400)
    assert sorted(found[True] + found[False]) == sorted(documents)
    assert set(found[True]) == {text for text in documents if hash_fraction(text.encode()) < 0.1}
    assert 10 < len(found[True]) < 80
    assert meta.documents == 400
    assert len(meta.training) > 3
    assert json.loads((shards / META_NAME).read_bytes())["tokenizer"] == tokenizer.digest
    assert parse_meta((shards / META_NAME).read_bytes(), "here", digest) == meta


def test_a_folder_is_read_with_the_run_s_tokenizer_and_digest_only(made):
    shards, meta, digest, tokenizer = made
    corpus = opened(shards, tokenizer_digest=tokenizer.digest, digest=digest)
    assert corpus.training.num_groups == len(meta.training)
    assert corpus.training.num_tokens == sum(shard.tokens for shard in meta.training)
    assert corpus.held_out.num_tokens == sum(shard.tokens for shard in meta.held_out)
    assert corpus.bytes_per_token == pytest.approx(
        sum(one.text_bytes for one in meta.held_out) / sum(one.tokens for one in meta.held_out)
    )
    with pytest.raises(UsageFault, match=r"made with the tokenizer .*; expected the run's tokenizer ffff"):
        opened(shards, tokenizer_digest="f" * 64)
    with pytest.raises(UsageFault, match=r"has digest .*expected eeee.*data\.digest"):
        opened(shards, digest="e" * 64)
    with pytest.raises(UsageFault, match=r"contains token 299; expected tokens below vocab_size 299"):
        open_corpus(f"tokens:{shards}", vocab_size=299, context=16, held_out_fraction=0.1)


def test_shards_that_do_not_say_their_tokenizer_are_refused(copy):
    (copy / META_NAME).unlink()
    with pytest.raises(UsageFault, match=r"has no meta\.json; .*`peer data prepare`"):
        opened(copy)


def test_somebody_with_a_part_of_the_shards_measures_on_the_same(made, copy):
    for shard in made[1].training[2:]:
        (copy / shard.name).unlink()
    some, whole = opened(copy), opened(made[0])
    assert some.facts.startswith(f"2 of {len(made[1].training)} shards")
    assert some.training.num_tokens == sum(shard.tokens for shard in made[1].training[:2])
    batches = zip(some.held_out_batches(2, 4, 16), whole.held_out_batches(2, 4, 16), strict=True)
    assert all(bool((a == b).all()) for mine, theirs in batches for a, b in zip(mine, theirs, strict=True))
    positions = BlockOrder(0, "me").next(400, 16, some.training)
    assert positions is not None
    inputs, targets = some.training.batch(positions, 16)
    assert bool((inputs[:, 1:] == targets[:, :-1]).all())
    for shard in made[1].training:
        (copy / shard.name).unlink(missing_ok=True)
    with pytest.raises(UsageFault, match=r"none of the shards with at least"):
        opened(copy)
    (copy / made[1].held_out[0].name).unlink()
    (copy / made[1].training[0].name).write_bytes((made[0] / made[1].training[0].name).read_bytes())
    with pytest.raises(UsageFault, match=r"held-.* is missing; expected every held-out shard"):
        opened(copy)


def test_a_shard_that_is_not_what_meta_says_is_refused(made, copy):
    shard = made[1].training[0]
    content = bytearray((copy / shard.name).read_bytes())
    content[7] ^= 1
    (copy / shard.name).write_bytes(content)
    with pytest.raises(UsageFault, match=rf"{shard.name} has digest .*as in meta\.json"):
        opened(copy).training.group_range(0)
    (copy / shard.name).write_bytes(content[:-2])
    with pytest.raises(UsageFault, match=rf"{shard.name} has {len(content) - 2} bytes; expected {len(content)}"):
        opened(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": []}, "shards"),
        ({"extra": 1}, "extra"),
        ({"dtype": "uint8"}, "dtype"),
        ({"dtype": "uint32"}, r"expected names that end in \.u32"),
        ({"vocab_size": 299}, "has token 299; expected below 299"),
        ({"tokenizer": "../x"}, "64 lower-case"),
    ],
)
def test_a_meta_that_is_wrong_is_a_sentence(made, change, message):
    fields = json.loads((made[0] / META_NAME).read_bytes())
    with pytest.raises(UsageFault, match=rf"^here: .*{message}"):
        parse_meta(json.dumps(fields | change).encode(), "here")


@pytest.mark.parametrize("name", ["../part.u16", "/etc/passwd", ".hidden.u16", "a/b.u16", "part-00000.exe", ""])
def test_a_shard_s_name_leads_nowhere(made, name):
    fields = json.loads((made[0] / META_NAME).read_bytes())
    fields["shards"][0]["name"] = name
    with pytest.raises(UsageFault, match=r"^here: "):
        parse_meta(json.dumps(fields).encode(), "here")
    with pytest.raises(UsageFault, match="is not JSON"):
        parse_meta(b"\xff{", "here")


def test_prepare_goes_on_where_it_was_stopped(made, tmp_path, monkeypatch):
    monkeypatch.setattr("peer.trainer.prepare._SHOWN_SECONDS", float("inf"))
    corpus = json_lines(tmp_path / "corpus.jsonl", sentences(400))
    say: list[str] = []

    class Stop(Exception):
        pass

    def stop(text: str) -> None:
        say.append(text)
        raise Stop

    def again(tell, **changes):
        choices = {"held_out_fraction": 0.1, "num_processes": 1, "part_bytes": 30_000, **changes}
        return prepare_data([str(corpus)], made[3].path, tmp_path / "out", say=tell, **choices)

    def stop_beside_another(text: str) -> None:
        with pytest.raises(UsageFault, match=r"another `peer data prepare` is writing to .*; expected one at a time"):
            again(say.append)
        stop(text)

    # The first word is said when all parts are done, and before anything says so in the folder.
    with pytest.raises(Stop):
        again(stop_beside_another)
    (tmp_path / "out" / "part-00001.u16").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.u16")}
    with pytest.raises(UsageFault, match=r"different files or settings \(--shard-megabytes\)"):
        again(say.append, part_bytes=40_000)
    meta, _ = again(say.append)
    assert meta.shards == made[1].shards
    assert say[1] == f"already done: {len(before) // 2} of {len(before) // 2 + 1} parts"
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.u16")}
    assert {name for name in after if before.get(name) != after[name]} == {"part-00001.u16", "held-00001.u16"}
    with pytest.raises(UsageFault, match="already exists"):
        again(say.append)


def test_a_full_disk_is_a_sentence_and_leaves_no_half_shard(made, tmp_path):
    corpus = json_lines(tmp_path / "corpus.jsonl", sentences(400))
    out = tmp_path / "out"
    ended = subprocess.run(
        [
            *(sys.executable, "-c", LITTLE_ROOM, "data", "prepare", "--tokenizer", str(made[3].path)),
            *("--out", str(out), "--processes", "1", str(corpus)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"peer: {out} cannot be written: File too large; expected a writable folder with free space; choose another "
        "place for it.\n"
    ), "one sentence, no traceback"
    assert [path.name for path in out.iterdir() if ".u16" in path.name] == []


def test_of_few_documents_the_share_is_held_out_of_the_one_with_the_smallest_hash(made, tmp_path, monkeypatch):
    fraction = 0.3
    monkeypatch.setattr("peer.trainer.data.tokenize_pool.TokenizeWorker", WorkerHere)

    def prepare(texts, out, say=lambda text: None):
        corpus = tmp_path / "few.jsonl"
        if out != "again":
            json_lines(corpus, texts)
        rules = {"num_processes": 1, "held_out_fraction": fraction}
        return prepare_data([str(corpus)], made[3].path, tmp_path / out, say=say, **rules)[0]

    def stop(text):
        raise KeyboardInterrupt

    texts = [text for text in sentences(40) if hash_fraction(text.encode()) > 0.3][:3]
    meta = prepare(texts, "three")
    held = sum(shard.text_bytes for shard in meta.held_out)
    whole = sum(len(text) for text in texts)
    assert 0.7 * fraction * whole < held < 1.3 * fraction * whole
    assert sum(shard.text_bytes for shard in meta.training) == whole - held
    with pytest.raises(KeyboardInterrupt):  # all parts are done, and nothing is held out yet
        prepare(texts, "again", stop)
    assert prepare(texts, "again") == meta
    # One document is cut, and one that is too short for that is refused.
    assert prepare(texts[:1], "one").documents == 1
    with pytest.raises(UsageFault, match="no text to train on"):
        prepare(["x"], "tiny")
    # What came to nothing does not keep its folder from other files.
    assert list((tmp_path / "tiny").iterdir()) == []
    assert prepare(texts, "tiny") == meta


def test_a_stop_while_few_documents_are_divided_anew_begins_again(made, tmp_path, monkeypatch):
    corpus = json_lines(tmp_path / "few.jsonl", [text for text in sentences(40) if hash_fraction(text.encode()) > 0.3])

    def prepare(out, say=lambda text: None):
        rules = {"num_processes": 1, "held_out_fraction": 0.01, "part_bytes": 3000}
        return prepare_data([str(corpus)], made[3].path, tmp_path / out, say=say, **rules)[0]

    monkeypatch.setattr("peer.trainer.data.tokenize_pool.TokenizeWorker", WorkerHere)
    whole = prepare("whole")

    def stop(text):
        state = (tmp_path / "again" / ".prepare.jsonl").read_text().splitlines()
        if "again" in state[-1]:
            raise KeyboardInterrupt

    monkeypatch.setattr("peer.trainer.prepare._SHOWN_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        prepare("again", stop)
    assert prepare("again") == whole


def test_rows_without_text_are_refused_only_where_no_row_has_any(made, tmp_path, monkeypatch):
    monkeypatch.setattr("peer.trainer.data.tokenize_pool.TokenizeWorker", WorkerHere)
    (tmp_path / "null.jsonl").write_text('{"text": null}\n' * 150)
    said = []

    def prepare(out):
        return prepare_data([str(tmp_path)], made[3].path, tmp_path / out, part_bytes=1000, say=said.append)

    with pytest.raises(UsageFault, match=r"null\.jsonl has no text in field .*\(text is empty\)"):
        prepare("one")
    json_lines(tmp_path / "rows.jsonl", sentences(30))
    meta, _ = prepare("one")
    assert meta.documents == 30
    assert said[-1] == "left out or repaired: rows without the field (150)"


@pytest.mark.parametrize("name", ["nothing.txt", "nothing.jsonl"])
def test_files_with_nothing_in_them_are_one_sentence_and_leave_nothing(made, tmp_path, name):
    (tmp_path / name).touch()
    tokenizer = made[3].path
    with pytest.raises(UsageFault, match=f"{name}: there is no text to read"):
        prepare_data([str(tmp_path / name)], tokenizer, tmp_path / "out", say=lambda text: None)
    assert not (tmp_path / "out").exists()
