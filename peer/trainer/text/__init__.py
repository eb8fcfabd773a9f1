"""Text on the disk and on the hub: files, their documents, and the held-out documents. No torch.

The files, each built on those above it:

    held_out.py      the rule that chooses the held-out text
    source_files.py  the regular files of a source, read in pieces
    parquet_rows.py  rows of Parquet files, a bounded number of bytes at a time
    parquet_groups.py  their row groups and columns, listed by a child process with limits
    documents.py     documents of text, JSON lines and Parquet, part by part
    limited_texts.py  documents of a part, for a reader without limits of its own
    hub_layout.py    the files that belong to a split of a data set on the Hugging Face hub
    hub.py           parts of such a data set, each copied to local files
"""
