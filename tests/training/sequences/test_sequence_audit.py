"""An audit of sequences: one pass over a finished language model, exact and without a trace."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from typer.testing import CliRunner

import sgoif
from sgoif.cli.main import app
from sgoif.errors import SgoifError
from sgoif.gradients.adapters import find_sequence_layers
from sgoif.influence import near_prompts
from sgoif.influence.sequence_keys import sequence_keys
from sgoif.influence.sequence_sets import pad_items
from sgoif.tasks.sequences import next_tokens, sample_targets, sequence_losses, token_losses
from tests.language_models import build, in_double, padded_batch
from tests.sequence_runs import suspicions


def sequences(count, seed, family="gpt2"):
    batch = padded_batch(family, "right", count=count, seed=seed)
    sizes = batch["attention_mask"].sum(1).tolist()
    return [{name: batch[name][i, :n] for name in ("input_ids", "labels")} for i, n in enumerate(sizes)]


def gradients(model, layers, items):
    """Of every sequence's summed loss, one row each, and how many tokens they predict."""
    batch = pad_items(items)
    targets = next_tokens(batch["labels"], is_causal=True)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    parameters = [p for layer in layers for p in layer.parameters.values()]
    rows = []
    for loss in sequence_losses(token_losses(logits, targets)):
        parts = torch.autograd.grad(loss, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows), int((targets != -100).sum())


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "block"])
def test_harm_is_that_of_autograd_with_the_whole_group(family, lora, monkeypatch):
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = sequences(12, 3), {"math": sequences(40, 20), "code": sequences(5, 21)}
    run = sgoif.audit(
        model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="identity"), batch_size=5
    )
    layers = find_sequence_layers(model)
    own, _ = gradients(model, layers, trained)
    for name, group in groups.items():
        held, tokens = gradients(model, layers, group)
        expected = -own @ held.sum(0) / tokens
        rows = run.sql("select id, harm from group_effects where group_name = $name order by id", name=name)
        found = torch.tensor(rows["harm"].to_pylist(), dtype=torch.float64)
        assert rows["id"].to_pylist() == list(range(12))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(expected.abs().max()))


def read_prompts(model, layer, items):
    """What a layer is given at the position that predicts the first token, one row per sequence."""
    seen = []
    handle = layer.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = pad_items(items)
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    handle.remove()
    first = [(row != -100).nonzero()[0, 0] - 1 for row in batch["labels"]]
    return torch.stack([row[place] for row, place in zip(seen[0], first)]).detach()


@pytest.mark.parametrize("most", [256, 4])
@pytest.mark.parametrize(("family", "lora"), [("gpt2", True), ("llama", False)])
def test_conflict_is_that_of_autograd_with_like_prompts(family, lora, most, monkeypatch):
    """By pairs of sequences where there are as many clusters; else a centroid stands for the prompts of a cluster."""
    monkeypatch.setattr(near_prompts, "_MOST", most)
    model = in_double(build(family, lora=lora), monkeypatch)
    trained, groups = sequences(12, 3), {"math": sequences(20, 20), "code": sequences(5, 21)}
    run = sgoif.audit(
        model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="identity"), batch_size=5
    )
    layers, held = find_sequence_layers(model), [*groups["math"], *groups["code"]]
    reader = next(layer for layer in layers if layer.name == run.info["near_prompts"]["layer"])
    own, theirs = (gradients(model, layers, items)[0] for items in (trained, held))
    own, theirs = (rows / rows.norm(dim=1, keepdim=True).sqrt() for rows in (own, theirs))
    rows = read_prompts(model, reader, held)
    place = partial(torch.nn.functional.normalize, dim=1)
    near, asked = place(rows - rows.mean(0)), place(read_prompts(model, reader, trained) - rows.mean(0))
    distances = 1 - near @ near.T
    width = 0.25 * distances[distances > 1e-4].median()
    if most == 4:
        made = KMeans(4, n_init=1, max_iter=20, random_state=0).fit(near.numpy())
        centroids = place(torch.from_numpy(made.cluster_centers_))
        near = centroids[(near @ centroids.T).argmax(1)]
    assert run.info["near_prompts"]["clusters"] == min(most, 25)
    weights = ((asked @ near.T - 1) / width).exp()
    expected = -(weights * (own @ theirs.T)).sum(1) / weights.sum(1)
    found = torch.tensor(run.sql("select conflict from examples order by id")["conflict"].to_pylist()).double()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7 * float(expected.abs().max()))


