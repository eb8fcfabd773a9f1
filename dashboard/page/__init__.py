"""The page as HTML, complete without scripts. Jinja2 escapes every value; `templates` says how things look.

The files, each built on those above it:

    assets.py          the page's own files: the bundle, or the style sheets alone
    environment.py     the templates' environment, with every format as a filter
    curves.py          the curves of a run as tables of values
    goal_progress.py   how far it is on the way to its goal
    task_scores.py     curves of the model's scores in tasks
    annotations.py     what happened beside the curves, with names, and which samples of the model are listed
    rounds.py          timeline, round health
    ranking.py         the list of people, and what was found in it
    page.py            the whole page and its sections
    contributor.py     a contributor's own page with its calendar, and the certificate
"""
