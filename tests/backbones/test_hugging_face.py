"""Models of transformers and sentence-transformers: pooling beside a reference computed by hand, folders, poolers."""

import json

import numpy as np
import pytest
import torch

from sgoif.backbones import load_encoder, names
from sgoif.errors import SgoifError
from tests.backbones.tiny import TEXTS, minilm_folder, pictures, save_vit


@pytest.fixture(scope="module")
def mean_pooled():
    """MiniLM's token vectors, one text at a time, averaged over its own tokens."""
    folder = minilm_folder()
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in TEXTS:
        tokens = tokenizer([text], truncation=True, max_length=512, return_tensors="pt")
        with torch.inference_mode():
            rows.append(model(**tokens).last_hidden_state[0].mean(0).numpy())
    return np.stack(rows)


def test_texts_are_averaged_over_their_own_tokens(mean_pooled):
    encoder = load_encoder(f"hf:{minilm_folder()}", takes="texts")
    assert (encoder.takes, encoder.side) == ("texts", None)
    rows = encoder.embed(TEXTS)
    assert rows.shape == (len(TEXTS), 384) and rows.dtype == np.float32
    np.testing.assert_allclose(rows, mean_pooled, atol=2e-5)  # padding changes the order of sums alone


def test_sentence_transformers_pool_and_normalise_themselves(mean_pooled):
    pytest.importorskip("sentence_transformers")
    encoder = load_encoder(f"sentence:{minilm_folder()}", takes="texts")
    short = [i for i, text in enumerate(TEXTS) if len(text) < 200]  # longer ones are cut at 256 tokens there
    expected = mean_pooled[short] / np.linalg.norm(mean_pooled[short], axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.embed([TEXTS[i] for i in short]), expected, atol=2e-5)


@pytest.mark.parametrize("prefix", ["hf", "sentence"])
def test_texts_that_are_read_in_part_are_counted(prefix):
    pytest.importorskip("sentence_transformers" if prefix == "sentence" else "transformers")
    encoder = load_encoder(f"{prefix}:{minilm_folder()}", takes="texts")
    encoder.embed([*TEXTS, "word " * 600])
    assert encoder.num_truncated == (2 if prefix == "sentence" else 1)  # 256 and 512 tokens are read


def reference(model, shown):
    """What a ViT with the processor of ``save_vit`` gives, computed step by step."""
    scaled = np.stack([np.asarray(one.resize((32, 32), 2), np.float32) / 255 for one in shown])
    inputs = (scaled - np.array([0.5, 0.4, 0.3])) / np.array([0.5, 0.25, 0.2])
    with torch.inference_mode():
        return model(pixel_values=torch.from_numpy(inputs).float().permute(0, 3, 1, 2))


@pytest.fixture
def vit(tmp_path):
    """A model, the folder that it was saved to, and the name of this backbone."""
    folder = tmp_path / "vit"
    return save_vit(folder), folder, f"hf:{folder}"


def drop_tensors(folder, of):
    safetensors, file = pytest.importorskip("safetensors.torch"), folder / "model.safetensors"
    tensors = safetensors.load_file(file)
    kept = {name: value for name, value in tensors.items() if of not in name}
    assert len(kept) < len(tensors)
    safetensors.save_file(kept, file, metadata={"format": "pt"})


def test_pictures_go_through_the_models_own_processor_and_pooler(vit):
    model, folder, name = vit
    encoder = load_encoder(name, takes="pictures")
    expected = reference(model, pictures())
    assert encoder.side == 32
    np.testing.assert_allclose(encoder.embed(pictures()), expected.pooler_output.numpy(), atol=1e-5)
    drop_tensors(folder, "pooler")  # a pooler without weights gives way to the class token
    found = load_encoder(name, takes="pictures").embed(pictures())
    np.testing.assert_allclose(found, expected.last_hidden_state[:, 0].numpy(), atol=1e-5)
    drop_tensors(folder, "layernorm_before")
    with pytest.raises(SgoifError, match=r"lack 2 of its tensors .*random numbers"):
        load_encoder(name, takes="pictures")


def test_weights_may_come_from_a_file_of_a_classifier(vit, tmp_path):
    model, folder, name = vit
    tensors = {f"vit.{key}": value for key, value in model.state_dict().items()}
    tensors["classifier.weight"] = torch.ones(2, 16)
    pytest.importorskip("safetensors.torch").save_file(tensors, tmp_path / "weights.safetensors")
    (folder / "model.safetensors").unlink()
    encoder = load_encoder(name, takes="pictures", weights=tmp_path / "weights.safetensors")
    expected = reference(model, pictures()).pooler_output.numpy()
    np.testing.assert_allclose(encoder.embed(pictures()), expected, atol=1e-5)
    with pytest.raises(SgoifError, match=r"cannot be loaded: OSError: .*name the folder: hf:FOLDER; .*--weights FILE"):
        load_encoder(name, takes="pictures")


def test_the_fingerprint_follows_weights_and_processor(vit):
    model, folder, name = vit
    first = load_encoder(name, takes="pictures").fingerprint
    assert load_encoder(name, takes="pictures").fingerprint == first
    config = folder / "preprocessor_config.json"
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "image_mean": [0.1, 0.1, 0.1]}))
    assert load_encoder(name, takes="pictures").fingerprint != first
    config.write_text(text)
    with torch.no_grad():
        model.layernorm.bias += 1
    model.save_pretrained(folder)
    assert load_encoder(name, takes="pictures").fingerprint != first


def test_what_cannot_be_downloaded_has_a_way_out():
    for library, name, said in (
        ("transformers", "hf:no/such", r"cannot be downloaded, download it .*\(hf download no/such --local-dir FOLDER"),
        ("transformers", "hf:/no/such", "there is no folder '/no/such'"),
        ("sentence_transformers", "sentence:no/such", "name the folder: sentence:FOLDER"),
    ):
        pytest.importorskip(library)
        with pytest.raises(SgoifError, match=said):
            load_encoder(name, takes="texts")


def test_sentence_transformers_that_run_code_of_a_folder_are_refused(monkeypatch):
    monkeypatch.setattr(names.Library, "find_version", lambda self: "5.4.1")
    with pytest.raises(SgoifError, match=r"5.4.1 runs code .*: pip install 'sentence-transformers>=6'"):
        load_encoder("sentence:folder", takes="texts")


def test_code_in_a_folder_is_not_run(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SgoifError, match="cannot be loaded"):
        load_encoder(f"hf:{tmp_path}", takes="texts")
