"""Trees mean what the pattern meant: against Python's `re`, which agrees with ECMA-262 on this subset."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_grammar_backend.schema.ecma import ECMA, PLAIN, parse
from vllm_grammar_backend.schema.objects import all_but
from vllm_grammar_backend.schema.regex_match import matches
from vllm_grammar_backend.schema.regex_tree import anchored, lengths, render, simplified, with_lengths

LETTERS = "ab1-\n"
_ATOMS = st.sampled_from(["a", "b", "1", ".", r"\d", r"\w", r"\s", "[ab]", "[^a]", r"[\w-]", r"\n", r"\-", "-"])


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("({}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])),
    )


BODIES = st.recursive(_ATOMS, _extend, max_leaves=6)
PATTERNS = st.builds("{}{}{}".format, st.sampled_from(["", "^"]), BODIES, st.sampled_from(["", "$"]))
TEXTS = st.text(LETTERS, max_size=5)


def python(pattern: str) -> str:
    r"""The same for `re`: `$` at the very end only, and `.` as ECMA-262 has it for these letters."""
    return pattern.replace("$", r"\Z").replace(".", r"[^\n]")


@given(PATTERNS, TEXTS)
def test_unanchored_search(pattern: str, text: str) -> None:
    tree = simplified(anchored(parse(pattern), search=True))
    assert matches(tree, text) == bool(re.search(python(pattern), text, re.ASCII))


@given(PATTERNS, TEXTS)
def test_written_out_and_read_again(pattern: str, text: str) -> None:
    tree = simplified(anchored(parse(pattern), search=True))
    written = render(tree)
    assert matches(simplified(anchored(parse(written), search=False)), text) == matches(tree, text)
    assert matches(tree, text) == bool(re.fullmatch(written, text))


@given(BODIES, TEXTS)
def test_regex_kind_is_fullmatch(pattern: str, text: str) -> None:
    tree = simplified(anchored(parse(f"^{pattern}$", PLAIN), search=False))
    assert matches(tree, text) == bool(re.fullmatch(pattern, text, re.ASCII))


@given(PATTERNS, TEXTS, st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4)))
def test_lengths(pattern: str, text: str, low: int, high: int | None) -> None:
    tree = simplified(anchored(parse(pattern), search=True))
    shortest, longest = lengths(tree)
    if matches(tree, text):
        assert shortest <= len(text) <= (len(text) if longest is None else longest)
    bounded = with_lengths(tree, low, high)
    if bounded is not None:
        within = low <= len(text) <= (len(text) if high is None else high)
        assert matches(bounded, text) == (within and matches(tree, text))


@given(st.lists(TEXTS, max_size=5), TEXTS)
def test_all_but(words: list[str], text: str) -> None:
    assert matches(all_but(words), text) == (text not in words)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("{", ["{"], ["a"]),
        ("^{.*}$", ["{a}"], ["a"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^]$", ["]"], [""]),
        ("^[^]$", ["\n", "a"], [""]),
        (r"^\/\_\-$", ["/_-"], [""]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\cA$", ["\x01"], ["A"]),
        (r"^\u{1F600}$", ["😀"], ["u"]),
        (r"^\uD83D\uDE00$", ["😀"], [""]),
        ("^(?<year>[0-9]{4})$", ["2024"], ["24"]),
        ("^(a|^b)c$", ["ac", "bc"], ["xbc"]),
        ("(^a|b$)", ["ax", "xb"], ["xa"]),
        ("^(?:a$)?", ["", "a", "b"], []),
    ],
)
def test_ecma_corners(pattern: str, yes: list[str], no: list[str]) -> None:
    tree = simplified(anchored(parse(pattern, ECMA), search=True))
    assert [text for text in yes if not matches(tree, text)] == []
    assert [text for text in no if matches(tree, text)] == []


def test_no_backtracking() -> None:
    assert not matches(simplified(anchored(parse("^(a*)*b$"), search=True)), "a" * 200)


def test_long_nonsense_is_read_in_one_pass() -> None:
    for text in ("{" * 100_000, "(?<a>)" * 20_000, r"\u{" * 1):
        try:
            parse(text)
        except ValueError:
            continue
