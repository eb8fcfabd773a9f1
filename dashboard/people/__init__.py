"""People, their teams and their work, in words and figures for people. Pure.

The files, each built on those above it:

    ranking_words.py        shares in words
    teams_and_countries.py  contributors by team, and by country where there are enough of them
"""
