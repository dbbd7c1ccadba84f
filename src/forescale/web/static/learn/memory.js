"use strict";
// Memory of a device as the Ultra-Scale Playbook counts it: Forescale's own formulas (data.js), each next to its number.

(() => {
  const { svg, text, bytes, count, digits, evaluate, infix, table, data, box } = Learn;

  const SYMBOLS = {
    hidden_size: "h", vocab_size: "v", num_layers: "L", seq_len: "s", batch: "b", micro_batch_size: "b", num_heads: "a", scores: "scores", parameters: "Ψ",
    whole: "whole", sharded: "sharded", shards: "dp", in_flight: "in flight", ranks: "(tp·cp)", replayed: "replayed", sequence_ranks: "1",
  };

  // What each input of the formulas is for a layout; kinds of states with the ZeRO stage from which they are sharded.
  function amounts(s) {
    const recipe = data.recipes.find(({ name }) => name === s.recipe);
    const layers = Math.ceil(s.layers / s.pp), replayed = s.recompute === "full" ? layers : 0;
    const shape = { hidden_size: s.hidden, vocab_size: s.vocab, num_layers: s.layers };
    const total = s.parameters > 0 ? s.parameters * 1e9 : evaluate(data.formulas.parameters, shape);
    const local = total / (s.tp * s.pp);
    const states = [["weights", recipe.weights, 3], ["gradients", recipe.gradients + recipe.accumulated, 2], ["optimizer", recipe.optimizer, 1]].map(([name, size, stage]) => {
      const sharded = s.zero >= stage, values = { parameters: local, whole: sharded ? 0 : size, sharded: sharded ? size : 0, shards: s.dp };
      return { name, size, values, sharded, bytes: evaluate(data.formulas.state, values) };
    });
    const kept = {
      num_layers: layers - replayed, seq_len: s.seq, batch: s.batch, micro_batch_size: s.batch, hidden_size: s.hidden, num_heads: s.heads, replayed, sequence_ranks: 1,
      scores: s.flash || s.recompute === "selective" ? 0 : 1, in_flight: Math.min(s.pp, s.micro), ranks: s.tp * s.cp,
    };
    const activations = evaluate(data.formulas.activations, kept);
    return { recipe, total, local, states, kept, activations, sum: states.reduce((sum, state) => sum + state.bytes, activations) };
  }

  function draw(s, { width }) {
    const result = amounts(s), capacity = s.capacity * 2 ** 30, most = Math.max(result.sum, capacity) * 1.04, left = 4, scale = (width - 2 * left) / most;
    const parts = [...result.states.map((state) => [state.name, state.bytes]), ["activations", result.activations]];
    const nodes = [text(left, 14, `${bytes(result.sum)} per device`, { class: "strong" })];
    let x = left;
    parts.forEach(([name, value], at) => {
      nodes.push(box(x, 22, value * scale, 36, { color: at, label: name, title: `${name}: ${bytes(value)}` }));
      x += value * scale;
    });
    const limit = left + capacity * scale;
    nodes.push(svg("line", { x1: limit, x2: limit, y1: 18, y2: 66, class: "bad" }), text(limit, 80, `device: ${digits(s.capacity)} GiB`, { "text-anchor": limit > width / 2 ? "end" : "start", class: "small" }));
    const formula = s.parameters > 0 ? "entered" : infix(data.formulas.parameters, SYMBOLS);
    const rows = [
      ["parameters Ψ of the model", formula, count(result.total)],
      ["parameters of a device", "Ψ / (tp·pp)", count(result.local)],
      ...result.states.map((state) => [state.name, state.sharded ? `Ψ/(tp·pp) · ${digits(state.size)} / dp` : `Ψ/(tp·pp) · ${digits(state.size)}`, bytes(state.bytes)]),
      ["activations", `${infix(data.formulas.activations, SYMBOLS)} with ${result.kept.num_layers} layers kept, ${result.kept.replayed} replayed, scores ${result.kept.scores}, ${result.kept.in_flight} in flight`, bytes(result.activations)],
    ];
    const { recipe } = result;
    return {
      height: 88,
      nodes,
      formula: [`bytes per parameter: ${digits(recipe.weights)} weights + ${digits(recipe.gradients)} gradients${recipe.accumulated ? ` + ${digits(recipe.accumulated)} fp32 gradients` : ""} + ${digits(recipe.optimizer)} optimizer = ${digits(recipe.total)}`,
        "memory = weights + gradients + optimizer + activations"],
      value: bytes(result.sum),
      text: `${count(result.total)} parameters, ${digits(recipe.total)} bytes each without sharding (${bytes(recipe.total * result.total)}). A device of tp ${s.tp}, pp ${s.pp}, cp ${s.cp}, dp ${s.dp} stores ${parts.map(([name, value]) => `${bytes(value)} of ${name}`).join(", ")}. ${result.sum > capacity ? `This exceeds the ${digits(s.capacity)} GiB of the device.` : "By this count it fits; context, buffers, logits and fragmentation are not counted."}`,
      extra: table("Formulas", ["quantity", "formula", "value"], rows, "learn-figures"),
    };
  }

  const number = (name, label, value, max, more = {}) => ({ name, label, kind: "number", whole: true, value, min: 1, max, ...more });
  Learn.define("memory", {
    title: "Memory of a device",
    controls: [
      number("layers", "Layers L", 32, 1000), number("hidden", "Hidden size h", 4096, 262144), number("heads", "Heads a", 32, 1024), number("vocab", "Vocabulary v", 128256, 1048576),
      { name: "parameters", label: "Parameters in billions (0: of the shape)", kind: "number", value: 0, min: 0, max: 1e6 },
      number("seq", "Tokens per sequence s", 4096, 16777216), number("batch", "Micro-batch b", 1, 1024), number("micro", "Micro-batches per step", 8, 100000),
      { name: "recipe", label: "Number formats", kind: "choice", long: true, value: "bf16, fp32 gradients", get options() { return Learn.data.recipes.map(({ name }) => [name, name]); } },
      { name: "zero", label: "ZeRO stage", kind: "number", whole: true, value: 0, min: 0, max: 3 },
      number("dp", "dp", 8, 100000), number("tp", "tp", 1, 1024), number("pp", "pp", 1, 1000), number("cp", "cp", 1, 1024),
      { name: "recompute", label: "Recompute", kind: "choice", value: "none", options: [["none", "none"], ["selective", "selective"], ["full", "full"]] },
      { name: "flash", label: "Flash attention", kind: "check", value: true },
      { name: "capacity", label: "Memory of the device [GiB]", kind: "number", value: 80, min: 0.1, max: 1e6 },
    ],
    draw,
    amounts,
  });
})();
