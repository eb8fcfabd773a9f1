"""The first commands that people type, right and wrong ones: exit codes and sentences.

They come from the documents and from the habits of other tools. Each row runs in a folder with the files that a
newcomer has: a text file, a folder of JSON, a table, a config of a model. No row needs a network.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from dht.identity.keys import Identity
from peer.cli import app

RUN = "demo.aaaaaaaaaaaaaaaaaaaa"
MEMBER = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.from_seed(bytes(32)).peer_id}"
NO_MEMBER = f"No address of a member of {RUN} is known in"
NOT_A_RUN = "is neither a run id nor the name of a run here; expected NAME.FINGERPRINT, a link (murmuration://...)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("input.txt").write_text("To be, or not to be, that is the question.\n" * 2000)
    Path("table.csv").write_text("text,label\nhello,1\n" * 100)
    Path("rows").mkdir()
    Path("rows/1.json").write_text(json.dumps({"text": "hello world"}))
    Path("empty").mkdir()
    Path("run.toml").write_text("[training]\nlr = 0.001\n")
    Path("run.yaml").write_text("training:\n  learning_rate: 0.1\n")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    Path("llama").mkdir()
    Path("llama/config.json").write_text(json.dumps(config))
    return tmp_path


ANYBODY = [
    ("peer", 2, "New here? peer demo"),
    ("peer --help", 0, "New here? peer demo"),
    ("peer help join", 0, "Usage: peer join"),
    ("peer --version", 0, "murmuration 0."),
    ("peer version", 2, "No such command 'version'"),
    ("peer Join", 2, "No such command 'Join'. Did you mean 'join'?"),
    ("peer runs", 0, "No run on this machine yet. Join a run: `peer join https://PAGE`"),
    ("peer stop", 0, "No peer runs on this machine"),
    ("peer logs", 2, "No peer has written a log on this machine"),
    ("peer status", 2, "Which run? Expected RUN"),
    ("peer status nothing", 2, f"'nothing' {NOT_A_RUN}"),
    ("peer demo --peers 1", 2, "Invalid value for '--peers'"),
]
VOLUNTEER = [
    ("peer join", 2, "Which run? Expected RUN"),
    ("peer join demo", 2, f"'demo' {NOT_A_RUN}"),
    (f"peer join {RUN[:-1]}", 2, "is not a run id; expected NAME.FINGERPRINT such as"),
    (f"peer join {RUN.upper()}", 2, "is not a run id; expected NAME.FINGERPRINT such as"),
    (f"peer join ' {RUN}\n'", 2, NO_MEMBER),
    (f"peer join {RUN}", 2, NO_MEMBER),
    (f"peer join murmuration://{RUN}", 2, NO_MEMBER),
    ("peer join murmuration://", 2, "The link is cut off"),
    ("peer join example.org", 2, "is not a run id; expected NAME.FINGERPRINT such as"),
    ("peer join http://127.0.0.1:1/", 3, "cannot be reached: Connection refused"),
    (f"peer join {MEMBER}", 2, "is the address of a member; expected RUN; pass such addresses with --peers."),
    (f"peer join {RUN} --device gpu", 2, "--device is 'gpu'; expected something like auto or cpu or cuda"),
    (f"peer join {RUN} --gpu 0", 2, "No such option: --gpu"),
    (f"peer join {RUN} --peers 1.2.3.4:4001", 2, "'1.2.3.4:4001' is not a multiaddr"),
    (f"peer join {RUN} --base gpt2", 2, "gpt2 is not a folder; expected a folder with a model's weights"),
    (f"peer join {RUN} --invite missing", 2, "The invite missing cannot be read (No such file or directory)"),
    (f"peer join {RUN} --data input.txt", 2, "--data: 'input.txt' has no kind; expected text:"),
    (f"peer join {RUN} --data rows.jsonl", 2, "write jsonl: before the path"),
    (f"peer join {RUN} --data text:missing.txt", 2, "missing.txt does not exist; expected a file or folder to read"),
    (f"peer join {RUN} --data hf:wikitext", 2, "--data is 'hf:wikitext'; expected something like"),
    (f"peer join {RUN} --max-steps 0", 2, "--max-steps is 0; expected a whole number from 1"),
    (f"peer join {RUN} --upload-limit-mbit -1", 2, "--upload-limit-mbit is -1.0; expected a finite number from 0.2"),
    (f"peer join {RUN} --peers {MEMBER} --join-timeout 1", 3, "answer"),
    (f"peer export {RUN} --out m", 2, NO_MEMBER),
    ("peer sample --model missing --prompt hi", 2, "missing"),
    ("peer doctor nothing", 2, f"'nothing' {NOT_A_RUN}"),
    ("peer profile set", 2, "No value is given; expected --name"),
]
ORGANISER = [
    ("peer init", 2, "NAME is missing; expected `peer init NAME`"),
    ("peer init --example", 0, "[training]"),
    ("peer init 'My Run'", 2, "The run name 'My Run' cannot be used; expected 1 to 40 of a-z, 0-9 and '-'"),
    ("peer init mine", 0, "Run id      mine."),
    ("peer init mine --config missing.toml", 2, "missing.toml cannot be read (No such file or directory)"),
    ("peer init mine --config run.yaml", 2, "run.yaml is not a TOML file"),
    ("peer init mine --config run.toml", 2, "lr is not a field in training; known fields: optimizer"),
    ("peer init mine --model gpt2", 2, "expected the config.json of a Hugging Face model"),
    ("peer init mine --model Qwen/Qwen3-0.6B", 2, "has no revision; expected a commit or a tag"),
    ("peer seed", 2, "Which run? Expected RUN"),
    ("peer seed nothing", 2, f"'nothing' {NOT_A_RUN}"),
    (f"peer seed {RUN} --listen 0.0.0.0:4001", 2, "'0.0.0.0:4001' is not a multiaddr"),
    ("peer dashboard", 2, "Which run? Expected RUN"),
    (f"peer dashboard {RUN} --port 99999", 2, "Invalid value for '--port'"),
    ("peer data prepare input.txt", 2, "Missing option '--tokenizer'"),
    ("peer data tokenizer input.txt", 2, "Missing option '--vocab-size'"),
    ("peer data tokenizer --vocab-size 300 --out t input.txt", 0, "Tokenizer   t/tokenizer.json"),
    ("peer data tokenizer --vocab-size 300 --out t missing.txt", 2, "missing.txt"),
    ("peer data tokenizer --vocab-size 300 --out t empty", 2, "empty contains no file"),
    ("peer data tokenize input.txt", 2, "No such command 'tokenize'"),
    ("peer plan run.toml", 2, "lr is not a field in training"),
    ("peer plan nothing", 2, "nothing: No such file or directory; expected a readable run file or manifest, or RUN"),
    ("peer receipts mine", 2, "No such command 'mine'"),
    ("peer invite nothing --one-time", 2, "nothing"),
    ("peer manifest", 2, "`peer manifest` needs a subcommand"),
]


@pytest.mark.parametrize(("line", "code", "sentence"), [*ANYBODY, *VOLUNTEER, *ORGANISER], ids=lambda value: str(value))
def test_a_first_command(line: str, code: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(shlex.split(line)[1:]) == code
    captured = capsys.readouterr()
    assert sentence in captured.out + captured.err
    assert "Traceback" not in captured.err
    assert "This is a bug" not in captured.err
    if code and line != "peer":
        *_, last = captured.err.splitlines()
        assert last.startswith("peer: ")
        assert last.endswith((".", "?"))
