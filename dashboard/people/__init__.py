"""Words and figures about people, their teams and their work. Pure.

The files, each built on those above it:

    ranking_words.py        shares in words
    teams_and_countries.py  contributors by team, and countries with enough contributors
"""
