"""What a lane remembers is bounded."""

from turnlane.workflows.recent import Recent


def test_the_key_that_came_first_goes_first() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate("abc"):
        recent[key] = number

    assert [("b", 1), ("c", 2)] == list(recent.items())


def test_a_key_that_is_set_anew_keeps_its_place() -> None:
    recent: Recent[str, int] = Recent(2)
    for number, key in enumerate("abac"):
        recent[key] = number

    assert [("b", 1), ("c", 3)] == list(recent.items())
