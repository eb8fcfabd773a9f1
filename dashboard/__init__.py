"""Web page about a run: an observer of the swarm, and pages of its observations.

The files, each built on those above it:

    history_facts.py  values that the history keeps and the page shows (pure)
    app.py            combines the rooms

The rooms, from the bottom up:

    observe/       observes the swarm, and combines the observations
    credit/        the members that a commit credits (pure)
    people/        ranks and teams in words (pure)
    history/       past events, in SQLite
    share/         preview pictures for links
    collect/       signed commits and profiles, fetched from members
    samples/       texts of the model, written by another process
    page/          the page as HTML and SVG
    server/        the page over HTTP: routes, API, live updates, access
    several_runs/  several runs behind one address
    web/           scripts and styles of the page, and the script that bundles them

All displayed data comes from strangers: its amount is bounded, unprintable characters are removed, and it is escaped.
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
