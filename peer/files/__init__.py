"""The files of a run: a tokenizer, a model card, whatever its manifest lists by digest. No torch.

The files, each built on those above it:

    checked_folder.py  their location in a data folder, and how they are checked
    layout_file.py     names and shapes of a custom run's parameters
    adding.py          `peer init --file`: the manifest's entries for files, and the owner's copies
    serving.py         the donor's side: reads chunks from the disk
    partial_file.py    a file while its chunks arrive
    fetching.py        fetches missing files from members
"""
