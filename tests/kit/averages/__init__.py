"""Work, codecs, commits and credit, as arrays and bytes.

The files, each built on those above it:

    codec_data.py       what codec tests feed to codecs
    commit_log.py       a log of commits, applied by every peer
    credited_rounds.py  signed rounds of four peers, and what they are worth
    rules_digests.py    digests of what the numbered rules compute
"""
