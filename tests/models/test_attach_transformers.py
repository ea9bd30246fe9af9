"""attach and wm.train on models of transformers built from a config: what the embedding is, masks, mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import widemargin as wm
from benchmarks.attach_models import TRANSFORMERS_MODELS, build_transformer, make_transformer_inputs
from runs import assert_same

CLASSES = 7
LABELS = torch.tensor([1, 6])
LENGTHS = torch.tensor([6, 4])  # tokens of the two texts that make_transformer_inputs returns


def build(name: str, like: str = "", **options) -> torch.nn.Module:
    """A model with the options that `benchmarks` has for it, or for the one named `like`; without dropout."""
    return build_transformer(name, **{**TRANSFORMERS_MODELS[like or name][1], **options}).eval()


def attached_embeddings(backbone: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    model = wm.attach(backbone, "arcface(s=8)", CLASSES).eval()
    with torch.no_grad():
        x = model.embed(**inputs)
        assert model.head.embedding_dim == x.shape[1]
        assert torch.equal(model(**inputs), model.head.logits(x))
        assert torch.equal(model(**inputs, labels=LABELS), model.head(x, LABELS))  # a batch with its labels
    return x


# ---------------------------------------------------------------- models for classification


def bert(model, inputs):
    return model.bert(**inputs).pooler_output


def roberta(model, inputs):
    return torch.tanh(model.classifier.dense(model.roberta(**inputs).last_hidden_state[:, 0]))


def distilbert(model, inputs):
    return torch.relu(model.pre_classifier(model.distilbert(**inputs).last_hidden_state[:, 0]))


def last_token(model, inputs):
    return model.base_model(**inputs).last_hidden_state[torch.arange(2), LENGTHS - 1]


def wav2vec2(model, inputs):
    """Mean over frames; kernels of 10 and 3 with strides 5 and 2 leave 79 and 49 of them."""
    frames = model.projector(model.wav2vec2(**inputs).last_hidden_state)
    return torch.stack([frames[0, :79].mean(0), frames[1, :49].mean(0)])


def ast(model, inputs):
    return model.classifier.layernorm(model.audio_spectrogram_transformer(**inputs).pooler_output)


def vit(model, inputs):
    return model.vit(**inputs).last_hidden_state[:, 0]


def deit_with_teacher(model, inputs):
    tokens = model.deit(**inputs).last_hidden_state
    return (tokens[:, 0] + tokens[:, 1]) / 2


def resnet(model, inputs):
    return model.resnet(**inputs).last_hidden_state.mean((2, 3))


REFERENCES = {
    "BertForSequenceClassification": bert,
    "RobertaForSequenceClassification": roberta,
    "DistilBertForSequenceClassification": distilbert,
    "GPT2ForSequenceClassification": last_token,
    "LlamaForSequenceClassification": last_token,
    "Wav2Vec2ForSequenceClassification": wav2vec2,
    "ASTForAudioClassification": ast,
    "ViTForImageClassification": vit,
    "DeiTForImageClassificationWithTeacher": deit_with_teacher,
    "ResNetForImageClassification": resnet,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_the_embedding_is_what_enters_the_classifier(name):
    backbone, inputs = build(name), make_transformer_inputs(TRANSFORMERS_MODELS[name][0])
    with torch.no_grad():
        wanted = REFERENCES[name](backbone, inputs)
    assert torch.allclose(attached_embeddings(backbone, inputs), wanted, atol=1e-6)


def test_padding_changes_nothing():
    backbone, inputs = build("BertForSequenceClassification"), make_transformer_inputs("tokens")
    x = attached_embeddings(backbone, inputs)
    short = {name: value[1:, :4] for name, value in inputs.items()}
    with torch.no_grad():
        alone = wm.MarginModel(backbone, wm.Objective("arcface", 16, CLASSES)).embed(**short)
    assert torch.allclose(x[1:], alone, atol=1e-6)


def test_the_second_positional_input_is_not_taken_for_labels():
    model = wm.attach(build("ViTForImageClassification"), "arcface", CLASSES)
    with pytest.raises(wm.InputError, match="labels="):
        model(make_transformer_inputs("images")["pixel_values"], LABELS)


# ---------------------------------------------------------------- bare models


@pytest.mark.parametrize("name", ["DistilBertModel", "GPT2Model", "LlamaModel"])
def test_a_bare_model_without_a_pooler_gives_the_mean_over_the_mask(name):
    backbone, inputs = build(name), make_transformer_inputs("tokens")
    with torch.no_grad():
        hidden = backbone(**inputs).last_hidden_state
    wanted = torch.stack([hidden[k, : LENGTHS[k]].mean(0) for k in range(2)])
    assert torch.allclose(attached_embeddings(backbone, inputs), wanted, atol=1e-6)
    model = wm.MarginModel(backbone, wm.Objective("arcface", 16, CLASSES))
    with torch.no_grad():
        if name != "GPT2Model":  # whose second input is the cache
            assert torch.allclose(model.embed(inputs["input_ids"], inputs["attention_mask"]), wanted, atol=1e-6)
        assert torch.allclose(model.embed(inputs["input_ids"])[:1], wanted[:1], atol=1e-6)


def test_the_mask_of_samples_is_shortened_to_frames():
    backbone, inputs = build("Wav2Vec2Model"), make_transformer_inputs("waves")
    with torch.no_grad():
        frames = backbone(**inputs).last_hidden_state
    wanted = torch.stack([frames[0, :79].mean(0), frames[1, :49].mean(0)])
    assert torch.allclose(attached_embeddings(backbone, inputs), wanted, atol=1e-6)


@pytest.mark.parametrize(("name", "width"), [("ViTModel", 12), ("BertModel", 16), ("ConvNextModel", 12)])
def test_a_bare_model_with_a_pooler_gives_its_output(name, width):
    backbone, inputs = build(name), make_transformer_inputs(TRANSFORMERS_MODELS[name][0])
    with torch.no_grad():
        wanted = backbone(**inputs).pooler_output.flatten(1)
    assert wanted.shape == (2, width)
    assert torch.equal(attached_embeddings(backbone, inputs), wanted)


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertForQuestionAnswering"])
def test_other_tasks_are_refused_with_advice(name):
    backbone = build(name, like="BertModel")
    with pytest.raises(wm.InputError, match="AutoModel") as caught:
        wm.attach(backbone, "arcface", CLASSES)
    assert "\n" not in str(caught.value)
    assert wm.attach(backbone.base_model, "arcface", CLASSES).head.embedding_dim == 16  # the advice works


def test_tokens_that_each_have_a_class_are_refused():
    model = wm.attach(build("BertForTokenClassification", like="BertModel"), "arcface", CLASSES)
    with pytest.raises(wm.InputError, match="one embedding per token"):
        model(**make_transformer_inputs("tokens"))


def test_an_encoder_with_a_decoder_is_refused_and_its_encoder_works():
    backbone = build("BartModel", like="BartForSequenceClassification")
    with pytest.raises(wm.InputError, match="get_encoder"):
        wm.attach(backbone, "arcface", CLASSES)
    inputs = make_transformer_inputs("tokens")
    assert attached_embeddings(backbone.get_encoder(), inputs).shape == (2, 16)


def test_plain_tuples_are_refused_with_the_remedy():
    model = wm.attach(build("BertForSequenceClassification"), "arcface", CLASSES)
    with pytest.raises(wm.InputError, match="return_dict=True"):
        model(**make_transformer_inputs("tokens"), return_dict=False)


def test_a_model_that_does_not_say_its_width_needs_it():
    backbone = build("ConvNextModel")
    backbone.config.hidden_sizes = []
    with pytest.raises(wm.InputError, match="embedding_dim="):
        wm.attach(backbone, "arcface", CLASSES)
    assert wm.attach(backbone, "arcface", CLASSES, embedding_dim=12)(**make_transformer_inputs("images")).shape == (
        2,
        7,
    )


def test_the_package_does_not_import_transformers():
    sources = Path(wm.__file__).parent.rglob("*.py")
    assert not any("import transformers" in p.read_text() or "from transformers" in p.read_text() for p in sources)


# ---------------------------------------------------------------- wm.train


@pytest.mark.filterwarnings("ignore:model. its classifier classifier .Linear. is replaced")
@pytest.mark.parametrize(("options", "width"), [({}, 16), ({"embedding_dim": 6}, 6)])
def test_a_run_of_an_image_model_resumes_and_loads(options, width, tmp_path):
    y = torch.arange(24) % 3
    x = torch.randn(24, 3, 32, 32) + y.view(-1, 1, 1, 1)
    config = wm.TrainConfig(loss="arcface(s=8, m=0.2)", epochs=2, batch_size=8, lr=0.01, opt="adamw", **options)

    def make_model(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return build("ViTForImageClassification").train()

    data = {"train": (x, y), "test": (x, y), "quiet": True}
    run = wm.train(config, tmp_path / "whole", model=make_model(0), **data)
    wm.train(config, tmp_path / "parts", model=make_model(0), stop_after=1, **data)
    wm.train(config, tmp_path / "parts", model=make_model(1), resume=True, **data)
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert run.embed(x).shape == (24, width)
    loaded = wm.load(tmp_path / "whole", model=make_model(2))
    assert torch.allclose(loaded.embed(x), run.embed(x), atol=1e-6)
    run.export(safetensors=tmp_path / "vit.safetensors")
    assert (tmp_path / "vit.safetensors").stat().st_size > 1000
