"""What is trained: a transformer as a sequence of layers, each an attention and a feed-forward part.

Every field is a fact about the architecture, never about its layout on devices. All sizes are global
(unsharded) element counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from forescale.errors import not_divisible, out_of_range
from forescale.limits import LAYERS, Extent, Factor, Interval, OptionalExtent, within
from forescale.spec.attention import Attention
from forescale.spec.option import Option
from forescale.spec.rope import Rope
from forescale.spec.trace import Trace
from forescale.struct import SpecStruct

NormKind: TypeAlias = Literal["rms", "layer", "layer_no_bias"]
"""RMS norm; layer norm with weight and bias; layer norm with weight only (DBRX, MPT, Command R)."""


Eps: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
USUAL_EPS: Final = 1e-5
"""What norms add to the variance where nothing is said (PyTorch's LayerNorm, Megatron-LM, MaxText, torchtitan)."""


class DenseFfn(SpecStruct, frozen=True, kw_only=True):
    """Two-matrix (ungated) or three-matrix (gated, SwiGLU-like) feed-forward."""

    ffn_hidden_size: Extent
    gated: bool = True
    bias: bool = False


class MoeFfn(SpecStruct, frozen=True, kw_only=True):
    """Routed experts, optionally with a shared expert that sees every token."""

    num_experts: Extent
    top_k: Extent
    ffn_hidden_size: Extent
    """Intermediate size of one routed expert."""
    gated: bool = True
    bias: bool = False
    """Biases inside the experts (gpt-oss)."""
    limited: bool = False
    """What experts activate is clamped first (gpt-oss's swiglu_limit)."""
    latent_size: OptionalExtent = 0
    """Width of the space that routed experts work in, projected to before dispatch and back after combine
    (Nemotron 3 Super); 0 is the hidden size itself. Router and shared experts see the hidden size."""
    shared_ffn_hidden_size: OptionalExtent = 0
    """Intermediate size of all shared experts together; 0 has none."""
    shared_gate: bool = False
    """A hidden -> 1 gate on the shared expert (Qwen2-MoE, Qwen3-Next)."""
    router_bias: bool = False
    """A learned bias of the router's linear (gpt-oss)."""
    score_bias: bool = False
    """A per-expert selection bias kept beside the weights (`e_score_correction_bias`)."""
    score: Literal["softmax", "sigmoid"] = "softmax"
    """What makes scores of the router's logits."""
    normalised: bool = True
    """Scores of a token's experts are divided by their sum (`norm_topk_prob`)."""
    weight_scale: Factor = 1.0
    """What multiplies them in the end (`routed_scaling_factor`; DeepSeek-V3: 2.5)."""
    num_groups: OptionalExtent = 0
    """Groups of experts for node-limited routing; 0 has none (DeepSeek-V3: 8)."""
    top_groups: OptionalExtent = 0
    """Groups that a token's experts may lie in (DeepSeek-V3: 4); 0 is all of them."""

    def __post_init__(self) -> None:
        """Refuse more experts per token than there are, and groups that they do not fill."""
        if self.top_k > self.num_experts:
            allowed = f"{self.num_experts} or less, the number of experts"
            raise out_of_range("experts_per_token", self.top_k, allowed)
        if self.num_groups and (self.num_experts % self.num_groups or self.top_groups > self.num_groups):
            fix = f"a token may use {self.top_groups} of the groups at most"
            raise not_divisible("num_experts", self.num_experts, self.num_groups, "num_groups", fix)

    @classmethod
    def renewed(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a table of earlier versions in today's words: selection biases meant sigmoids."""
        meant = values.get("score_bias") is True and "score" not in values
        return {**values, "score": "sigmoid"} if meant else values


Ffn: TypeAlias = DenseFfn | MoeFfn


class Layer(SpecStruct, frozen=True, kw_only=True):
    """One transformer block; `None` leaves that half out."""

    attention: Attention | None
    ffn: Ffn | None
    num_norms: OptionalExtent = 2
    """Norms over the hidden size: 2 (pre-norm), 4 (Gemma 2/3: also post-norms), 1 (parallel blocks)."""
    parallel: bool = False
    """Attention and feed-forward read the same norm and are added together (Falcon, Phi-2)."""
    high_precision: bool = False
    """Products stay in the type of activations under 8- and 4-bit recipes (`Precision.num_layers_at_start_in_bf16`)."""
    traced: str = ""
    """Kind of recorded block, in the traces of the model, that takes the place of attention and feed-forward."""


def predicting_layer(layers: Sequence[Layer]) -> Layer | None:
    """Return what predicts further tokens where that is not the last layer: one that picks keys for itself.

    The last one may read those that a layer before it picked (GLM-5.2).
    """
    attentions = (layer.attention for layer in layers if layer.attention is not None)
    picking = next((attention for attention in attentions if attention.picks_itself), None)
    if picking is None or layers[-1].attention != picking.sharing_picks:
        return None
    return replace(layers[-1], attention=picking)


def _shaped(layer: Layer) -> Layer:
    """Return a layer with plain rotary positions and weights of experts."""
    mixer, ffn = layer.attention, layer.ffn
    if isinstance(ffn, MoeFfn):
        ffn = replace(ffn, score="softmax", normalised=True, weight_scale=1.0)
    return replace(layer, attention=mixer and mixer.shape, ffn=ffn)


class Patches(SpecStruct, frozen=True, kw_only=True):
    """Input of a vision transformer: image patches instead of tokens."""

    patch_elements: Extent
    """Values per patch (height x width x channels, and frames that are one patch together)."""
    num_classes: OptionalExtent = 0
    bias: bool = True
    class_tokens: OptionalExtent = 0
    """Learned tokens before the patches (one of CLIP and Llama 4, eight of RADIO)."""


class Images(SpecStruct, frozen=True, kw_only=True):
    """What a vision tower is given with each sequence."""

    count: Annotated[OptionalExtent, Option("Images per sequence; 0 leaves a vision tower out.", "N",
        flag="images", group="Types, training")] = 1  # fmt: skip
    """Images per sequence, or tiles of them where a model cuts images into tiles and `Vision.tiles` does not say how;
    0 trains on text alone."""
    size: Annotated[Extent | None, Option("Pixels along each side of an image.", "N", flag="image-size",
        group="Types, training")] = None  # fmt: skip
    """Pixels along each side; None is the size that the tower was made for."""


class Tiles(SpecStruct, frozen=True, kw_only=True):
    """How a model cuts an image into tiles, each of which its tower sees by itself, beside one of all of the image."""

    grids: tuple[tuple[Extent, Extent], ...]
    """Rows and columns of the tiles that an image may be cut into."""
    fits: Literal["resolution", "shape"]
    """What grid an image takes: that which keeps most of its pixels and wastes fewest (LLaVA-NeXT), or that of nearest
    shape of which it fills more than half (InternVL)."""
    whole: Literal["always", "cut", "never"] = "always"
    """When the tower also sees the whole image as one tile: always, where it is cut, or never."""
    rows_end: bool = False
    """Tokens stand as the image does, padding left out, and a learned vector ends each row of them (LLaVA-NeXT)."""
    most: OptionalExtent = 0
    """Tiles whose tokens an image may have; more are made fewer by interpolation (LLaVA-OneVision). 0 is all."""

    def grid(self, size: int, tile: int) -> tuple[int, int]:
        """Return the rows and columns of an image of `size` pixels along each side; a tile has `tile`."""
        if self.fits == "resolution":
            return min(self.grids, key=lambda grid: _waste(grid, size, tile))
        result, *others = sorted(self.grids, key=lambda grid: grid[0] * grid[1])
        for rows, columns in others:
            near, nearest = abs(1 - columns / rows), abs(1 - result[1] / result[0])
            if near < nearest or (near == nearest and size**2 > 0.5 * tile**2 * rows * columns):
                result = (rows, columns)
        return result

    def number(self, size: int, tile: int) -> int:
        """Return how many tiles the tower sees of an image."""
        rows, columns = self.grid(size, tile)
        return rows * columns + (self.whole == "always" or (self.whole == "cut" and rows * columns > 1))

    def tokens(self, size: int, tile: int, side: int) -> int:
        """Return the tokens of an image; `side` are those along each side of a tile."""
        if not self.rows_end:
            return self.number(size, tile) * side**2
        high, wide = (number * side for number in self.grid(size, tile))
        high, wide = (item - max(item - other, 0) // 2 * 2 for item, other in ((high, wide), (wide, high)))
        ratio = math.sqrt(high * wide / (self.most * side**2)) if self.most else 0.0
        if ratio > SHRUNK:
            high, wide = int(high // ratio), int(wide // ratio)
        return side**2 + high * (wide + 1)


SHRUNK: Final = 1.1
"""Times that tokens along each side must be too many before LLaVA-OneVision makes them fewer."""


def _waste(grid: tuple[int, int], size: int, tile: int) -> tuple[float, float]:
    """Return how little of a square image a grid keeps, then how much of the grid is empty."""
    kept = min(min(grid) * tile, size) ** 2
    return -kept, grid[0] * grid[1] * tile**2 - kept


class Vision(SpecStruct, frozen=True, kw_only=True):
    """A vision transformer whose results, projected to the hidden size, stand in the sequence in place of tokens."""

    encoder: Model
    """The transformer: patches in, no vocabulary. Each image is a sequence of its own."""
    patch_size: Extent
    """Pixels along each side of a patch."""
    image_size: OptionalExtent = 0
    """Pixels along each side of the images that it was made for; 0 takes any, and has no usual size."""
    merge: Extent = 1
    """Patches along each side that become one token of the text's sequence."""
    pools: bool = False
    """Merged patches are averaged (Gemma 3); False puts them side by side."""
    projector: tuple[Extent, ...]
    """Outputs of the projector's linear layers, activations between them; the last is the text's hidden size."""
    projector_bias: bool = False
    projector_merges: bool = False
    """The first of these layers merges patches and has no activation behind it (Mistral 3)."""
    merging_bias: bool = False
    """That layer has a bias."""
    projector_ffn: OptionalExtent = 0
    """Inner size of a gated feed-forward behind these layers, a layer norm and an activation between (GLM-4.1V)."""
    projector_norm: NormKind | None = None
    """Norm of the projector's input, over the tower's hidden size."""
    norms_merged: bool = False
    """That norm is over merged patches (InternVL)."""
    num_deepstack: OptionalExtent = 0
    """Layers of the tower whose results have projectors of their own, with norms over merged patches (Qwen3-VL)."""
    tiles: Tiles | None = None
    """How it cuts images into tiles of `image_size`; None takes them whole."""

    def __post_init__(self) -> None:
        """Refuse images smaller than one token."""
        side = self.patch_size * self.merge
        if 0 < self.image_size < side:
            allowed = f"at least the {side} pixels of one token"
            raise out_of_range("image_size", self.image_size, allowed).at("vision")

    @property
    def width(self) -> int:
        """Width of the projector's input."""
        return self.encoder.hidden_size * (1 if self.pools else self.merge**2)

    def patches(self, images: Images) -> int:
        """Return the patches of one image or tile; of one token where nothing says how large images are."""
        size = images.size if self.tiles is None else None
        return ((size or self.image_size or self.patch_size * self.merge) // self.patch_size) ** 2

    def num_tiles(self, images: Images) -> int:
        """Return the tiles of one image, each of which is a sequence of the tower's."""
        return 1 if self.tiles is None else self.tiles.number(images.size or self.image_size, self.image_size)

    def tokens(self, images: Images) -> int:
        """Return the tokens that one image is in the text's sequence."""
        if self.tiles is None:
            return self.patches(images) // self.merge**2
        side = self.image_size // self.patch_size // self.merge
        return self.tiles.tokens(images.size or self.image_size, self.image_size, side)


class Model(SpecStruct, frozen=True, kw_only=True, dict=True):
    """A whole model. `layers` lists every decoder layer in order; equal layers share one object.

    What follows from the layers is worked out once: models have up to hundreds of them, and it is asked for often.
    """

    name: str
    hidden_size: Extent
    layers: tuple[Layer, ...]
    vocab_size: OptionalExtent = 0
    vocab_multiple: Extent = 128
    """Frameworks pad the vocabulary to a multiple of this times tp; parameter totals do not count it."""
    tied_embeddings: bool = False
    norm: NormKind = "rms"
    norm_eps: Eps = USUAL_EPS
    """What norms add to the variance."""
    final_norm: bool = True
    learned_positions: OptionalExtent = 0
    """Rows of a learned position table."""
    embedding_norm: bool = False
    """A norm on the embedding's output (BLOOM)."""
    branch_scales: bool = False
    """Learned factors, one per hidden unit, of what attention and feed-forward add to the stream (InternViT)."""
    embedding_size: OptionalExtent = 0
    """Width of the token embedding where it differs from hidden_size (projected in and out); 0 is equal."""
    head_bias: bool = False
    num_mtp_layers: OptionalExtent = 0
    """Multi-token-prediction layers."""
    mtp_layer: Layer | None = None
    """What each of them is made of; None is the last decoder layer."""
    patches: Patches | None = None
    vision: Vision | None = None
    """A tower before the language model, whose tokens count within the sequence."""
    max_seq_len: OptionalExtent = 0
    """Longest sequence the model was made for; 0 is unknown. A ceiling to note, not a limit."""
    source: str = ""
    left_out: str = ""
    """Parts of the model as its file has it that are not described here, and so not projected, in words."""
    config: str = ""
    """JSON of the Hugging Face configuration that it was read from: which operators its own code runs. Models
    that differ in it alone are equal."""
    traces: tuple[Trace, ...] = ()
    """Recorded operators, one trace for each precision; empty for a model that its layers describe."""

    def __eq__(self, other: object) -> bool:
        """Compare all fields but the configuration."""
        return self is other or (isinstance(other, Model) and self._described == other._described)

    @cached_property
    def _described(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "config")

    def __post_init__(self) -> None:
        """Refuse a model without layers, and with more than any has."""
        within(len(self.layers), LAYERS, f"the number of layers of {self.name}")

    def __hash__(self) -> int:
        """Hash what tells most models apart, not every layer."""
        return hash((self.name, self.hidden_size, len(self.layers)))

    @property
    def num_layers(self) -> int:
        """Number of decoder layers, without multi-token prediction."""
        return len(self.layers)

    @cached_property
    def text(self) -> Model:
        """The model without its vision tower."""
        return self if self.vision is None else replace(self, vision=None)

    @cached_property
    def shape(self) -> Model:
        """The model with plain rotary positions, norms and weights of experts, which hardly change a cost."""
        kinds = {layer: _shaped(layer) for layer in self.layer_kinds}
        layers = tuple(kinds[layer] for layer in self.layers)
        ahead = None if self.mtp_layer is None else _shaped(self.mtp_layer)
        return replace(self, layers=layers, mtp_layer=ahead, norm_eps=USUAL_EPS)

    @cached_property
    def layer_kinds(self) -> tuple[Layer, ...]:
        """The distinct layers, in order of first appearance."""
        alike = {id(layer): layer for layer in self.layers}  # most are one object, and hashing takes long
        return tuple(dict.fromkeys(alike.values()))

    @cached_property
    def ropes(self) -> tuple[Rope | None, Rope | None]:
        """Rotary positions of layers that see all, and of those with a window; None where there are none.

        Where only layers with a window have any they are both.
        """
        turned = [attention for attention in self.attentions if attention.rotary_positions is not None]
        near = [item.rotary_positions for item in turned if item.near]
        far = [
            item.rotary_positions
            for item in sorted(turned, key=lambda item: not item.latent)
            if not item.near
        ]
        return next(iter([*far, *near]), None), next(iter(near), None)

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """The distinct attentions of its layers, in order of first appearance."""
        return tuple(dict.fromkeys(layer.attention for layer in self.layer_kinds if layer.attention))

    @cached_property
    def has_recurrent(self) -> bool:
        """Whether any layer has a recurrent state, which it reads its input for by `in_proj`."""
        recorded = (
            item.name for trace in self.traces for block in trace.blocks.values() for item in block.parameters
        )
        return any(attention.recurrent for attention in self.attentions) or any(
            name.endswith(".in_proj.weight") for name in recorded
        )

    @cached_property
    def has_latent(self) -> bool:
        """Whether any layer has latent attention."""
        return any(attention.latent for attention in self.attentions)

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer routes to experts."""
        return any(isinstance(layer.ffn, MoeFfn) for layer in self.layers)

    @cached_property
    def moe(self) -> MoeFfn | None:
        """The first routed feed-forward, or None."""
        return next((layer.ffn for layer in self.layers if isinstance(layer.ffn, MoeFfn)), None)
