"""The data of a run: one stream of tokens to train on, and one held-out stream.

The files, each built on those above it:

    fetching_within_disk_limit.py  groups of data, fetched in the background
    context_blocks.py              sequences of tokens, and the blocks of a run's context that are cut from them
    shards.py                      shards of tokens, and the meta.json that describes them
    loaded_tokenizer.py            a tokenizer.json and its library, in a process with limits
    tokenizing.py                  asks that process for tokens and text; makes a new tokenizer from text
    document_packing.py            packs tokenized documents into shards, in a process with limits
    tokenize_pool.py               several of these processes
    prepared_folder.py             prepared shards in a folder
    text_fetching.py               text that is tokenized while it is trained on
    shard_download.py              prepared shards on a web server
    corpus.py                      the data of a run
"""