@pytest.mark.parametrize("begins_alike", [True, False])
def test_prompts_that_do_not_differ_weigh_alike(begins_alike, monkeypatch):
    """As those of plain texts, which have none, whether these begin alike or not."""
    model = in_double(build("gpt2", lora=True), monkeypatch)
    trained, held = ([{**item, "labels": item["input_ids"]} for item in sequences(n, n)] for n in (6, 9))
    if begins_alike:
        for item in (*trained, *held):
            item["input_ids"][0] = 7
    method = sgoif.Method(curvature="identity")
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences", method=method)
    assert run.info["near_prompts"]["clusters"] == 1
    own, theirs = (gradients(model, find_sequence_layers(model), items)[0] for items in (trained, held))
    own, theirs = (rows / rows.norm(dim=1, keepdim=True).sqrt() for rows in (own, theirs))
    found = torch.tensor(run.sql("select conflict from examples order by id")["conflict"].to_pylist()).double()
    torch.testing.assert_close(found, -(own @ theirs.T).mean(1), rtol=1e-7, atol=1e-9)


def test_suspicion_is_the_loss_weighed_by_the_conflict():
    run = sgoif.audit(build("gpt2", lora=True), sequences(9, 3), anchors={"all": sequences(6, 20)}, task="sequences")
    rows = run.sequence_issues()
    assert rows["suspicion"].to_pylist() == pytest.approx(suspicions(rows))
    assert (np.diff(rows["suspicion"].to_numpy()) <= 0).all()


def test_what_no_evaluation_sequence_asks_for_is_ranked_by_its_loss():
    """Its conflict is with others, and so is one with a single evaluation sequence: neither is a reason for doubt."""
    torch.manual_seed(0)
    model = build("gpt2", lora=True)

    def items(count, first):  # prompts of two tokens, one of which names what is asked
        rows = torch.randint(9, 20, (count, 6))
        rows[:, :2] = first
        return [{"input_ids": row, "labels": torch.where(torch.arange(6) < 2, -100, row)} for row in rows]

    trained = [*items(20, 3), *items(20, 7)]
    for held in (items(60, 3), [*items(30, 3), *items(1, 7)]):
        run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences")
        rows = {row["id"]: row for row in run.sequence_issues().to_pylist()}
        covered, other = ([rows[id] for id in ids] for ids in (range(20), range(20, 40)))
        assert min(row["coverage"] for row in covered) > 0.7 and max(row["coverage"] for row in other) < 0.2
        changes = [[abs(np.log(row["suspicion"] / row["loss_last"])) for row in part] for part in (covered, other)]
        assert np.median(changes[1]) < 0.4 * np.median(changes[0])
        assert "20 of 40 training sequences have a prompt that few or no" in run.info["warnings"]["not_covered"]


def test_nothing_tells_what_plain_texts_cover(caplog):
    trained, held = ([{**item, "labels": item["input_ids"]} for item in sequences(n, n)] for n in (9, 12))
    run = sgoif.audit(build("gpt2", lora=True), trained, anchors={"all": held}, task="sequences")
    rows = run.sequence_issues()
    assert rows["coverage"].null_count == 9 and rows["conflict"].null_count == 0
    assert "no `coverage`" in run.info["warnings"]["no_prompts"] in caplog.text
    x = rows["conflict"].to_numpy() / (2 * np.median(np.abs(rows["conflict"].to_numpy())))
    loss = rows["loss_tuned" if rows["loss_tuned"].null_count == 0 else "loss_last"].to_numpy()
    np.testing.assert_allclose(rows["suspicion"].to_numpy(), loss * (x + np.sqrt(1 + x * x)))


