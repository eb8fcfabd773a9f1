"""A peer's state on disk at one moment: anchors of the network process, tensors of the trainer. No torch.

The files, each built on those above it:

    checked_files.py      files written in one pass, and checked when read; JSON with a checksum
    checkpoint_facts.py   the content of that JSON, every field checked; the previous format (pure)
    tensor_files.py       safetensors files as bytes; numpy arrays in them
    kept_commits.py       the signed commits that lead to an anchor
    checkpoint.py         a whole checkpoint: atomic, checked; the newest ones are kept
"""
