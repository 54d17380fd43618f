"""Tiny language models of four families from their configs, and batches of them with padding, masks and packing."""

from __future__ import annotations

import pytest
import torch

import tests.integrations.torchvision_operators  # noqa: F401

transformers = pytest.importorskip("transformers")

VOCABULARY = 23
TARGETS = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj", "down_proj"], "t5": ["q", "v", "wo"]}
TARGETS |= {"bert": ["query", "value"]}


def gpt2(**settings):
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32, "n_inner": 12}
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **(sizes | off | settings))
    )


def llama(**settings):
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=1, **(sizes | settings))
    )


def t5(**settings):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    config = transformers.T5Config(
        vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0, **(sizes | settings)
    )
    return transformers.T5ForConditionalGeneration(config)


def bert(**settings):
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 32}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=VOCABULARY, **(sizes | off | settings)))


FAMILIES = {"gpt2": gpt2, "llama": llama, "t5": t5, "bert": bert}


def build(family, *, lora, seed=0, **settings):
    """A model in training mode, with weights that are not those of its start: LoRA's B is 0 there."""
    torch.manual_seed(seed)
    model = FAMILIES[family](**settings)
    if lora:
        peft = pytest.importorskip("peft")
        kind = {"t5": "SEQ_2_SEQ_LM", "bert": None}.get(family, "CAUSAL_LM")  # PEFT has no kind for masked models
        config = peft.LoraConfig(r=3, lora_alpha=6, lora_dropout=0.0, target_modules=TARGETS[family], task_type=kind)
        model = peft.get_peft_model(model, config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.train()


def in_double(model, monkeypatch):
    """The model in float64 throughout: its norms and the softmax of a T5 would compute in float32."""
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if type(child).__name__ in ("LlamaRMSNorm", "T5LayerNorm"):
                norm = torch.nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(part, name, norm)
    narrow = torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrow(x))
    return model.double()


def padded_batch(family, side, count=4, longest=9, seed=1):
    """Sequences of several lengths, padded on one side; the first tokens of each are a prompt without a loss."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, longest + 1, (count,), generator=generator)
    lengths[0] = longest
    tokens = torch.randint(1, VOCABULARY, (count, longest), generator=generator)
    steps = torch.arange(longest)
    place = steps - (longest - lengths[:, None]) if side == "left" else steps.expand(count, -1)
    is_real = (place >= 0) & (place < lengths[:, None])
    tokens = torch.where(is_real, tokens, 0)
    batch = {"input_ids": tokens, "attention_mask": is_real.long()}
    is_answer = is_real & (place >= 2)
    if family == "t5":
        targets = torch.randint(1, VOCABULARY, (count, 6), generator=generator)
        return batch | {"labels": torch.where(torch.arange(6) < lengths[:, None] - 3, targets, -100)}
    if family == "bert":  # some tokens are masked, and only these are to be predicted
        is_masked = is_real & ((torch.rand(tokens.shape, generator=generator) < 0.4) | (place == 1))
        return batch | {
            "input_ids": torch.where(is_masked, 0, tokens),
            "labels": torch.where(is_masked, tokens, -100),
        }
    return batch | {"labels": torch.where(is_answer, tokens, -100)}


def sequences(count, seed, family="gpt2"):
    """Items of several lengths, without padding."""
    batch = padded_batch(family, "right", count=count, seed=seed)
    sizes = batch["attention_mask"].sum(1).tolist()
    cut = ("input_ids",) if family == "t5" else ("input_ids", "labels")  # a T5's labels have a length of their own
    return [{name: batch[name][i, :n] if name in cut else batch[name][i] for name in ("input_ids", "labels")}
            for i, n in enumerate(sizes)]  # fmt: skip


def without_tokens(items):
    """The same sequences with nothing to predict."""
    return [{**item, "labels": torch.full_like(item["labels"], -100)} for item in items]


def packed_batch(lengths=(5, 3, 4), seed=2):
    """Sequences one after another in one row, each with positions from 0; no label crosses from one to the next."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randint(1, VOCABULARY, (length,), generator=generator) for length in lengths]
    labels = [torch.cat([torch.tensor([-100]), part[1:]]) for part in parts]
    positions = torch.cat([torch.arange(length) for length in lengths])
    batch = {"input_ids": torch.cat(parts)[None], "labels": torch.cat(labels)[None], "position_ids": positions[None]}
    return batch | {"use_cache": False}  # with a cache, Transformers lets sequences attend to one another
