"""What happened in a run, for people: an observer of the swarm and a web page about what it saw.

The files, each built on those above it:

    history_facts.py  every value that is shown (pure)
    app.py            puts the rooms together

The rooms, from the bottom up:

    observe/       looks at the swarm, and folds what was seen
    credit/        whom a commit credits (pure)
    people/        ranks and teams in words (pure)
    history/       what happened, in SQLite
    share/         pictures of the page for links
    collect/       signed commits and profiles, fetched from members
    samples/       what the model writes, asked of another process
    page/          the page as HTML and SVG
    server/        the page over HTTP: routes, API, live updates, access
    several_runs/  several runs behind one address
    web/           scripts and styles of the page, and the script that bundles them

Everything shown comes from strangers: it is bounded in number, stripped of what does not print, and escaped.
"""

# A part of murmuration-swarm: peer/import_path.py looks for this line.
