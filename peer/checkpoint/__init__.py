"""Both sides of a peer on disk, at one moment: anchors of the network process, tensors of the trainer. No torch.

The files, each built on those above it:

    checked_files.py      files written in one pass and read with suspicion; JSON with a check sum
    checkpoint_facts.py   what that JSON says, every field checked; the format before (pure)
    tensor_files.py       safetensors, as the bytes that they are; numpy's arrays in them
    kept_commits.py       the signed commits that lead to an anchor, as bytes
    checkpoint.py         a whole checkpoint: atomic, checked, the last ones kept
"""
