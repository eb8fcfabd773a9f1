"""What happened among people between two looks."""

from __future__ import annotations

from dataclasses import replace

from dashboard.history_facts import ContributorRow, PeopleNews
from dashboard.people.people_news import CATCHING_UP_ROUNDS, MAX_NEWS_OF_A_LOOK, PAIR_SECONDS, Feed, shown_news
from tests.kit.dashboard.scene import contributor_of, history_of_run

IDS = [contributor_of(index).contributor_id for index in range(20)]


def rows(*tokens: int) -> list[ContributorRow]:
    """People by index with so many tokens, as the ranking has them."""
    made = [replace(contributor_of(index), milli_tokens_witnessed=1000 * count) for index, count in enumerate(tokens)]
    made.sort(key=lambda row: -row.milli_tokens_witnessed)
    return [replace(row, rank=place if row.milli_tokens_witnessed else 0) for place, row in enumerate(made, 1)]


def look(
    feed: Feed, *tokens: int, at: float = 0.0, countries: tuple[str, ...] = (), num_rounds: int = 0
) -> list[PeopleNews]:
    return feed.look(rows(*tokens), countries, IDS, num_rounds, at)


def test_what_was_there_before_is_no_news() -> None:
    assert look(Feed(), 90_000, 50, countries=("NL",)) == []


def test_people_join_pass_and_overtake() -> None:
    feed = Feed()
    look(feed, 9_000, 8_000)
    assert look(feed, 9_500, 9_900, at=1.0) == [PeopleNews(1.0, "overtook", IDS[1], other_id=IDS[0])]
    assert look(feed, 9_500, 120_000, 10, at=2.0, countries=("NL",)) == [
        PeopleNews(2.0, "passed", IDS[1], tokens=100_000),
        PeopleNews(2.0, "joined", IDS[2]),
        PeopleNews(2.0, "country", "", country="NL"),
    ]
    assert look(feed, 9_500, 120_000, 10, at=3.0, countries=("NL",)) == []


def test_two_that_go_past_each_other_all_the_time_are_news_once_an_hour() -> None:
    feed = Feed()
    look(feed, 20, 10)
    assert len(look(feed, 20, 30, at=1.0)) == 1
    assert look(feed, 40, 30, at=2.0) == []
    assert len(look(feed, 40, 50, at=PAIR_SECONDS + 2)) == 1


def test_rounds_of_long_ago_are_no_news_nor_is_somebody_who_was_here_all_the_time() -> None:
    feed = Feed()
    look(feed, 100)
    assert look(feed, 20_000, 30_000, num_rounds=CATCHING_UP_ROUNDS + 1) == []
    assert feed.look(rows(20_000, 30_000, 5), (), (), 0, 1.0) == []


def test_a_machine_that_gets_its_persons_key_has_joined_before() -> None:
    feed, person = Feed(), rows(9_000, 500)
    machine = replace(person[1], contributor_id=person[1].machines[0].peer_id, name="", first_at=3.0)
    ids = [machine.contributor_id]
    feed.look(person[:1], (), ids, 0, 1.0)
    news = feed.look([person[0], machine], (), ids, 1, 500.0)
    assert news == [PeopleNews(3.0, "joined", machine.contributor_id)], "when it came, as the person's page says"
    assert feed.look(person, (), ids, 2, 980.0) == []
    view = replace(history_of_run(), contributors=tuple(person), news=(*news, PeopleNews(9.0, "country", "")))
    assert [(one.news.kind, one.person) for one in shown_news(view)] == [("joined", person[1])]


def test_a_flood_is_bounded() -> None:
    feed = Feed()
    look(feed, 100)
    assert len(look(feed, *range(100, 120))) == MAX_NEWS_OF_A_LOOK
