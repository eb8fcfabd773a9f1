"""The page as HTML and SVG, complete without scripts. Text of strangers is escaped here.

The files, each built on those above it:

    chart.py        line charts as SVG (pure)
    assets.py       the page's own files: the bundle, or the style sheets alone
    parts.py        small pieces of HTML that the others share
    badge.py        badges as SVG (pure)
    people.py       contributors, peers, countries
    rounds.py       timeline, staleness strip, round health
    charts.py       the curves of a run
    swarm.py        bandwidth, and what the page does not know
    page.py         the whole page
    contributor.py  a contributor's own page
"""
