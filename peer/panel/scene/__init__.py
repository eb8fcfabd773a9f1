"""What a panel is drawn from: pure folds of events and of what else a view is told, and of keys.

The files, each built on those above it:

    updates.py       what a view is told beside events
    news.py          events in people's words
    loading.py       the checklist until a peer is a member
    scene.py         all of that together
    key_bindings.py  what keys do
"""
