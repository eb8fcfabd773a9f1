"""The network process: members and paths to them, rounds and state around the mailbox. No torch.

The rooms, from the bottom up:

    membership/    members of the run: announcing, admission, finding, revisions
    reachability/  paths to members: direct, hole-punched, over a relay
    anchors/       anchors of other members: checking and fetching them
    node/          rounds and state around the mailbox
    process/       starts, feeds and supervises the process
"""
