"""What is trained on: sources, the held-out part, and who reads what.

The files, each built on those above it:

    held_out.py         which text only measures the loss
    files.py            the files behind a source: regular ones, read in pieces
    streams.py          sequences of tokens that blocks are read from
    positions.py        where blocks begin when each peer draws for itself
    order.py            which blocks come next
    tokenizing.py       text to tokens with a tokenizer.json, and a new one from text
    hub.py              rows of a data set of the Hugging Face hub
    documents.py        documents of text, JSON lines, Parquet and the hub, part by part
    shards.py           shards of tokens, and the meta.json about them
    tokenize_worker.py  a process that makes shards of parts
    tokenize_pool.py    several of them
    prepare.py          `peer data`: text in, shards or a tokenizer out
    prepared.py         prepared shards in a folder
    stock.py            groups that are brought here in the background
    text_stock.py       text that is tokenized while it is trained on
    corpus.py           one stream to train on and one that is held out
"""
