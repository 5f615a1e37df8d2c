import itertools

from hypothesis import given
from hypothesis import strategies as st

from rose.server.stop_strings import StopScanner

TEXT = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3)


def scan(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    scanner, shown = StopScanner(stops), ""
    for piece in pieces:
        text, found = scanner.push(piece)
        shown += text
        if found:
            return shown, True
    return shown + scanner.flush(), False


@given(TEXT, STOPS, st.lists(st.integers(0, 24), max_size=6))
def test_any_cutting_gives_the_result_of_single_characters(text: str, stops: list[str], cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    assert scan(pieces, stops) == scan(list(text), stops)


@given(TEXT, STOPS)
def test_the_text_is_cut_before_the_stop_string_that_is_complete_first(text: str, stops: list[str]) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert scan(list(text), stops) == (text, False)
        return
    complete = text[: ends[0]]
    longest = max(len(stop) for stop in stops if complete.endswith(stop))
    assert scan(list(text), stops) == (complete[: len(complete) - longest], True)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    scanner = StopScanner(["\nUser:"])
    assert scanner.push("a\nUs") == ("a", False)
    assert scanner.push("age\n") == ("\nUsage", False)
    assert scanner.flush() == "\n"
