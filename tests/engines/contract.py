"""The suite that every backend's test class inherits. What is written here holds for all of them.

The oracle of most tests is the backend itself read byte by byte: masks over longer tokens must say the same.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import tokenizers
from tests.engines.samples import (
    ACCEPTED,
    DOCUMENTS,
    ESCAPES,
    MALFORMED,
    PERSON,
    PERSON_WITH_EXTRAS,
    TAGS,
    TREE,
    UNICODE,
    Sample,
    json_spec,
    spec,
    tree,
)
from tests.engines.vocabularies import EOS, OTHER_EOS, SMALL, SPECIAL, STOP_TEXT, spell
from vllm_grammar_backend import engines
from vllm_grammar_backend.engines.base import CompiledGrammar, Engine, Matcher, Row
from vllm_grammar_backend.engines.vocabulary import Vocabulary
from vllm_grammar_backend.errors import GrammarError
from vllm_grammar_backend.grammar import GrammarKind, GrammarSpec, Whitespace

STOPS = (EOS, OTHER_EOS)
WALK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


@cache
def engine_of(backend: str, vocabulary: str) -> Engine:
    return engines.load(backend, SMALL if vocabulary == "small" else tokenizers.vocabulary(vocabulary))


@cache
def grammar_of(backend: str, wanted: GrammarSpec, vocabulary: str = "small") -> CompiledGrammar:
    return engine_of(backend, vocabulary).compile(wanted)


def row_of(matcher: Matcher, vocabulary: Vocabulary = SMALL) -> Row:
    row = np.full(vocabulary.row_width, 0x5A5A5A5A, dtype=np.int32)
    matcher.fill(row)
    return row


def allowed(matcher: Matcher, vocabulary: Vocabulary = SMALL) -> set[int]:
    bits = np.unpackbits(row_of(matcher, vocabulary).view(np.uint8), bitorder="little")
    return {int(index) for index in np.nonzero(bits)[0]}


def permits(matcher: Matcher, token: int, vocabulary: Vocabulary) -> bool:
    return bool(row_of(matcher, vocabulary).view(np.uint32)[token // 32] >> np.uint32(token % 32) & np.uint32(1))


def walked(matcher: Matcher) -> set[int]:
    """What a mask must be: each token's bytes tried one by one, and the stop tokens where the document may end."""
    texts = {
        index
        for index, token in enumerate(SMALL.texts)
        if token and index not in STOPS and matcher.validate(spell(token)) == len(token)
    }
    return texts | (set(STOPS) if matcher.accepting else set())


def accepts(matcher: Matcher, text: str) -> bool:
    matcher.reset()
    return matcher.accept(spell(text)) and matcher.accept([EOS])


def _around(length: int) -> list[int]:
    return [length - 1, length, length + 1]


