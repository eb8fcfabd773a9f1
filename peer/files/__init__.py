"""The files of a run: a tokenizer, a model card, whatever its manifest lists by digest. No torch.

The files, each built on those above it:

    checked_folder.py  where they lie in a data folder, and how they are checked
    layout_file.py     names and shapes of a custom run's parameters
    adding.py          `peer init --file`: what the manifest says of files, and the owner's copies
    serving.py         a donor's side: chunks from the disk
    partial_file.py    a file while its chunks come
    fetching.py        fetches what is missing from members
"""
