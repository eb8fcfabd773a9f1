"""What the person at the terminal sees of a running peer.

The files, each built on those above it:

    updates.py               what a view is told beside events
    news.py                  events in people's words
    checklist.py             steps until a peer is a member
    scene.py                 everything that a view shows: a pure fold of events and updates
    sentences.py             how all is, a summary in one line, the goodbye
    key_bindings.py          what keys do
    text_lines.py            lines that fit a width
    screens.py               pictures of a scene as lines of text
    screen_painter.py        a screen of its own on a terminal
    terminal_keys.py         keys of a terminal, as they are pressed
    live_panel.py            live panel, from scene, screens, painter and keys
    plain_and_json_views.py  plain lines or JSON lines, and which view there is
    stderr_capture.py        standard error while a panel has the screen
    return_command.py        the command that brings a peer back as it was
    ctrl_c.py                the first Ctrl+C asks a peer to leave, the second one ends it; other signals alike
    terminal.py              view, event log and keys while a peer runs
"""
