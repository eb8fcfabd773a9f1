from __future__ import annotations

from dht.ground.bounds import Allowances, Newest, Pauses


def test_a_new_key_pushes_out_the_oldest() -> None:
    newest: Newest[str, int] = Newest(2)
    for key in "abac":
        newest[key] = 1
    assert list(newest) == ["b", "c"]


def test_an_allowance_is_spent_and_comes_back_for_each_key() -> None:
    allowances: Allowances[str] = Allowances(2, 10.0)
    assert [allowances.spend("a", 0.0) for _ in range(3)] == [True, True, False]
    assert allowances.spend("b", 0.0)
    assert not allowances.spend("a", 9.9)
    assert allowances.spend("a", 10.0)
    assert not allowances.spend("a", 10.0)
    assert [allowances.spend("c", 0.0, burst=1) for _ in range(2)] == [True, False]
    assert allowances.spend("c", 1.0, burst=1, seconds=1.0)


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowances: Allowances[str] = Allowances(1, 10.0)
    assert allowances.spend("a", 100.0)
    assert not allowances.spend("a", 0.0)


def test_pauses_double_until_they_are_forgiven() -> None:
    pauses: Pauses[str] = Pauses(10.0, 30.0, 8)
    assert [pauses.begin("a", 0.0) for _ in range(4)] == [10.0, 20.0, 30.0, 30.0]
    assert pauses.holds("a", 29.9)
    assert not pauses.holds("a", 30.0)
    assert not pauses.holds("b", 0.0)
    assert pauses.held(5.0) == {"a"}
    assert (pauses.until("a"), pauses.seconds("a")) == (30.0, 30.0)
    assert pauses.begin("a", 0.0, first_seconds=100.0, longest_seconds=1000.0) == 100.0
    pauses.forgive("a")
    assert pauses.seconds("a") == 0.0
    assert pauses.begin("a", 50.0) == 10.0


def test_of_too_many_keys_the_one_with_the_oldest_fault_is_forgotten() -> None:
    pauses: Pauses[int] = Pauses(10.0, 30.0, 2)
    for key in (1, 2, 1, 3):
        pauses.begin(key, 0.0)
    assert pauses.held(1.0) == {1, 3}
