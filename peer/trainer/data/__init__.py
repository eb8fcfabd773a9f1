"""What is trained on: tokens of text, one stream to train on, and one that is held out.

The files, each built on those above it:

    stock.py            groups that are brought here in the background
    streams.py          sequences of tokens that blocks are read from
    labelled.py         examples with labels, as rows of one length
    shards.py           shards of tokens, and the meta.json about them
    tokenizing.py       text to tokens with a tokenizer.json, and a new one from text
    tokenize_worker.py  a process that makes shards of parts
    tokenize_pool.py    several of them
    prepared.py         prepared shards in a folder
    text_stock.py       text that is tokenized while it is trained on
    web_stock.py        prepared shards on a web server
    corpus.py           the data of a run
"""