class EngineContract:
    backend: ClassVar[str]
    leaves_out: ClassVar[frozenset[str]] = frozenset()
    """Texts of `ESCAPES` that the library does not produce. Sound, and narrower than JSON."""

    def matcher(self, wanted: GrammarSpec, stops: tuple[int, ...] = STOPS) -> Matcher:
        return grammar_of(self.backend, wanted).matcher(stops)

    def wander(self, data: st.DataObject, matcher: Matcher, steps: int) -> list[int]:
        """Accept up to `steps` tokens drawn from the masks, stop tokens excepted."""
        taken: list[int] = []
        for _ in range(data.draw(st.integers(0, steps))):
            choices = sorted(allowed(matcher) - set(STOPS))
            if not choices:
                break
            token = data.draw(st.sampled_from(choices))
            assert matcher.accept([token])
            taken.append(token)
        return taken

    # Identity.

    def test_names(self) -> None:
        found = engine_of(self.backend, "small")
        assert found.name == self.backend
        assert engines.distribution(self.backend) == found.distribution
        assert engines.installed_version(self.backend)
        assert found.vocabulary is SMALL

    # Languages.

    @pytest.mark.parametrize("sample", ACCEPTED, ids=lambda sample: sample.name)
    def test_language(self, sample: Sample) -> None:
        matcher = self.matcher(sample.spec)
        assert [text for text in sample.valid if not accepts(matcher, text)] == []
        assert [text for text in sample.invalid if accepts(matcher, text)] == []

    @pytest.mark.parametrize("sample", TAGS, ids=lambda sample: sample.name)
    @pytest.mark.parametrize("whitespace", [Whitespace.BOUNDED, Whitespace.FLEXIBLE])
    def test_structural_tag(self, sample: Sample, whitespace: Whitespace) -> None:
        matcher = self.matcher(spec(GrammarKind.STRUCTURAL_TAG, sample.spec.text, whitespace=whitespace))
        assert [text for text in sample.valid if not accepts(matcher, text)] == []
        assert [text for text in sample.invalid if accepts(matcher, text)] == []

    @pytest.mark.parametrize("letters", ["a", "é", "\n", '"\\', "a\x1f日\t\U0001f600z"])
    @pytest.mark.parametrize(
        ("low", "high"), [(0, 63), (0, 64), (0, 65), (1, 128), (63, 129), (65, 200), (70, 400), (130, None), (64, None)]
    )
    def test_length_of_a_string(self, low: int, high: int | None, letters: str) -> None:
        """Where a backend counts in portions, at their edges and beyond."""
        bounds = {"minLength": low} if high is None else {"minLength": low, "maxLength": high}
        matcher = self.matcher(json_spec({"type": "string", **bounds}))
        for length in sorted({0, 1, abs(low - 1), low, low + 1, 63, 64, 65, 127, 128, 129, *_around(high or 401)}):
            text = json.dumps((letters * length)[:length], ensure_ascii=False)
            assert accepts(matcher, text) == (low <= length <= (high or length)), (length, text)

    @pytest.mark.parametrize("gap", ['{%s"x": 1}', '{"x"%s: 1}', '{"x":%s1}', '{"x": 1%s}'])
    @pytest.mark.parametrize(("whitespace", "served"), [(Whitespace.BOUNDED, False), (Whitespace.FLEXIBLE, True)])
    def test_whitespace_in_a_tag(self, gap: str, whitespace: Whitespace, *, served: bool) -> None:
        schema = {"type": "object", "properties": {"x": {"enum": [1]}}, "required": ["x"]}
        tag = {"type": "tag", "begin": "<t>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</t>"}
        text = json.dumps({"type": "structural_tag", "format": tag})
        matcher = self.matcher(spec(GrammarKind.STRUCTURAL_TAG, text, whitespace=whitespace))
        assert accepts(matcher, f"<t>{gap % ''}</t>")
        assert accepts(matcher, f"<t>{gap % (' ' * 300)}</t>") is served

    @given(st.lists(st.text(max_size=4), min_size=1, max_size=5), st.data())
    @WALK
    def test_choice_against_its_strings(self, strings: list[str], data: st.DataObject) -> None:
        wanted = spec(GrammarKind.CHOICE, json.dumps(strings))
        matcher = engine_of(self.backend, "small").compile(wanted).matcher(STOPS)
        encoded = [string.encode() for string in strings]
        prefix = b""
        while True:
            texts = SMALL.texts
            expected = {i for i, text in enumerate(texts) if text and any(e.startswith(prefix + text) for e in encoded)}
            expected |= set(STOPS) if prefix in encoded else set()
            assert allowed(matcher) == expected
            choices = sorted(expected - set(STOPS))
            if not choices:
                break
            token = data.draw(st.sampled_from(choices))
            assert matcher.accept([token])
            prefix += texts[token]

    @pytest.mark.parametrize(("wanted", "code"), MALFORMED)
    def test_malformed_is_refused_without_a_word_of_it(self, wanted: GrammarSpec, code: str) -> None:
        with pytest.raises(GrammarError) as caught:
            engine_of(self.backend, "small").compile(wanted)
        assert caught.value.code == code
        assert "s3cret" not in str(caught.value)

    def test_malformed_leaves_the_engine_in_order(self) -> None:
        engine = engine_of(self.backend, "small")
        for wanted, _ in MALFORMED:
            with pytest.raises(GrammarError):
                engine.compile(wanted)
        assert accepts(engine.compile(spec(GrammarKind.CHOICE, '["a"]')).matcher(STOPS), "a")

    @pytest.mark.parametrize("document", DOCUMENTS)
    @pytest.mark.parametrize("whitespace", [Whitespace.BOUNDED, Whitespace.FLEXIBLE])
    def test_usual_ways_to_write_json(self, document: object, whitespace: Whitespace) -> None:
        matcher = self.matcher(json_spec({}, whitespace))
        texts = [json.dumps(document), json.dumps(document, separators=(",", ":"), ensure_ascii=False)]
        texts += [json.dumps(document, indent=indent) for indent in (1, 2, 4, "\t")]
        assert [text for text in texts if not accepts(matcher, text)] == []
        assert [text for text in texts if accepts(matcher, f" {text}") or accepts(matcher, f"{text}\n")] == []

    @pytest.mark.parametrize("text", ESCAPES)
    def test_escapes_that_are_not_needed(self, text: str) -> None:
        assert accepts(self.matcher(json_spec({})), text) == (text not in self.leaves_out)

    def test_whitespace_runs(self) -> None:
        wanted = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        bounded = self.matcher(json_spec(wanted, Whitespace.BOUNDED))
        flexible = self.matcher(json_spec(wanted, Whitespace.FLEXIBLE))
        for shape in ('{"a":%s1}', '{%s"a":1}', '{"a"%s:1}', '{"a":1%s}', '{"a":1,%s"b": [1]}', '{"a":1, "b": [%s]}'):
            assert accepts(bounded, shape % ("\n" + " " * 31))
            assert not accepts(bounded, shape % (" " * 33))
            assert accepts(flexible, shape % ("\t \r\n" * 50))
        assert accepts(bounded, json.dumps({"a": 1, "b": " " * 200}))

    def test_compact_leaves_no_choice(self) -> None:
        matcher = self.matcher(json_spec({"type": "array", "items": {"type": "integer"}}, Whitespace.COMPACT))
        texts = ["[1, 2]", "[1,2]", "[ 1,2]", "[1 ,2]", "[1,2 ]", "[1,  2]", "[1,\n2]"]
        assert [accepts(matcher, text) for text in texts].count(True) == 1

    # Masks.

    def test_after_a_key_that_wants_a_number(self) -> None:
        matcher = self.matcher(json_spec(PERSON))
        assert matcher.accept(spell('{"name":"ada","age":'))
        found = allowed(matcher)
        assert set(spell("0123456789-")) <= found
        assert set(spell(" \n\t\r")) <= found
        assert {SMALL.tokens.index(token) for token in (b"12", b"-1", b"  ", b"\n  ")} <= found
        assert found.isdisjoint(spell('"}]tfn,:e'))
        assert found.isdisjoint(SMALL.tokens.index(token) for token in (b"null", b'"}', b"00", b"true", b", "))
        assert matcher.accept(spell(" "))
        assert allowed(matcher).isdisjoint(spell("n"))

    @pytest.mark.parametrize("sample", [*ACCEPTED, *TAGS], ids=lambda sample: sample.name)
    def test_mask_is_a_walk_over_the_vocabulary(self, sample: Sample) -> None:
        matcher = self.matcher(sample.spec)
        picks = random.Random(sample.name)
        for text in sample.valid[:3]:
            matcher.reset()
            for byte in spell(text)[:80]:
                if picks.random() < 0.4:
                    assert allowed(matcher) == walked(matcher)
                assert matcher.accept([byte])
            assert allowed(matcher) == walked(matcher)

    @given(st.data())
    @WALK
    def test_mask_is_a_walk_wherever_a_model_may_go(self, data: st.DataObject) -> None:
        matcher = self.matcher(data.draw(st.sampled_from(ACCEPTED)).spec)
        self.wander(data, matcher, 15)
        assert allowed(matcher) == walked(matcher)

    @given(st.data())
    @WALK
    def test_rows_are_never_empty_and_never_wide(self, data: st.DataObject) -> None:
        matcher = self.matcher(data.draw(st.sampled_from([*ACCEPTED, *TAGS])).spec)
        self.wander(data, matcher, 25)
        found = allowed(matcher)
        assert found
        assert max(found) < SMALL.size
        assert SPECIAL not in found
        assert matcher.dead_ends == 0
        assert not any(SMALL.tokens[index] == b"" for index in found)

    @given(st.data())
    @WALK
    def test_mask_and_accept_agree(self, data: st.DataObject) -> None:
        matcher = self.matcher(data.draw(st.sampled_from([*ACCEPTED, *TAGS])).spec)
        self.wander(data, matcher, 10)
        found = allowed(matcher)
        for token in range(-2, SMALL.size + 40):
            assert matcher.validate([token]) == (token in found), token
        assert allowed(matcher) == found

    @given(st.data())
    @WALK
    def test_every_segmentation_is_accepted(self, data: st.DataObject) -> None:
        sample = data.draw(st.sampled_from([*ACCEPTED, *TAGS]))
        matcher = self.matcher(sample.spec)
        matcher.reset()
        rest = data.draw(st.sampled_from(sample.valid)).encode()
        while rest:
            choices = [index for index, token in enumerate(SMALL.texts) if token and rest.startswith(token)]
            token = data.draw(st.sampled_from(choices))
            assert token in allowed(matcher)
            assert matcher.accept([token])
            rest = rest[len(SMALL.texts[token]) :]
        assert matcher.accepting

    # Stop tokens.

    def test_stop_tokens_only_where_the_document_may_end(self) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["1", "11"]'))
        assert allowed(matcher).isdisjoint(STOPS)
        assert not matcher.accept([EOS])
        assert matcher.accept(spell("1"))
        assert allowed(matcher) == {*spell("1"), *STOPS}
        assert matcher.accepting
        assert not matcher.finished
        assert matcher.accept(spell("1"))
        assert allowed(matcher) == set(STOPS)

    def test_nothing_but_stop_tokens_after_one(self) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["1", "11"]'))
        assert matcher.accept([*spell("1"), EOS])
        for _ in range(5):
            assert matcher.finished
            assert allowed(matcher) == set(STOPS)
            assert not matcher.accept(spell("1"))
            assert not matcher.accept([SPECIAL])
            assert matcher.validate([EOS, OTHER_EOS, *spell("1")]) == 2
            assert matcher.accept([OTHER_EOS])
        matcher.rollback(6)
        assert not matcher.finished
        assert matcher.accept(spell("1"))

    def test_stop_tokens_with_text_of_the_grammar(self) -> None:
        matcher = self.matcher(json_spec(PERSON_WITH_EXTRAS), stops=(*STOPS, STOP_TEXT))
        assert matcher.accept(spell('{"name":"ada","age":1'))
        assert STOP_TEXT not in allowed(matcher)
        assert not matcher.accept([STOP_TEXT])
        assert matcher.accept(spell("}"))
        assert STOP_TEXT in allowed(matcher)

    def test_where_only_stop_tokens_could_go_on_they_end_the_text(self) -> None:
        one, two = spell("1")[0], spell("2")[0]
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["1", "2"]'), stops=(*STOPS, one, two))
        assert allowed(matcher) == {one, two}
        assert not matcher.accept([EOS])
        assert matcher.validate([one, EOS]) == 2
        assert matcher.accept([two])
        assert matcher.finished
        matcher.rollback(1)
        assert allowed(matcher) == {one, two}

    def test_stop_ids_past_the_vocabulary(self) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["1"]'), stops=(-1, EOS, SMALL.size, 10**9))
        assert matcher.accept(spell("1"))
        assert allowed(matcher) == {EOS}
        assert not matcher.accept([10**9])

    def test_no_stop_tokens_mean_the_vocabularys(self) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["1"]'), stops=())
        assert matcher.accept(spell("1"))
        assert allowed(matcher) == set(STOPS)

    @pytest.mark.parametrize("text", ["<|special|>", "<|end|>"])
    def test_special_tokens_never_match_text(self, text: str) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, json.dumps([text])))
        assert allowed(matcher) == {*spell("<")}
        assert not matcher.accept([SPECIAL])
        assert accepts(matcher, text)

    # Positions.

    @given(st.data())
    @WALK
    def test_rollback_after_accept_is_the_identity(self, data: st.DataObject) -> None:
        matcher = self.matcher(data.draw(st.sampled_from([*ACCEPTED, *TAGS])).spec)
        self.wander(data, matcher, 8)
        before = row_of(matcher)
        ending = matcher.accepting
        taken = self.wander(data, matcher, 6)
        if data.draw(st.booleans()):
            assert not matcher.accept([SPECIAL])
        stops = [EOS] * data.draw(st.integers(0, 2)) if matcher.accepting else []
        assert matcher.accept(stops)
        first = data.draw(st.integers(0, len(taken) + len(stops)))
        matcher.rollback(first)
        matcher.rollback(len(taken) + len(stops) - first)
        assert np.array_equal(row_of(matcher), before)
        assert matcher.accepting == ending
        assert matcher.accept(taken)

    @given(st.data())
    @WALK
    def test_accept_takes_all_or_nothing_and_validate_does_not_move(self, data: st.DataObject) -> None:
        matcher = self.matcher(data.draw(st.sampled_from([*ACCEPTED, *TAGS])).spec)
        self.wander(data, matcher, 8)
        before = row_of(matcher)
        twin = matcher.copy()
        tokens = self.wander(data, twin, 6) + data.draw(st.lists(st.integers(-1, SMALL.size), max_size=3))
        count = matcher.validate(tokens)
        assert np.array_equal(row_of(matcher), before)
        assert matcher.accept(tokens) == (count == len(tokens))
        if count < len(tokens):
            assert np.array_equal(row_of(matcher), before)
            assert matcher.accept(tokens[:count])
            assert not matcher.accept(tokens[count : count + 1])

    @given(st.data())
    @WALK
    def test_copies_and_matchers_are_independent(self, data: st.DataObject) -> None:
        grammar = grammar_of(self.backend, data.draw(st.sampled_from(ACCEPTED)).spec)
        start = row_of(grammar.matcher(STOPS))
        matcher = grammar.matcher(STOPS)
        taken = self.wander(data, matcher, 8)
        here = row_of(matcher)
        twin = matcher.copy()
        assert np.array_equal(row_of(twin), here)
        self.wander(data, twin, 5)
        assert np.array_equal(row_of(matcher), here)
        twin.reset()
        assert np.array_equal(row_of(twin), start)
        assert twin.accept(taken)
        assert np.array_equal(row_of(twin), here)
        matcher.rollback(len(taken))
        assert np.array_equal(row_of(grammar.matcher(STOPS)), start)

    def test_reset_after_the_end(self) -> None:
        matcher = self.matcher(spec(GrammarKind.CHOICE, '["ab"]'))
        start = row_of(matcher)
        assert matcher.accept([*spell("ab"), EOS])
        matcher.reset()
        assert not matcher.finished
        assert np.array_equal(row_of(matcher), start)

    def test_one_grammar_in_many_threads(self) -> None:
        grammar = engine_of(self.backend, "small").compile(json_spec(TREE))
        text = json.dumps(tree(8))

        def walk(_: int) -> bool:
            matcher = grammar.matcher(STOPS)
            return all(index in allowed(matcher) and matcher.accept([index]) for index in spell(text))

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(walk, range(12)))

    # Size.

    def test_size_grows_with_the_schema(self) -> None:
        small = grammar_of(self.backend, json_spec({"type": "integer"}))
        large = grammar_of(self.backend, json_spec({"enum": [f"value {number}" for number in range(2000)]}))
        assert 1000 < small.nbytes < large.nbytes < 100_000_000

    # Real tokenizers.

    @pytest.mark.parametrize("name", tokenizers.NAMES)
    @pytest.mark.parametrize("text", UNICODE)
    def test_unicode_in_the_tokenizers_own_tokens(self, name: str, text: str) -> None:
        vocabulary = tokenizers.vocabulary(name)
        stop = min(vocabulary.eos_ids)
        matcher = grammar_of(self.backend, json_spec({}), name).matcher([stop])
        for token in tokenizers.encode(name, text):
            assert permits(matcher, token, vocabulary)
            assert matcher.accept([token])
        assert permits(matcher, stop, vocabulary)
        assert matcher.accept([stop])

    @pytest.mark.parametrize("name", tokenizers.NAMES)
    def test_random_segmentations_of_real_tokens(self, name: str) -> None:
        vocabulary = tokenizers.vocabulary(name)
        known = {text: index for index, text in enumerate(vocabulary.texts) if text}
        longest = max(map(len, known))
        picks = random.Random(name)
        matcher = grammar_of(self.backend, json_spec({}), name).matcher(vocabulary.eos_ids)
        for text in UNICODE:
            matcher.reset()
            rest = text.encode()
            while rest:
                size = picks.choice([size for size in range(1, longest + 1) if rest[:size] in known])
                token = known[rest[:size]]
                assert permits(matcher, token, vocabulary)
                assert matcher.accept([token])
                rest = rest[len(vocabulary.texts[token]) :]
            assert matcher.accepting

    @pytest.mark.parametrize("name", tokenizers.NAMES)
    def test_recursive_tree_of_twenty_levels(self, name: str) -> None:
        vocabulary = tokenizers.vocabulary(name)
        matcher = grammar_of(self.backend, json_spec(TREE), name).matcher(vocabulary.eos_ids)
        assert matcher.accept(tokenizers.encode(name, json.dumps(tree(20))))
        assert matcher.accepting
        matcher.reset()
        broken = json.dumps(tree(20)).replace('"children": []', '"children": [1]')
        assert matcher.validate(tokenizers.encode(name, broken)) < len(tokenizers.encode(name, broken))

    @pytest.mark.parametrize("name", tokenizers.NAMES)
    def test_masks_of_real_tokens_against_bytes(self, name: str) -> None:
        vocabulary = tokenizers.vocabulary(name)
        matcher = grammar_of(self.backend, json_spec(PERSON), name).matcher(vocabulary.eos_ids)
        by_byte = self.matcher(json_spec(PERSON))
        picks = random.Random(name)
        for prefix in ("", '{"na', '{"name": "z', '{"name": "z\\', '{"name": "z", "age": ', '{"name": "z", "age": 1'):
            matcher.reset()
            by_byte.reset()
            assert matcher.accept(tokenizers.encode(name, prefix))
            assert by_byte.accept(spell(prefix))
            found = allowed(matcher, vocabulary)
            sample = {*picks.sample(range(vocabulary.size), 2000), *picks.sample(sorted(found), min(len(found), 2000))}
            for index in sample - vocabulary.eos_ids:
                text = vocabulary.texts[index]
                assert (index in found) == (bool(text) and by_byte.validate(spell(text)) == len(text)), index
