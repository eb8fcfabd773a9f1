"""What the person at the terminal sees of a running peer, and its figures for Prometheus.

The files, each built on those above it:

    scene/                   what a panel is drawn from (pure)
    screens/                 pictures of it as lines of text (pure)
    screen_painter.py        a screen of its own on a terminal
    terminal_keys.py         keys of a terminal, as they are pressed
    stderr_capture.py        standard error while a panel has the screen
    live_panel.py            live panel, from scene, screens, painter and keys
    plain_and_json_views.py  plain lines with a summary now and then, or JSON lines
    view_choice.py           which view there is: panel, plain lines or JSON lines
    return_command.py        the command that brings a peer back as it was
    ctrl_c.py                the first Ctrl+C asks a peer to leave, the second one ends it; other signals alike
    terminal.py              view, event log and keys while a peer runs
"""
