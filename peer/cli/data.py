"""Commands that prepare data for a run: `peer data tokenizer`, `peer data prepare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import AsJson
from peer.cli.usage.exit_codes import exits_with_sentence
from peer.cli.usage.plain_command import Commands
from peer.console.progress import loading, tell_progress
from peer.user_folders import check_out

app = Commands(
    help="Train a tokenizer, and prepare shards of tokens for the volunteers of a run.",
    no_args_is_help=True,
)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILES",
        help="Text, .jsonl and .parquet files, or folders of them; text:PATH, jsonl:PATH or parquet:PATH sets a kind.",
        show_default=False,
    ),
]
FieldName = Annotated[
    str, typer.Option("--field", metavar="NAME", help="Field with the text, in JSON lines and Parquet.")
]


@app.command(
    short_help="Train a tokenizer on text.",
    epilog="\b\nExample:\n  peer data tokenizer --vocab-size 8192 --out ./tokenizer corpus/*.jsonl",
)
@exits_with_sentence
def tokenizer(
    files: Files,
    vocab_size: Annotated[int, typer.Option("--vocab-size", min=257, max=2**20, metavar="N", help="Number of tokens.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder for the tokenizer.")],
    field: FieldName = "text",
    as_json: AsJson = False,
) -> int:
    """Train a byte-level BPE tokenizer that `AutoTokenizer.from_pretrained` can load."""
    check_out(out)
    with loading("loading the tokenizer library"):
        from peer.trainer.prepare import train_tokenizer

    made = train_tokenizer(files, vocab_size, out, field, tell=tell_progress)
    if as_json:
        print(
            json.dumps({"out": str(made.path), "digest": made.digest, "vocab_size": made.vocab_size, "eos": made.eos})
        )
        return 0
    print(f"Tokenizer   {made.path}  ({made.vocab_size} tokens)")
    print(f"Digest      {made.digest}")
    if made.vocab_size < vocab_size:
        print(f"            The text yields only {made.vocab_size} of the {vocab_size} tokens.")
    print(f"Next:       peer data prepare --tokenizer {out} --out ./shards FILES...")
    return 0


@app.command(
    short_help="Tokenize text into shards for a run.",
    epilog="\b\nExample:\n  peer data prepare --tokenizer ./tokenizer --out ./shards corpus/*.jsonl",
)
@exits_with_sentence
def prepare(
    files: Files,
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", metavar="T", help="A tokenizer.json, or the folder that contains it.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder for shards and meta.json.")],
    field: FieldName = "text",
    eos: Annotated[
        str | None,
        typer.Option(
            "--eos", metavar="TOKEN", help="Token that ends each document; default: from the tokenizer's files."
        ),
    ] = None,
    held_out: Annotated[
        float,
        typer.Option(
            "--held-out", min=0, max=0.5, metavar="SHARE", help="Share of the documents to keep for validation."
        ),
    ] = 0.01,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=1024, metavar="N", help="Number of processes; default: one per core."),
    ] = None,
    shard_megabytes: Annotated[
        int, typer.Option("--shard-megabytes", min=1, max=4096, metavar="N", help="Megabytes of text per shard.")
    ] = 64,
    as_json: AsJson = False,
) -> int:
    """Tokenize text into shards and a meta.json. An interrupted run continues where it stopped."""
    check_out(out)
    with loading("loading the data libraries"):
        from dht.ground.quantities import bytes_text, count_text, plural
        from peer.trainer.prepare import prepare_data

    meta, digest = prepare_data(
        files,
        tokenizer,
        out,
        text_field=field,
        end=eos,
        held_out_fraction=held_out,
        num_processes=processes,
        part_bytes=shard_megabytes << 20,
    )
    training, held = (sum(one.tokens for one in side) for side in (meta.training, meta.held_out))
    if as_json:
        facts = {"out": str(out), "digest": digest, "tokenizer": meta.tokenizer, "dtype": meta.dtype, "eos": meta.eos}
        counts = {"documents": meta.documents, "tokens": training, "held_out_tokens": held, "shards": len(meta.shards)}
        print(json.dumps(facts | counts))
        return 0
    size = bytes_text(sum(meta.num_bytes(one) for one in meta.shards))
    print(f"Shards      {plural(len(meta.shards), 'file')} in {out}, {size}, {meta.dtype}")
    documents = plural(meta.documents, "document")
    print(f"Tokens      {count_text(training)} to train on, {count_text(held)} held out, {documents}")
    print(f"Digest      {digest}  (data.digest of a run whose peers all train on these shards)")
    print(f"Here:       peer join --data tokens:{out} ...")
    print('Elsewhere:  put the folder on a web server, and set source = "https://HOST/PATH/meta.json" in [data]')
    return 0