@pytest.mark.parametrize("curvature", ["kfac", "diagonal"])
def test_nothing_is_left_behind(curvature):
    model = build("gpt2", lora=True, resid_pdrop=0.1)
    weights, modes = {n: v.clone() for n, v in model.state_dict().items()}, [m.training for m in model.modules()]
    torch.manual_seed(4)
    before = torch.get_rng_state()
    method = sgoif.Method(curvature=curvature)
    run = sgoif.audit(model, sequences(9, 3), anchors={"all": sequences(6, 20)}, task="sequences", method=method)
    assert torch.equal(torch.get_rng_state(), before) and [m.training for m in model.modules()] == modes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert run.info["kind"] == "audit" and run.info["num_not_judged"] == 0
    assert run.info["groups"]["all"]["num_sequences"] == 6


def test_a_sequence_is_behind_itself(tmp_path):
    """What is behind one generation: a group of that sequence alone."""
    model, trained = build("llama", lora=True), sgoif.with_ids(sequences(20, 3), ids=[f"s{i}" for i in range(20)])
    generated = {name: value for name, value in trained[7].items() if name != "id"}
    folder = str(tmp_path / "run")
    found = sgoif.audit(model, trained, anchors={"this": [generated]}, task="sequences", out=folder)
    assert found.most_helpful("this", 1)["id"].to_pylist() == ["s7"]
    assert sgoif.load(folder).most_helpful("this", 3).to_pylist() == found.most_helpful("this", 3).to_pylist()


def test_tokens_are_drawn_from_the_model():
    logits = torch.tensor([[[0.0, 1.0, -1.0], [9.0, 0.0, 0.0]]]).repeat(20_000, 1, 1)
    targets = torch.tensor([[2, -100]]).repeat(20_000, 1)
    drawn = sample_targets(logits, targets, torch.Generator().manual_seed(0))
    assert bool((drawn[:, 1] == -100).all())
    shares = torch.bincount(drawn[:, 0], minlength=3) / len(drawn)
    torch.testing.assert_close(shares, logits[0, 0].softmax(0), atol=0.01, rtol=0)


def test_curvature_does_not_know_the_completions():
    """Completions as given would put wrong ones into the curvature: harm to a group depends on them by g_i alone."""
    model, groups = build("gpt2", lora=True), {"all": sequences(6, 20)}
    trained = sequences(9, 3)
    other = [dict(item) for item in trained]
    other[0] = {**other[0], "labels": torch.where(other[0]["labels"] == -100, -100, 1 + other[0]["labels"] % 5)}
    harms = [
        sgoif.audit(model, items, anchors=groups, task="sequences").sql("select id, harm from examples order by id")
        for items in (trained, other)
    ]
    one, two = (found["harm"].to_pylist() for found in harms)
    assert one[0] != two[0] and one[1:] == pytest.approx(two[1:], rel=1e-6)


def test_sequences_without_a_token_to_predict_are_counted_and_stop_nothing():
    trained = sequences(9, 3)
    for place in (4, 5, 6, 7):  # two whole batches
        trained[place] = {**trained[place], "labels": torch.full_like(trained[place]["labels"], -100)}
    model = build("gpt2", lora=True)
    run = sgoif.audit(model, trained, anchors={"all": sequences(4, 20)}, task="sequences", batch_size=2)
    assert run.info["num_not_judged"] == 4
    assert run.sequence_issues()["id"].to_pylist()[-4:] == [4, 5, 6, 7]


