"""The EBNF reader: its dialect, its errors, and its translation against a slow matcher of our own."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from tests.engines.vocabularies import EOS, SMALL, spell
from vllm_grammar_backend.engines import ebnf
from vllm_grammar_backend.engines.ebnf import Alternatives, Characters, Node, Reference, Repeat, Sequence
from vllm_grammar_backend.errors import GrammarError


def one(sign: str) -> Characters:
    return Characters(((ord(sign), ord(sign)),))


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ('root ::= "a"', one("a")),
        ('root ::= "ab"', Sequence((one("a"), one("b")))),
        ('root ::= ""', Sequence(())),
        ("root ::=", Sequence(())),
        (r'root ::= "\n\t\r\\\"\x41"', Sequence(tuple(map(one, '\n\t\r\\"A')))),
        (r'root ::= "\u00e9"', one("é")),
        (r'root ::= "\U0001f408"', one("🐈")),
        ("root ::= [a-z_]", Characters(((97, 122), (95, 95)))),
        (r"root ::= [^\]\-a]", Characters(((93, 93), (45, 45), (97, 97)), negated=True)),
        ("root ::= [-a]", Characters(((45, 45), (97, 97)))),
        ("root ::= [a-]", Characters(((97, 97), (45, 45)))),
        ("root ::= [^]", Characters((), negated=True)),
        ("root ::= .", Characters((), negated=True)),
        ('root ::= "a"*', Repeat(one("a"), 0, None)),
        ('root ::= "a"+', Repeat(one("a"), 1, None)),
        ('root ::= ("a")?', Repeat(one("a"), 0, 1)),
        ('root ::= "a"{3}', Repeat(one("a"), 3, 3)),
        ('root ::= "a"{ 3 , }', Repeat(one("a"), 3, None)),
        ('root ::= "a"{0,3}', Repeat(one("a"), 0, 3)),
        ('root ::= "a" |', Alternatives((one("a"), Sequence(())))),
        ('# first\nroot::="a" # "x"\n  | "b"\n\n', Alternatives((one("a"), one("b")))),
        ('root ::= (\n"a"\n|\n"b"\n)', Alternatives((one("a"), one("b")))),
        (
            "root ::= root-2 root_2\nroot-2 ::= root_2\nroot_2 ::= .",
            Sequence((Reference("root-2"), Reference("root_2"))),
        ),
        ('root ::= "#" "//"', Sequence((one("#"), Sequence((one("/"), one("/")))))),
    ],
)
def test_reads(text: str, node: Node) -> None:
    assert ebnf.is_ebnf(text)
    assert ebnf.parse(text)["root"] == node


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('root ::= "a', "not closed"),
        ("root ::= [a", "not closed"),
        ('root ::= "a\\', "not closed|escape"),
        ("root ::= []", "empty"),
        ("root ::= [z-a]", "wrong way round"),
        ('root ::= ("a"', "group is not closed"),
        ('root ::= "a")', "line 1 cannot be parsed"),
        ('root ::= "a"\n\n= "b"', "line 3 cannot be parsed"),
        (r'root ::= "\q"', "escape"),
        (r'root ::= "\x4"', "escape"),
        (r'root ::= "\ud800"', "names no character"),
        (r'root ::= "\U00110000"', "names no character"),
        ('root ::= "a"{2,1}', "wrong way round"),
        ('root ::= "a"{,3}', "repetition"),
        ('root ::= "a"{3 4}', "repetition"),
        ('root ::= "a"{99999}', "10000"),
        ('root ::= "a"{99999999999999999999}', "10000"),
        ("root ::= " + "(" * 70 + '"a"' + ")" * 70, "64 deep"),
        ("root ::= a\na ::= b", "not defined"),
        ('root ::= "a"\nunused ::= nowhere', "not defined"),
        ('a ::= "a"', "no rule named root"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
    ],
)
def test_refuses(text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        ebnf.to_lark(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root ::= "a"', True),
        ('# c\n// d\n\n  root  ::= "a"', True),
        ('start: "::="', False),
        ('# root ::= "a"\nstart: "a"', False),
        ("", False),
        ("%ignore /a/", False),
    ],
)
def test_tells_the_dialects_apart(text: str, expected: bool) -> None:
    assert ebnf.is_ebnf(text) is expected


Table = dict[tuple[str, int], set[int]]
"""Where a rule may end, by its name and where it starts."""


def ends(node: Node, table: Table, text: str, start: int) -> set[int]:
    """Everywhere that a match of `node` from `start` may end, as far as `table` knows the rules."""
    match node:
        case Characters(ranges, negated):
            found = start < len(text) and any(low <= ord(text[start]) <= high for low, high in ranges) != negated
            return {start + 1} if found else set()
        case Reference(name):
            return table[name, start]
        case Alternatives(branches):
            return set().union(*(ends(branch, table, text, start) for branch in branches))
        case Sequence(items):
            here = {start}
            for item in items:
                here = set().union(*(ends(item, table, text, at) for at in here))
            return here
        case Repeat(item, least, most):
            reached, here = ({start} if least == 0 else set()), {start}
            for count in range(1, (most if most is not None else least + len(text)) + 1):
                here = set().union(*(ends(item, table, text, at) for at in here))
                reached |= here if count >= least else set()
            return reached


def matches(rules: dict[str, Node], text: str) -> bool:
    """Whether `root` derives `text`: the least table that all rules agree with."""
    places = [(name, start) for name in rules for start in range(len(text) + 1)]
    table: Table = {place: set() for place in places}
    changed = True
    while changed:
        changed = False
        for name, start in places:
            found = ends(rules[name], table, text, start)
            changed |= found != table[name, start]
            table[name, start] = found
    return len(text) in table["root", 0]


def render(node: Node) -> str:
    match node:
        case Characters(ranges, negated):
            return "[" + "^" * negated + "".join(f"\\x{low:02x}-\\x{high:02x}" for low, high in ranges) + "]"
        case Reference(name):
            return name
        case Alternatives(branches):
            return "(" + " | ".join(map(render, branches)) + ")"
        case Sequence(items):
            return "(" + (" ".join(map(render, items)) or '""') + ")"
        case Repeat(item, least, most):
            return f"({render(item)}){{{least},{'' if most is None else most}}}"


def nodes(names: list[str]) -> st.SearchStrategy[Node]:
    letters = (
        st.sampled_from("abc").map(one)
        | st.just(Characters(((97, 98),)))
        | st.just(Characters(((97, 97),), negated=True))
    )
    leaves: st.SearchStrategy[Node] = letters
    if names:
        leaves = leaves | st.sampled_from(names).map(Reference)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda items: Sequence(tuple(items))),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: Alternatives(tuple(items))),
            st.tuples(inner, st.sampled_from([(0, None), (1, None), (0, 1), (2, 3)])).map(
                lambda p: Repeat(p[0], *p[1])
            ),
        ),
        max_leaves=5,
    )


class _Bytes:
    eos_token_id, bos_token_id, special_token_ids, tokens = EOS, None, [EOS], SMALL.texts

    def __call__(self, _text: object) -> list[int]:
        return []


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))
LETTERS = (
    "",
    *"abc",
    *(a + b for a in "abc" for b in "abc"),
    *(a + b + c for a in "abc" for b in "abc" for c in "abc"),
)


@given(st.fixed_dictionaries({"root": nodes(["x", "root"]), "x": nodes(["x", "root"])}))
@settings(max_examples=60, deadline=None)
def test_translation_keeps_the_language(rules: dict[str, Node]) -> None:
    text = "\n".join(f"{name} ::= {render(node)}" for name, node in rules.items())
    expected = {word for word in LETTERS if matches(rules, word)}
    matcher = LLMatcher(TOKENIZER, ebnf.to_lark(text), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    found = set()
    for word in LETTERS:
        matcher.reset()
        if matcher.try_consume_tokens(spell(word)) == len(word) and matcher.is_accepting():
            found.add(word)
    assert found == expected
