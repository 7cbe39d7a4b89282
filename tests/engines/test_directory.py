"""The vocabulary of a model's directory is the one that vLLM gives an engine: what is stored under it is found."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests import tokenizers
from vllm_grammar_backend.engines.vocabulary import Vocabulary, end_ids, from_directory, from_tokenizer
from vllm_grammar_backend.errors import StartupError

pytestmark = pytest.mark.slow
LLAMA: dict[str, Any] = {"model_type": "llama", "vocab_size": 49152}
GEMMA: dict[str, Any] = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 64}}
"""Leaves the width of its logits and its ends to the class, as the published ones do."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a tokenizer and nothing else."""
    for file in Path(tokenizers.tokenizer("smollm2").name_or_path).glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    return tmp_path


def as_served(directory: Path) -> Vocabulary:
    """What the plugin's engine side makes of vLLM's configuration of this model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own imports warn of things that are not ours
        from vllm.transformers_utils.config import get_config, get_hf_text_config, try_get_generation_config

        config = get_config(str(directory), trust_remote_code=False)
        generation = try_get_generation_config(str(directory), trust_remote_code=False)
    ends = end_ids(generation.to_diff_dict() if generation else {}, vars(config))
    return from_tokenizer(tokenizers.tokenizer("smollm2"), get_hf_text_config(config).vocab_size, ends)


@pytest.mark.parametrize(
    ("config", "generation", "size", "ends"),
    [
        (LLAMA, None, 49152, {2}),
        (LLAMA | {"vocab_size": 50000, "eos_token_id": [0, 7]}, None, 50000, {0, 2, 7}),
        (LLAMA, {"eos_token_id": [0, 2]}, 49152, {0, 2}),
        (GEMMA, None, 262208, {1, 2}),
        (GEMMA, {"eos_token_id": [1, 106]}, 262208, {1, 2, 106}),
        ({"model_type": "llava", "text_config": {"model_type": "llama"}}, None, 32000, {2}),
    ],
)
def test_as_an_engine_has_it(
    model: Path, config: dict[str, Any], generation: dict[str, Any] | None, size: int, ends: set[int]
) -> None:
    (model / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (model / "generation_config.json").write_text(json.dumps(generation))
    found = from_directory(str(model))
    assert (found.size, set(found.eos_ids)) == (size, ends)
    assert found.digest == as_served(model).digest


def test_a_tokenizer_alone_is_enough(model: Path) -> None:
    assert from_directory(str(model)).digest == tokenizers.vocabulary("smollm2").digest


def test_a_configuration_whose_class_is_the_models_own(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "ours", "text_config": {"vocab_size": 50001}}')
    (model / "generation_config.json").write_text('{"eos_token_id": 9}')
    found = from_directory(str(model))
    assert (found.size, set(found.eos_ids)) == (50001, {2, 9})


def test_a_damaged_configuration_is_named(model: Path) -> None:
    (model / "config.json").write_text("{")
    with pytest.raises(StartupError, match=r"config\.json"):
        from_directory(str(model))


def test_a_mistral_directory(tmp_path: Path) -> None:
    data = tokenizers.package_folder("mistral_common") / "data" / "tekken_240911.json"
    shutil.copy(data, tmp_path / "tekken.json")
    assert from_directory(str(tmp_path)).digest == tokenizers.vocabulary("tekken").digest
    (tmp_path / "config.json").write_text('{"model_type": "mistral", "vocab_size": 131104, "eos_token_id": [2, 4]}')
    found = from_directory(str(tmp_path))
    assert (found.size, set(found.eos_ids)) == (131104, {2, 4})
