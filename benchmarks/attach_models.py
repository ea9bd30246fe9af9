"""Models of timm, torchvision and transformers that `attach` is tried on, built small and without pretrained weights.

timm: the smallest model of every family (first word of the name, without sizes) and of every class, with the smallest
side of the images that it takes; without encoders that have no classifier, and without three families whose smallest
model is slow (halonet, senet, deepseek). torchvision: every family of classification models, and those for videos but
MViT and S3D, which take many seconds. transformers: models for image, audio and sequence classification, and bare ones,
from tiny configs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelCase:
    """A model, and a batch of two inputs for it."""

    library: str
    name: str
    build: Callable[[], nn.Module]
    make_inputs: Callable[[], dict[str, Tensor]]


# Side of the images → models.
TIMM_MODELS = {
    32: """
        botnet26t_256 caformer_s18 cait_xxs24_224 coat_tiny coatnet_pico_rw_224 coatnext_nano_rw_224
        convformer_s18 convit_tiny convmixer_768_32 convnext_zepto_rms convnextv2_atto cpubone_nano
        cs3darknet_focus_s cspdarknet53 cspresnet50 cspresnext50 darknet17 darknetaa53 davit_tiny
        deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 densenet121 densenetblur121d dla102x2 dla46x_c
        dm_nfnet_f0 dpn48b eca_resnext26ts ecaresnet26t ecaresnetlight ecaresnext26t_32x4d edgenext_xx_small
        efficientformerv2_s0 efficientnet_lite0 efficientnetv2_rw_t efficientvim_m1 efficientvim_m1_dist
        efficientvit_b0 efficientvit_l1 efficientvit_m0 ese_vovnet19b_slim_dw eva02_tiny_patch14_224
        fasternet_t0 fastvit_t8 fbnetc_100 fbnetv3_b flexivit_small focalnet_tiny_srf gc_efficientnetv2_rw_t
        gcresnet33ts gcresnext26ts gcvit_xxtiny gernet_s ghostnet_050 gmixer_12_224 gmlp_ti16_224 hardcorenas_b
        hgnet_tiny hgnetv2_b0 hiera_tiny_224 hieradet_small hrnet_w18_small iformer_t inception_next_atto
        lambda_resnet26t lcnet_035 lcnetv2_small legacy_seresnet18 legacy_xception levit_128s levit_256d
        lowformer_b0 mambaout_femto maxvit_pico_rw_256 maxxvit_rmlp_nano_rw_256 maxxvitv2_nano_rw_256
        mixer_s16_224 mixnet_s mnasnet_small mobilenet_edgetpu_100 mobilenetv1_100 mobilenetv2_035
        mobilenetv3_small_050 mobilenetv4_conv_small_035 mobilenetv5_base mobileone_s1 mobilevit_xxs
        mobilevitv2_050 mvitv2_tiny nasnetalarge nest_tiny nextvit_small nf_regnet_b0 nfnet_l0 pit_ti_224
        pnasnet5large poolformer_s12 poolformerv2_s12 pvt_v2_b0 rdnet_tiny regnetv_040 regnetx_002 regnety_002
        regnetz_005 repghostnet_050 repvgg_a0 repvit_m1 res2net50_14w_8s res2next50 resmlp_12_224 resnest14d
        resnet10t resnet50x4_clip_gap resnetaa34d resnetblur18 resnetrs50 resnetv2_18 resnext26ts rexnet_100
        rexnetr_100 sam2_hiera_tiny sebotnet33ts_256 sedarknet21 selecsls42 semnasnet_050 sequencer2d_s
        seresnet18 seresnetaa50d seresnext26ts seresnextaa101d_32x8d shvit_s1 skresnet18 skresnext50_32x4d
        spnasnet_100 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 test_byobnet
        test_convnext test_efficientnet test_mambaout test_nfnet test_resnet test_vit tf_mobilenetv3_small_075
        tiny_vit_5m_224 tinynet_e tnt_s_legacy_patch16_224 tresnet_m twins_svt_small vgg11 visformer_tiny
        vit_srelpos_small_patch16_224 vit_tiny_patch16_dinov3_qkvb vitamin_small_224 volo_d1_224 vovnet39a
        wide_resnet50_2 xception41p xcit_nano_12_p8_224
    """,
    64: """
        csatv2 ghostnetv2_100 ghostnetv3_050 swinv2_tiny_window8_256
    """,
    96: """
        inception_resnet_v2 inception_v3 inception_v4
    """,
    128: """
        halo2botnet50ts_256 lamhalobotnet50ts_256
    """,
    224: """
        efficientformer_l1 haloregnetz_b
    """,
    240: """
        crossvit_tiny_240
    """,
    256: """
        bat_resnext26ts sehalonet33ts
    """,
}
# Large models that take options, cut to one block: name → side of the images and options.
TIMM_CUT_MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "aimv2_large_patch14_224": (28, {"depth": 1}),
    "beit_base_patch16_224": (32, {"depth": 1}),
    "beitv2_base_patch16_224": (32, {"depth": 1}),
    "gemma4_vit_167m": (32, {"depth": 1}),
    "naflexvit_base_patch16_parfac_gap": (32, {"depth": 1}),
    "qwen3_vit_88m": (32, {"depth": 1}),
    "samvit_base_patch16_224": (32, {"depth": 1}),
}

# Name → side of the images and options; those of four numbers are videos.
TORCHVISION_MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ((3, 64, 64), {}),
    "convnext_tiny": ((3, 32, 32), {}),
    "densenet121": ((3, 32, 32), {}),
    "efficientnet_b0": ((3, 32, 32), {}),
    "efficientnet_v2_s": ((3, 32, 32), {}),
    "googlenet": ((3, 64, 64), {"init_weights": False}),
    "inception_v3": ((3, 299, 299), {"init_weights": False}),
    "maxvit_t": ((3, 224, 224), {}),
    "mnasnet0_5": ((3, 32, 32), {}),
    "mobilenet_v2": ((3, 32, 32), {}),
    "mobilenet_v3_small": ((3, 32, 32), {}),
    "regnet_x_400mf": ((3, 32, 32), {}),
    "regnet_y_400mf": ((3, 32, 32), {}),
    "resnet18": ((3, 32, 32), {}),
    "resnext50_32x4d": ((3, 32, 32), {}),
    "shufflenet_v2_x0_5": ((3, 32, 32), {}),
    "squeezenet1_0": ((3, 32, 32), {}),
    "squeezenet1_1": ((3, 32, 32), {}),
    "swin_t": ((3, 32, 32), {}),
    "swin_v2_t": ((3, 32, 32), {}),
    "vgg11": ((3, 32, 32), {}),
    "vit_b_32": ((3, 32, 32), {"image_size": 32}),
    "wide_resnet50_2": ((3, 32, 32), {}),
    "mc3_18": ((3, 4, 32, 32), {}),
    "r2plus1d_18": ((3, 4, 32, 32), {}),
    "r3d_18": ((3, 4, 32, 32), {}),
    "swin3d_t": ((3, 4, 32, 32), {}),
}

_WIDTHS = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_VIT = {**_WIDTHS, "image_size": 32, "patch_size": 16}
_TEXT = {**_WIDTHS, "vocab_size": 50, "max_position_embeddings": 40, "pad_token_id": 0}
_TEXT |= {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
_SPEECH = {
    **_WIDTHS,
    "vocab_size": 10,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 12,
    "mask_time_prob": 0.0,
}
_GPT = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
_TOKENS = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_SWIN = {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
_STAGES = {"hidden_sizes": [8, 12], "depths": [1, 1]}
_DISTILBERT = {**_TOKENS, "max_position_embeddings": 32, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
_BART = {**_TOKENS, "d_model": 16, "max_position_embeddings": 32, "decoder_start_token_id": 2}
_BART |= {f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")}
_AST = {**_WIDTHS, "patch_size": 16, "max_length": 48, "num_mel_bins": 32}
_LEVIT = {"image_size": 32, "hidden_sizes": [8, 16, 16], "num_attention_heads": [1, 2, 2], "depths": [1, 1, 1]}
_LEVIT |= {"key_dim": [4, 4, 4], "attention_ratio": [2, 2, 2], "mlp_ratio": [2, 2, 2], "patch_size": 16}

# Class → kind of its inputs and options of its config.
TRANSFORMERS_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BeitForImageClassification": ("images", _VIT),
    "ConvNextForImageClassification": ("images", {**_STAGES, "num_stages": 2}),
    "DeiTForImageClassification": ("images", _VIT),
    "DeiTForImageClassificationWithTeacher": ("images", _VIT),
    "Dinov2ForImageClassification": ("images", _VIT),
    "LevitForImageClassificationWithTeacher": ("images", _LEVIT),
    "ResNetForImageClassification": ("images", {**_STAGES, "embedding_size": 8}),
    "SwinForImageClassification": ("images", _SWIN),
    "ViTForImageClassification": ("images", _VIT),
    "ASTForAudioClassification": ("spectrograms", _AST),
    "HubertForSequenceClassification": ("waves", _SPEECH),
    "Wav2Vec2ForSequenceClassification": ("waves", _SPEECH),
    "AlbertForSequenceClassification": ("tokens", {**_TEXT, "embedding_size": 8}),
    "BartForSequenceClassification": ("tokens", _BART),
    "BertForSequenceClassification": ("tokens", _TEXT),
    "DistilBertForSequenceClassification": ("tokens", _DISTILBERT),
    "ElectraForSequenceClassification": ("tokens", {**_TEXT, "embedding_size": 16}),
    "GPT2ForSequenceClassification": ("tokens", {**_TOKENS, **_GPT}),
    "LlamaForSequenceClassification": ("tokens", {**_TEXT, "num_key_value_heads": 2}),
    "ModernBertForSequenceClassification": ("tokens", _TEXT),
    "RobertaForSequenceClassification": ("tokens", _TEXT),
    "ConvNextModel": ("images", {**_STAGES, "num_stages": 2}),
    "ResNetModel": ("images", {**_STAGES, "embedding_size": 8}),
    "SwinModel": ("images", _SWIN),
    "ViTModel": ("images", {**_VIT, "pooler_output_size": 12}),
    "ASTModel": ("spectrograms", _AST),
    "Wav2Vec2Model": ("waves", _SPEECH),
    "BertModel": ("tokens", _TEXT),
    "DistilBertModel": ("tokens", _DISTILBERT),
    "GPT2Model": ("tokens", {**_TOKENS, **_GPT}),
    "LlamaModel": ("tokens", {**_TEXT, "num_key_value_heads": 2}),
}


def list_cases(library: str) -> list[ModelCase]:
    """The models of a library: timm, torchvision or transformers."""
    if library == "timm":
        sides = dict(TIMM_CUT_MODELS)
        sides |= {name: (side, {}) for side, names in TIMM_MODELS.items() for name in names.split()}
        return [_timm_case(name, *sides[name]) for name in sorted(sides)]
    if library == "torchvision":
        return [
            ModelCase(library, name, partial(_build_torchvision, name, options), partial(_make_images, shape))
            for name, (shape, options) in TORCHVISION_MODELS.items()
        ]
    return [
        ModelCase(library, name, partial(build_transformer, name, **options), partial(make_transformer_inputs, kind))
        for name, (kind, options) in TRANSFORMERS_MODELS.items()
    ]


def _timm_case(name: str, side: int, options: dict[str, Any]) -> ModelCase:
    return ModelCase("timm", name, partial(_build_timm, name, side, options), partial(_make_images, (3, side, side)))


def _build_timm(name: str, side: int, options: dict[str, Any]) -> nn.Module:
    timm = _import_library("timm")
    size = {"img_size": side} if timm.get_pretrained_cfg(name).fixed_input_size else {}
    model: nn.Module = timm.create_model(name, **size, **options)
    return model


def _build_torchvision(name: str, options: dict[str, Any]) -> nn.Module:
    model: nn.Module = _import_library("torchvision").models.get_model(name, **options)
    return model


def build_transformer(name: str, **options: Any) -> nn.Module:
    """A model of transformers from a config with these options."""
    cls = getattr(_import_library("transformers"), name)
    model: nn.Module = cls(cls.config_class(num_labels=5, **options))
    return model


def _import_library(name: str) -> Any:
    """A library, imported here alone because the others may be missing, and because of the time that it takes."""
    importlib.import_module("widemargin.models.torchvision_compat")
    return importlib.import_module(name)


def _make_images(shape: tuple[int, ...]) -> dict[str, Tensor]:
    return {"x": torch.randn(2, *shape)}


def make_transformer_inputs(kind: str) -> dict[str, Tensor]:
    """Two inputs of this kind: images, spectrograms, waves of 800 and 500 samples, or texts of 6 and 4 tokens."""
    if kind == "images":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    if kind == "spectrograms":
        return {"input_values": torch.randn(2, 48, 32)}
    lengths = torch.tensor([[800], [500]] if kind == "waves" else [[6], [4]])
    positions = torch.arange(int(lengths.max()))
    mask = (positions < lengths).long()
    if kind == "waves":
        return {"input_values": torch.randn(2, 800) * mask, "attention_mask": mask}
    tokens = torch.randint(3, 50, (2, 6)).masked_fill(positions == lengths - 1, 2)  # a text ends with eos
    return {"input_ids": tokens * mask, "attention_mask": mask}
