"""A dashboard with a past, for tests of the page.

The files, each built on those above it:

    records.py  hostile records, and who publishes them
    history.py  commits as the history gets them, without keys
    scene.py    a run with a past, of the shapes and sizes of a real one
    serving.py  the page, served
    browser.py  the page in a real browser
    members.py  members that have signed commits to be collected
"""
