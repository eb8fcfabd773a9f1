"""Published figures of how fast a line must be, against this project's rounds.

The files, each built on those above it:

    utilisation.py           the model of Streaming DiLoCo (arXiv 2501.18512, appendix, table 4)
    published_bandwidths.py  its table, with this project's rounds beside it
"""