def test_evaluation_sequences_without_a_token_to_predict_change_nothing():
    held, model = sequences(5, 20), build("gpt2", lora=True)
    empty = [{**item, "labels": torch.full_like(item["labels"], -100)} for item in sequences(20, 40)]
    method = sgoif.Method(curvature="identity")
    found = [
        sgoif.audit(model, sequences(6, 3), anchors={"all": group}, task="sequences", method=method).sequence_issues()
        for group in (held, [*held, *empty])
    ]
    for column in ("conflict", "harm"):
        np.testing.assert_allclose(*(np.array(rows[column].to_pylist()) for rows in found), rtol=1e-4)


def test_evaluation_sequences_without_a_token_to_predict_are_left_out_and_counted(caplog):
    held, model = sequences(9, 20), build("gpt2", lora=True)
    empty = [{**item, "labels": torch.full_like(item["labels"], -100)} for item in sequences(20, 40)]
    other = sequences(5, 60)
    runs = [
        sgoif.audit(model, sequences(6, 3), anchors={"a": group, "b": other}, task="sequences")
        for group in (held, [*empty[:3], *held, *empty[3:]])
    ]
    assert runs[1].info["groups"]["a"]["num_sequences"] == 9
    assert "20 of 34 evaluation sequences have no token" in runs[1].info["warnings"]["empty_evaluation"] in caplog.text
    assert "empty_evaluation" not in (runs[0].info.get("warnings") or {})
    harm = [np.sort(run.sequence_issues()["harm"].to_numpy()) for run in runs]
    np.testing.assert_allclose(*harm, rtol=1e-4)  # the groups have the shares that they should
    assert all("fewer than 8" not in run.info["tuning"].get("why_not", "") for run in runs)


def test_a_sequence_that_is_too_long_is_told_of_by_its_length():
    rows = torch.randint(3, 20, (200,))
    long = {"input_ids": rows, "labels": rows}
    model = build("gpt2", lora=True)
    most = model.config.max_position_embeddings
    assert most < 200
    with pytest.raises(
        SgoifError, match=rf"the longest of 200 tokens, and takes {most} by its configuration: IndexError"
    ):
        sgoif.audit(model, [*sequences(6, 3), long], anchors={"all": sequences(9, 20)}, task="sequences")


def test_two_prompts_are_weighed_by_how_like_they_are():
    """Of two prompts that each stand often, not by the distance of a prompt to itself."""
    prompts, rng = torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.Generator().manual_seed(0)

    def item(place):
        row = torch.cat([prompts[place % 2], torch.randint(9, 20, (4,), generator=rng)])
        return {"input_ids": row, "labels": torch.where(torch.arange(7) < 3, -100, row)}

    near = near_prompts.NearPrompts
    widths, usual = [], near._cluster
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_cluster", lambda self, rows: (usual(self, rows), widths.append(self._width))[0])
        held, trained = ([item(place) for place in range(count)] for count in (20, 6))
        sgoif.audit(build("gpt2", lora=True), trained, anchors={"all": held}, task="sequences")
    assert widths[0] == pytest.approx(0.5, rel=0.01)  # two directions from their mean are opposite: a distance of 2


@pytest.mark.parametrize("family", ["t5", "bert"])
def test_other_families_are_audited(family):
    model = build(family, lora=True)
    run = sgoif.audit(model, sequences(6, 3, family), anchors={"all": sequences(4, 20, family)}, task="sequences")
    assert run.info["num_not_judged"] == 0
    assert run.sequence_issues()["conflict"].null_count == 0


def test_an_encoder_decoder_is_judged_by_what_its_decoder_reads(caplog):
    """Completions as long as their prompts do not make the encoder's states those of the decoder."""
    rng = torch.Generator().manual_seed(0)

    def items(count, source, target):
        sizes = {"input_ids": source, "labels": target}
        return [{k: torch.randint(3, 20, (n,), generator=rng) for k, n in sizes.items()} for _ in range(count)]

    model, trained = build("t5", lora=True), [*items(4, 7, 7), *items(4, 8, 5)]
    groups = {"all": items(5, 7, 7)}
    run = sgoif.audit(model, trained, anchors=groups, task="sequences", batch_size=4)
    assert run.sequence_issues()["conflict"].null_count == 0
    encoder = [name for name, _ in model.named_modules() if ".encoder." in name and name.endswith("lora_A.default")]
    run = sgoif.audit(
        model, trained, anchors={"all": items(5, 8, 5)}, task="sequences", method=sgoif.Method(layers=encoder)
    )
    assert run.sequence_issues()["conflict"].null_count == 8
    assert "there is no `conflict`" in run.info["warnings"]["no_conflict"] and "no `conflict`" in caplog.text


