"""What is trained on: tokens of text, one stream to train on, and one that is held out.

The files, each built on those above it:

    fetching_within_disk_limit.py  groups that are brought here in the background
    context_blocks.py              sequences of tokens, and the blocks of a run's context that are cut from them
    shards.py                      shards of tokens, and the meta.json about them
    loaded_tokenizer.py            a tokenizer.json and its library, in a process with limits
    tokenizing.py                  that process, asked for tokens and text; a new tokenizer from text
    document_packing.py            documents as tokens, one packed behind the other into shards, in such a process
    tokenize_pool.py               several of these processes
    prepared_folder.py             prepared shards in a folder
    text_fetching.py               text that is tokenized while it is trained on
    shard_download.py              prepared shards on a web server
    corpus.py                      the data of a run
"""
