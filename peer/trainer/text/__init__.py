"""Text on the disk and on the hub: which files there are, their documents, and which of those are held out. No torch.

The files, each built on those above it:

    held_out.py      which text only measures the loss
    source_files.py  the files behind a source: regular ones, read in pieces
    parquet_rows.py  rows of Parquet files, a bounded number of bytes at a time
    parquet_groups.py  their row groups and columns, listed by a child process with limits
    documents.py     documents of text, JSON lines and Parquet, part by part
    limited_texts.py  those of a part, where the reader itself has no limits
    hub_layout.py    which files of a data set of the Hugging Face hub are a split
    hub.py           parts of such a data set, each brought here as local files
"""