def test_sequences_of_one_id_are_said_to_be_one_row():
    trained = [{**item, "id": place % 4} for place, item in enumerate(sequences(6, 3))]
    run = sgoif.audit(build("gpt2", lora=True), trained, anchors={"all": sequences(4, 20)}, task="sequences")
    assert "2 of 6 training sequences have an id that another one has" in run.info["warnings"]["repeated_ids"]


def test_tokens_to_predict_are_looked_for_in_all_sequences():
    trained = sequences(40, 3)
    empty = [{**item, "labels": torch.full_like(item["labels"], -100)} for item in trained]
    model, groups = build("gpt2", lora=True), {"all": sequences(4, 20)}
    run = sgoif.audit(model, [*empty[:39], trained[39]], anchors=groups, task="sequences")
    assert run.info["num_not_judged"] == 39
    with pytest.raises(SgoifError, match="no sequence of dataset has a token to predict: all labels are -100"):
        sgoif.audit(model, empty, anchors=groups, task="sequences")


def test_what_is_not_there_is_refused_by_name():
    model, trained, groups = build("gpt2", lora=True), sequences(6, 3), {"all": sequences(4, 20)}
    with pytest.raises(SgoifError, match="snapshot"):
        sgoif.audit(model, trained, anchors=groups, task="sequences", snapshot="x")
    with pytest.raises(SgoifError, match="'adam'"):
        sgoif.audit(model, trained, anchors=groups, task="sequences", method=sgoif.Method(curvature="adam"))
    with pytest.raises(SgoifError, match=r"dataset .*have no labels"):
        sgoif.audit(model, [{"input_ids": torch.arange(3)}], anchors=groups, task="sequences")


def test_copies_and_other_completions_of_a_prompt_are_named(tmp_path):
    model, trained, held = build("gpt2", lora=True), sequences(8, 3), sequences(6, 20)
    prompt = trained[0]["labels"] == -100
    other = torch.where(prompt, trained[0]["input_ids"], trained[0]["input_ids"].roll(1) + 1)
    trained += [
        dict(trained[0]),  # 8: the completion of 0 twice
        {"input_ids": other, "labels": torch.where(prompt, -100, other)},  # 9: another one, once
        {name: torch.cat([held[2][name], torch.zeros(0, dtype=torch.long)]) for name in held[2]},  # 10
    ]
    groups = {"math": held[:3], "code": held[3:]}
    run = sgoif.audit(model, trained, anchors=groups, task="sequences", out=str(tmp_path / "run"), batch_size=4)
    found = run.duplicates().to_pylist()
    assert [(row["kind"], row["id"], row["other_id"], row["group_name"], row["n_same"]) for row in found] == [
        ("other completion", 9, 0, None, 1),
        ("evaluation", 10, None, "math", 1),
        ("same", 8, 0, None, 2),
    ]
    assert "1 of 11 training sequences are evaluation sequences too" in run.info["warnings"]["in_evaluation"]
    done = CliRunner().invoke(app, ["duplicates", str(tmp_path / "run")])
    assert done.exit_code == 0 and "that repeat another: 1" in done.stdout and "completed otherwise" in done.stdout


