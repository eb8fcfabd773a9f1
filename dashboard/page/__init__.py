"""The page as HTML, complete without scripts. Jinja2 escapes all values; `templates` contains the layout.

The files, each built on those above it:

    assets.py          the page's static files: the bundle, or only the style sheets
    environment.py     the templates' environment, with all text forms as filters
    curves.py          the curves of a run as tables of values
    goal_progress.py   progress of the run towards its goal
    task_scores.py     curves of the model's scores in tasks
    annotations.py     events beside the curves, with names, and the listed samples of the model
    rounds.py          timeline and round health
    ranking.py         the list of people, and search results
    page.py            the whole page and its sections
    contributor.py     a contributor's page with its calendar, and the certificate
"""
