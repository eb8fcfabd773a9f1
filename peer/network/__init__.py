"""The network process: who is in the run, how to reach them, rounds and state around the mailbox. No torch.

The rooms, from the bottom up:

    membership/    who is in the run: announced, admitted, found, revised
    reachability/  paths to members: direct, through a hole, over a relay
    anchors/       which anchor others have, whether to believe it, and how to fetch it
    node/          rounds and state around the mailbox
    process/       the process itself: started, fed, supervised
"""