@pytest.mark.parametrize("family", ["gpt2", "t5", "bert"])
def test_keys_do_not_depend_on_padding(family):
    batch = padded_batch(family, "right", count=4, seed=1)
    is_causal = family == "gpt2"
    whole = sequence_keys(batch, is_causal=is_causal)
    more = {
        name: torch.nn.functional.pad(value, (0, 3), value=-100 if name == "labels" else 0)
        for name, value in batch.items()
    }
    np.testing.assert_array_equal(sequence_keys(more, is_causal=is_causal), whole)
    assert len(np.unique(whole[:, 1])) == 4


def test_keys_of_a_causal_model_need_no_mask():
    batch = padded_batch("gpt2", "right", count=4, seed=1)
    bare = {name: batch[name] for name in ("input_ids", "labels")}
    np.testing.assert_array_equal(sequence_keys(bare, is_causal=True), sequence_keys(batch, is_causal=True))


def test_texts_that_end_in_the_padding_token_have_no_prompt():
    rows = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 1]])
    labels = torch.where(rows == 1, -100, rows)  # as DataCollatorForLanguageModeling has them
    keys = sequence_keys({"input_ids": rows, "labels": labels, "attention_mask": torch.ones_like(rows)}, is_causal=True)
    assert (keys[:, 0] == 0).all() and keys[0, 1] != keys[1, 1]


def test_the_first_of_several_completions_is_the_first_by_number():
    rows = sequences(11, 3)
    same = {name: value.clone() for name, value in rows[2].items()}
    same["input_ids"][-1] = same["labels"][-1] = rows[2]["input_ids"][-1] + 1
    rows[10] = same
    run = sgoif.audit(build("gpt2", lora=True), rows, anchors={"all": sequences(4, 20)}, task="sequences")
    found = [(row["kind"], row["id"], row["other_id"]) for row in run.duplicates().to_pylist()]
    assert found == [("other completion", 10, 2)]


def test_sequences_with_nothing_to_predict_are_no_copies_and_are_counted():
    """Before, all of them were said to be the same, and to be evaluation sequences too."""
    model, trained, held = build("gpt2", lora=True), sequences(8, 3), sequences(6, 20)
    for item in (*trained[:3], held[0]):
        item["labels"] = torch.full_like(item["labels"], -100)
    run = sgoif.audit(model, trained, anchors={"all": held}, task="sequences", batch_size=4)
    assert run.duplicates().num_rows == 0 and "in_evaluation" not in run.info["warnings"]
    assert "3 of 8 training sequences have no token to predict" in run.info["warnings"]["no_tokens"]
    assert run.info["num_not_judged"] == 3


def test_a_model_whose_training_diverged_is_refused():
    model = build("gpt2", lora=True)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
    with pytest.raises(SgoifError, match="weights that are not finite, first"):
        sgoif.audit(model, sequences(4, 3), anchors={"all": sequences(3, 20)}, task="sequences")


def test_a_collator_that_packs_is_called_for_each_sequence():
    from torch.utils.data import DataLoader
    from transformers import DataCollatorWithFlattening

    pack = DataCollatorWithFlattening()
    trained, held = ([{k: v.tolist() for k, v in item.items()} for item in sequences(n, n)] for n in (6, 5))
    packed, padded = (
        sgoif.audit(
            build("gpt2", lora=True),
            *(DataLoader(rows, collate_fn=collate) for rows in [trained]),
            anchors={"all": DataLoader(held, collate_fn=collate)},
            task="sequences",
        ).sequence_issues()
        for collate in (pack, pad_items)
    )
    assert packed["id"].to_pylist() == padded["id"].to_pylist()
    for column in ("harm", "conflict", "loss_last"):
        assert packed[column].to_pylist() == pytest.approx(padded[column].to_pylist(), rel=1e-4)


def test_plain_texts_have_no_prompt():
    rows = torch.arange(12).reshape(2, 6)
    keys = sequence_keys({"input_ids": rows, "labels": rows}, is_causal=True)
    assert (keys[:, 0] == 0).all() and keys[0, 1] != keys[1, 1]
    assert not sequence_keys({"input_features": rows, "labels": rows}, is_causal=False).any()  # sounds
