"""What commands are given: which run is meant, and flags that several of them share.

The files, none of which needs the other:

    named_run.py  which run is meant: id, page, link, or a name known here
    options.py    flags made from the fields of PeerConfig, and those that several commands share
"""
