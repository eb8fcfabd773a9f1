"""People, their teams and their work, in words and figures for people. Pure.

The files, each built on those above it:

    ranking_words.py  shares and places in words
    teams.py          the ranking of teams
    people_news.py    what happened among people, between two looks
    shown_news.py     that, with the names that may be shown now
"""
