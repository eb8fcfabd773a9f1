"""Other systems under the same lines and with the same work.

The files, each built on those above it:

    work.py               what everybody averages, and how far the result is from the mean
    swarm.py              members, lines, kills and measurements that the comparisons share
    codecs.py             codecs of others
    gloo.py               torch.distributed over gloo
    hivemind_averager.py  hivemind's averager
    torchft_diloco.py     torchft's DiLoCo
"""
