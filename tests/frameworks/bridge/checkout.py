"""A small checkout of Megatron-Bridge's shape: base recipes, precisions and a family over them."""

from forescale.catalogue.models import load_model, vocabulary_of
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.reading import Options, Variables

COMMON = """
from megatron.bridge.training.config import ConfigContainer, DDP, Dataset, Optimizer, Tokenizer, Training


def pretrain() -> ConfigContainer:
    return ConfigContainer(
        model=None,
        train=Training(global_batch_size=32, micro_batch_size=1),
        ddp=DDP(overlap_grad_reduce=True, overlap_param_gather=True, use_distributed_optimizer=True),
        optimizer=Optimizer(),
        dataset=Dataset(seq_length=4096),
        tokenizer=Tokenizer(tokenizer_type="NullTokenizer", vocab_size=32000),
        mixed_precision="bf16_mixed",
    )
"""
CONFIG = """
from dataclasses import dataclass, field


@dataclass
class Training:
    global_batch_size: int
    micro_batch_size: int = 1
    train_iters: int = 100


@dataclass
class Tokenizer:
    vocab_size: int | None = None
    tokenizer_type: str = ""
    use_tokenizer_vocab_size: bool = False


@dataclass
class DDP:
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    use_distributed_optimizer: bool = False
    grad_reduce_in_fp32: bool = True


@dataclass
class Optimizer:
    optimizer: str = "adam"
    use_precision_aware_optimizer: bool = False


@dataclass
class Dataset:
    seq_length: int = 0
    made_of: str = "mock"


@dataclass
class RNG:
    te_rng_tracker: bool = False


@dataclass
class ConfigContainer:
    model: object
    train: Training
    ddp: DDP = field(default_factory=DDP)
    optimizer: Optimizer = field(default_factory=Optimizer)
    dataset: Dataset = field(default_factory=Dataset)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    rng: RNG = field(default_factory=RNG)
    mixed_precision: object = None
    comm_overlap: object = None
"""
PRECISION = """
from dataclasses import dataclass


@dataclass
class MixedPrecisionConfig:
    bf16: bool = False
    grad_reduce_in_fp32: bool = True
    fp8: str | None = None
    fp8_recipe: str = "tensorwise"
    fp8_param_gather: bool = False


@register
def bf16_mixed():
    return MixedPrecisionConfig(bf16=True)


def ours_in_8_bits():
    cfg = bf16_mixed()
    cfg.fp8 = "hybrid"
    cfg.fp8_recipe = "blockwise"
    return cfg
"""
FAMILY = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import pretrain


def stages(pp, vp=None, mtp=1):
    known = {(4, None): [["embedding"] + ["decoder"] * 16] + [["decoder"] * 16] * 2 + [["decoder"] * 13 + ["mtp"] * mtp + ["loss"]]}
    if (pp, vp) not in known:
        raise ValueError(f"no stages for {pp} and {vp}")
    return known[(pp, vp)]


def deep_base_config():
    cfg = pretrain()
    cfg.model = AutoBridge.from_hf_pretrained("deepseek-ai/DeepSeek-V3").to_megatron_provider(load_weights=False)
    cfg.model.pipeline_model_parallel_size = 4
    cfg.model.pipeline_model_parallel_layout = stages(cfg.model.pipeline_model_parallel_size)
    cfg.model.expert_model_parallel_size = 8
    cfg.model.seq_length = cfg.dataset.seq_length
    return cfg


def small_base_config():
    cfg = pretrain()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").get_model_config()
    cfg.model.seq_length = 4096
    return cfg
"""
FILES = {
    "training/config.py": CONFIG,
    "training/mixed_precision.py": PRECISION,
    "recipes/common.py": COMMON,
    "recipes/family/h100.py": FAMILY,
    "recipes/family/__init__.py": "from .h100 import *",
}
START = "from megatron.bridge.recipes.family import deep_base_config, small_base_config\nimport torch\n"


def checkout(folder):
    """Lay the files, and return the folder of the package."""
    package = folder / "src" / "megatron" / "bridge"
    for name, text in FILES.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def read(folder, lines, *, base="small_base_config", name="mine_config", start=START, **options):
    """Read a recipe of the checkout that sets some lines over a base."""
    path = checkout(folder) / "recipes" / "mine.py"
    path.write_text(f"{start}\n\ndef {name}():\n    cfg = {base}()\n    {lines}\n    return cfg\n")
    return read_file(path, **options)


def read_file(path, config=None, **options):
    """Read a file with the catalogue at hand."""
    variables = Variables({} if config is None else {"config": config})
    return BridgeReader().read(
        path, Options(variables=variables, model_of=load_model, vocabulary_of=vocabulary_of, **options)
    )
