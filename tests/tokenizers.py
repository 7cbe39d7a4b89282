"""Real tokenizers out of packages on the index, and vocabularies made of them. No model hub is asked."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploy.prepare_model import prepare
from vllm_grammar_backend.engines.vocabulary import Vocabulary, from_tokenizer

NAMES = ("smollm2", "deepseek", "tekken")


@cache
def tokenizer(name: str) -> Any:
    """The tokenizer object, of the kind that vLLM hands out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's import-time deprecations
        return {"smollm2": _smollm2, "deepseek": _deepseek, "tekken": _tekken}[name]()


@cache
def vocabulary(name: str) -> Vocabulary:
    """49,152, 129,280 and 131,072 ids."""
    found = tokenizer(name)
    if name == "tekken":
        return from_tokenizer(found, found.n_words, [found.eos_id])
    return from_tokenizer(found, len(found), [1] if name == "deepseek" else [])


def encode(name: str, text: str) -> list[int]:
    """The tokenizer's own tokens for `text`."""
    found = tokenizer(name)
    if name == "tekken":
        return list(found.encode(text, bos=False, eos=False))
    return list(found.encode(text, add_special_tokens=False))


def package_folder(name: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        message = f"the package {name} is not installed: pip install '.[test]'"
        raise ModuleNotFoundError(message)
    return Path(spec.origin).parent


def _smollm2() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(prepare("smollm2"), local_files_only=True)


def _deepseek() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(prepare("deepseek") / "tokenizer.json"))


def _tekken() -> Any:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    return Tekkenizer.from_file(package_folder("mistral_common") / "data" / "tekken_240911.json")
