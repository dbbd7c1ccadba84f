// Written by `python scripts/learn.py` from the formulas of the preset playbook.
Learn.data.formulas = {
  parameters: ["+", ["+", ["×", "hidden_size", "vocab_size"], ["×", "num_layers", ["+", ["×", ["×", 12.0, "hidden_size"], "hidden_size"], ["×", 13.0, "hidden_size"]]]], ["×", 2.0, "hidden_size"]],
  state: ["×", "parameters", ["+", "whole", ["/", "sharded", "shards"]]],
  activations: ["/", ["×", ["+", ["×", ["×", ["×", ["×", "num_layers", "seq_len"], "batch"], "hidden_size"], ["+", 34.0, ["×", "scores", ["/", ["×", ["×", 5.0, "num_heads"], "seq_len"], "hidden_size"]]]], ["×", "replayed", ["/", ["×", ["×", ["×", 2.0, "seq_len"], "micro_batch_size"], "hidden_size"], "sequence_ranks"]]], "in_flight"], "ranks"],
};
Learn.data.recipes = [
  {"name": "bf16, fp32 gradients", "compute": "bf16", "weights": 2.0, "gradients": 2.0, "accumulated": 4.0, "optimizer": 12.0, "total": 20.0, "types": {"weights": "bf16", "gradients": "fp32", "master": "fp32", "moments": "fp32 + fp32"}},
  {"name": "bf16, bf16 gradients", "compute": "bf16", "weights": 2.0, "gradients": 2.0, "accumulated": 0.0, "optimizer": 12.0, "total": 16.0, "types": {"weights": "bf16", "gradients": "bf16", "master": "fp32", "moments": "fp32 + fp32"}},
  {"name": "fp32", "compute": "fp32", "weights": 4.0, "gradients": 4.0, "accumulated": 0.0, "optimizer": 8.0, "total": 16.0, "types": {"weights": "fp32", "gradients": "fp32", "master": "none", "moments": "fp32 + fp32"}},
  {"name": "Transformer Engine", "compute": "fp8", "weights": 4.0, "gradients": 4.0, "accumulated": 0.0, "optimizer": 8.0, "total": 16.0, "types": {"weights": "fp32", "gradients": "fp32", "master": "none", "moments": "fp32 + fp32"}},
  {"name": "DeepSeek-V3", "compute": "fp8", "weights": 1.0, "gradients": 2.0, "accumulated": 0.0, "optimizer": 8.0, "total": 11.0, "types": {"weights": "fp8", "gradients": "bf16", "master": "fp32", "moments": "bf16 + bf16"}},
  {"name": "FP8-LM O3", "compute": "fp8", "weights": 1.0, "gradients": 1.0, "accumulated": 0.0, "optimizer": 5.0, "total": 7.0, "types": {"weights": "fp8", "gradients": "fp8", "master": "fp16", "moments": "fp8 + fp16"}},
  {"name": "nanotron FP8", "compute": "fp8", "weights": 1.0, "gradients": 1.0, "accumulated": 0.0, "optimizer": 4.0, "total": 6.0, "types": {"weights": "fp8", "gradients": "fp8", "master": "bf16", "moments": "fp8 + fp8"}},
];
