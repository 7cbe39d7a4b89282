"""The vocabulary as xgrammar holds it, with a mistake of the library put right.

xgrammar walks the sorted vocabulary and skips, behind a token that cannot stand, all that begin with it. How far that
is it computes wrongly (0.2.8): it takes for an extension whatever *contains* the token. A few tokens of every
vocabulary (3 of SmolLM2's, 5 of 129k, 7 of tekken's) are skipped with one that they merely end in, so masks lack them
where they are legal: `"age":` behind `":` for one. `subtree_ends` and its caller can go once the library's own figures
agree; a test tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import xgrammar as xgr

from vllm_grammar_backend.engines.vocabulary import Vocabulary

_RANGES: Final = re.compile(r'("trie_subtree_nodes_range"\s*:\s*)(\[[\d,\s]*\])')


def subtree_ends(ordered: Sequence[bytes]) -> list[int]:
    """For each token of a sorted vocabulary the index of the first one after it that does not begin with it."""
    ends = [len(ordered)] * len(ordered)
    open_prefixes: list[int] = []
    for index, token in enumerate(ordered):
        while open_prefixes and not token.startswith(ordered[open_prefixes[-1]]):
            ends[open_prefixes.pop()] = index
        open_prefixes.append(index)
    return ends


def library_info(vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    """The vocabulary as the library makes it."""
    # The library takes every token without text for a special one: it neither allows nor accepts those.
    return xgr.TokenizerInfo(
        vocabulary.texts,
        xgr.VocabType.RAW,
        vocab_size=vocabulary.size,
        stop_token_ids=[min(vocabulary.eos_ids)],
    )


def tokenizer_info(vocabulary: Vocabulary) -> xgr.TokenizerInfo:
    """The vocabulary for the library, put right by way of its own serialized form (1 s at 129k, once per engine)."""
    made = library_info(vocabulary)
    text = made.serialize_json()
    found = _RANGES.search(text)
    right = subtree_ends(sorted(token for token in vocabulary.texts if token))
    if found is None or json.loads(found[2]) == right:
        return made
    return xgr.TokenizerInfo.deserialize_json(f"{text[: found.start(2)]}{json.dumps(right)}{text[found.end(2) :]}")
