"""The terminal view of a running peer.

The files, each built on those above it:

    updates.py               updates of a view besides events
    event_view.py            the interface of a view for a terminal
    news.py                  events as news for people
    checklist.py             steps until a peer is a member
    scene.py                 the state that a view shows, computed from events and updates (pure)
    sentences.py             the state of health, a one-line summary, the goodbye
    key_bindings.py          the effects of keys
    text_lines.py            lines that fit a width
    screens.py               pictures of a scene as lines of text
    screen_painter.py        draws on a terminal's alternate screen
    terminal_keys.py         keys of a terminal, as they are pressed
    live_panel.py            live panel, from scene, screens, painter and keys
    plain_and_json_views.py  plain lines or JSON lines, and the choice of the view
    stderr_capture.py        captures standard error while a panel has the screen
    return_command.py        the command that restarts a peer with the same options
    ctrl_c.py                the first Ctrl+C asks a peer to leave, the second ends it; also other signals
    terminal.py              view, event log and keys while a peer runs
"""
