"""Tiny random models of many architectures, a character tokenizer and a hashing embedder: no network, no weights."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    # Tests run side by side, one a core: more threads in each, children included, only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
import transformers
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tokenizers.decoders import Fuse
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from kvpacket_rag.corpus.document import Document
from kvpacket_rag.engine.transformers.packet_model import PacketModel
from kvpacket_rag.store.document_store import DocumentStore

transformers.utils.logging.disable_progress_bar()
if sys.platform != "win32":
    # Before the first test forks: children find everything imported, whichever test comes first.
    multiprocessing.set_forkserver_preload(["tests.support.crash_child"])

SPECIALS = ["<pad>", "<bos>", "<|im_start|>", "<|im_end|>"]
CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n", "é", "ü", "·", "…"]
VOCABULARY = len(SPECIALS) + 1 + len(CHARACTERS)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

BASE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 3,
    "initializer_range": 0.2,
}
LATENT = {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 3, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "head_dim": 8,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 512}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 1024, "factor": 8.0,
}  # fmt: skip

ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", {}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "yarn": ("llama", {"rope_parameters": YARN}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral-sliding": ("mistral", {"sliding_window": 24}),
    "gemma2": ("gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        {"sliding_window": 24, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    ),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1024}),
    "smollm3-nope": ("smollm3", {"num_hidden_layers": 4}),
    "glm-interleaved": ("glm", {}),
    "cohere": ("cohere", {}),
    "gpt-neox-partial": ("gpt_neox", {}),
    "olmo2": ("olmo2", {}),
    "deepseek-v3-latent": ("deepseek_v3", LATENT),
}


def tiny_config(name: str) -> object:
    kind, extra = ARCHITECTURES[name]
    return AutoConfig.for_model(kind, **{**BASE, **extra})


def tiny_hf(config: object, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).float().eval()


def character_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, "<unk>", *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(.|\\n)"), "isolated")
    backend.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<|im_end|>", unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(name: str = "llama", seed: int = 0, **options: object) -> PacketModel:
    return PacketModel(tiny_hf(tiny_config(name), seed), character_tokenizer(), name=f"tiny-{name}", **options)


@pytest.fixture(scope="session")
def llama() -> PacketModel:
    return tiny_model("llama")


@pytest.fixture(scope="session", params=list(ARCHITECTURES))
def any_model(request: pytest.FixtureRequest) -> PacketModel:
    return tiny_model(request.param)


class HashEmbedder:
    """Bag of words by hash: equal words are near, no weights needed."""

    name = "hash-64"
    dimension = 64

    def embed(self, texts: list[str]) -> list[list[float]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[float]:
        vector = [0.0] * self.dimension
        for word in "".join(c.lower() if c.isalnum() else " " for c in text).split():
            digest = hashlib.sha256(word.encode()).digest()
            vector[digest[0] % self.dimension] += 1.0 if digest[1] % 2 else -1.0
        norm = math.sqrt(sum(x * x for x in vector)) or 1.0
        return [x / norm for x in vector]


HANDBOOK = {
    "battery": "The battery of the lamp lasts nine days. It is charged with a blue cable in two hours.",
    "colour": "The lamp is sold in green and in ochre. The green one is made of glass.",
    "price": "A lamp costs 31 crowns. Spare shades cost 4 crowns each and come in pairs.",
    "care": "Wipe the shade with a dry cloth once a month. Never use soap on the ochre one.",
}


def handbook(**metadata: object) -> list[Document]:
    return [Document(text, id=name, metadata={"part": name, **metadata}) for name, text in HANDBOOK.items()]


@pytest.fixture
def open_store(tmp_path: Path, llama: PacketModel) -> Iterator[Callable[..., DocumentStore]]:
    opened = []

    def make(folder: str = "kb", **options: object) -> DocumentStore:
        # One packet a chunk, unless a test is about the second one.
        one = {"first_anchor": options.get("anchor", "passages")}
        given = {
            "model": llama, "embedder": HashEmbedder(), "chunk_tokens": 60, "storage": "float32", **one, **options
        }  # fmt: skip
        opened.append(DocumentStore.open(tmp_path / folder, **given))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., DocumentStore]) -> DocumentStore:
    made = open_store()
    made.add(handbook())
    return made


def blob_bytes(store: DocumentStore) -> dict[str, bytes]:
    root = store.folder / "packets"
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
