"use strict";
// Tensor parallelism: the matrices of a block, split by columns and rows, with the shapes on one rank and what is sent.

(() => {
  const { svg, text, lines, bytes, count, table } = Learn;

  const KINDS = { mlp: "Feed-forward (MLP)", attention: "Attention", embedding: "Embedding" };

  // Rows of key and value heads on a rank, and on how many ranks each head is stored.
  function heads(s) {
    const copies = Math.max(1, s.tp / s.kv);
    return { query: s.heads / s.tp, kv: Math.max(1, s.kv / s.tp), copies };
  }
  function violation(s) {
    if (s.kind === "mlp" && s.ffn % s.tp) return `the width of the feed-forward block, ${s.ffn}, is not divisible by tp = ${s.tp}`;
    if (s.kind === "embedding" && s.vocab % s.tp) return `the vocabulary, ${s.vocab}, is not divisible by tp = ${s.tp}`;
    if (s.kind === "attention" && s.heads % s.tp) return `${s.heads} heads are not divisible by tp = ${s.tp}`;
    if (s.kind === "attention" && s.heads % s.kv) return `${s.heads} heads are not divisible by ${s.kv} key/value heads`;
    if (s.kind === "attention" && s.kv % s.tp && s.tp % s.kv) return `neither of ${s.kv} key/value heads and tp = ${s.tp} divides the other`;
    if (s.sp && s.seq % s.tp) return `the sequence, ${s.seq}, is not divisible by tp = ${s.tp}`;
    return "";
  }

  // The operands from left to right: name, rows, columns, how it is split, and its note.
  function operands(s) {
    const seq = s.sp ? `${s.seq} / tp` : `${s.seq}`, dim = s.hidden / s.heads, { query, kv } = heads(s);
    const input = { name: "X", rows: "s", columns: "h", split: s.sp ? "rows" : "", shape: `s = ${seq}, h = ${s.hidden}` };
    const output = { name: "Y", rows: "s", columns: "h", split: s.sp ? "rows" : "", shape: `s = ${seq}, h = ${s.hidden}` };
    const enter = { arrow: s.sp ? "g: all-gather over s (backward: reduce-scatter)" : "f: nothing (backward: all-reduce)" };
    const leave = { arrow: s.sp ? "g*: reduce-scatter over s (backward: all-gather)" : "f*: all-reduce (backward: nothing)" };
    if (s.kind === "embedding") {
      return [{ name: "tokens", rows: "s", columns: "1", split: "", shape: `s = ${s.seq}` }, { arrow: "look up; 0 for words of other ranks" },
        { name: "E", rows: "v", columns: "h", split: "rows", shape: `v = ${s.vocab / s.tp} of ${s.vocab}, h = ${s.hidden}` }, leave, output];
    }
    if (s.kind === "mlp") {
      return [input, enter, { name: "W₁", rows: "h", columns: "f", split: "columns", shape: `${s.hidden} × ${s.ffn / s.tp} of ${s.ffn}` }, { arrow: "activation function, local" },
        { name: "Z", rows: "s", columns: "f", split: "columns", shape: `s = ${s.seq}, f = ${s.ffn / s.tp}` }, { arrow: "" },
        { name: "W₂", rows: "f", columns: "h", split: "rows", shape: `${s.ffn / s.tp} of ${s.ffn} × ${s.hidden}` }, leave, output];
    }
    return [input, enter, { name: "Q", rows: "h", columns: "a·d", split: "columns", shape: `${s.hidden} × ${query * dim}: ${query} of ${s.heads} heads` },
      { name: "K, V", rows: "h", columns: "k·d", split: "columns", parts: Math.min(s.tp, s.kv), shape: `2 × ${s.hidden} × ${kv * dim}: ${kv} of ${s.kv} heads` }, { arrow: "attention per head, local" },
      { name: "Z", rows: "s", columns: "a·d", split: "columns", shape: `s = ${s.seq}, ${query} heads` }, { arrow: "" },
      { name: "O", rows: "a·d", columns: "h", split: "rows", shape: `${query * dim} × ${s.hidden}` }, leave, output];
  }

  const WIDE = { s: 54, 1: 12, h: 64, f: 92, "a·d": 64, "k·d": 40, v: 92 };
  function matrix(item, x, y, s, scale) {
    const width = scale * WIDE[item.columns], height = scale * WIDE[item.rows], parts = item.parts || s.tp, shown = Math.min(parts, 16), nodes = [];
    const mine = Math.floor((s.rank * shown) / s.tp);  // of more than 16 parts, neighbours are drawn as one
    if (!item.split) nodes.push(svg("rect", { x, y, width, height, class: "f0" }));
    for (let part = 0; item.split && part < shown; part++) {
      const along = item.split === "columns", size = (along ? width : height) / shown, faint = part === mine ? "outlined" : "faint";
      nodes.push(svg("rect", { x: along ? x + part * size : x, y: along ? y : y + part * size, width: along ? size : width, height: along ? height : size, class: `f${part % 8} ${faint}` }));
    }
    return { width, height, node: svg("g", {}, svg("title", {}, `${item.name}: ${item.rows} × ${item.columns}, ${item.split ? `split by ${item.split}` : "the same on all ranks"}; ${item.shape}`), nodes) };
  }

  function draw(s, { width }) {
    const wrong = violation(s), nodes = [], scale = width < 600 ? 1 : 1.6, right = 24 + 92 * scale;
    let y = 4;
    if (wrong) lines(wrong, width).forEach((part) => nodes.push(text(0, (y += 16), part)));
    for (const item of wrong ? [] : operands(s)) {
      if (item.arrow !== undefined) {
        const parts = lines(item.arrow, width - 76), tip = y + 15 * Math.max(parts.length, 1);
        nodes.push(svg("line", { x1: 40, x2: 40, y1: y, y2: tip, class: "arrow" }), svg("polygon", { points: `36,${tip} 44,${tip} 40,${tip + 6}`, class: "head" }), parts.map((part, at) => text(54, y + 14 + 15 * at, part, { class: "strong" })));
        y = tip + 13;
        continue;
      }
      const { node, height } = matrix(item, 8, y, s, scale);
      const parts = lines(`${item.name}  (${item.rows} × ${item.columns})${item.split ? `, split by ${item.split}` : ""}`, width - right);
      parts.forEach((part, at) => nodes.push(text(right, y + height / 2 - 3 + 15 * (at - parts.length + 1), part, { class: "strong" })));
      nodes.push(node, lines(item.shape, width - right).map((part, at) => text(right, y + height / 2 + 13 + 15 * at, part)));
      y += height + 8;
    }
    const share = (s.tp - 1) / s.tp, volume = 2 * s.batch * s.seq * s.hidden, sent = 2 * share * volume;
    const { copies, kv } = heads(s), dim = s.hidden / s.heads;
    const duplicated = s.kind === "attention" && copies > 1 && !wrong;
    const weights = { mlp: (2 * s.hidden * s.ffn) / s.tp, attention: (2 * s.hidden * s.hidden) / s.tp + 2 * s.hidden * kv * dim, embedding: (s.vocab * s.hidden) / s.tp }[s.kind];
    const local = { mlp: "2·h·f/tp", attention: "2·h²/tp + 2·h·d·max(kv/tp, 1)", embedding: "v·h/tp" }[s.kind];
    const seq = `${s.seq}`, shard = `${s.seq / s.tp}`;
    return {
      height: y + 8,
      nodes,
      formula: [`weights of the block on a rank = ${local} = ${wrong ? "–" : count(weights)} elements`, `sent per rank and forward pass = 2·(tp − 1)/tp · 2·b·s·h bytes${s.sp ? " (all-gather + reduce-scatter)" : " (all-reduce)"}`],
      value: bytes(sent),
      text: wrong ? `This split is not possible: ${wrong}.` : `${KINDS[s.kind]} with tp = ${s.tp}${s.sp ? " and sequence parallelism" : ""}; the parts of rank ${s.rank} are outlined. ${s.kind === "embedding" ? "Each rank looks up the words of its rows; the sum over ranks is the result." : "The first matrix is split by columns, so that each rank computes whole columns of Z from the whole input; the second is split by rows, so that the ranks' results are summed."} ${duplicated ? `tp is larger than the ${s.kv} key/value heads: each of them is stored and computed on ${copies} ranks.` : ""} In the backward pass, f and f*, and g and g*, exchange their roles, and as much is sent.`,
      extra: table("Shapes of activations (b × s × h) by region, in numbers of this layout", ["region", "tp", "tp with sequence parallelism"], [
        ["enter tp (column linear)", `h: split (weights by columns) · s: full (${seq})`, `h: split · s: all-gather to full (${seq})`],
        ["tp region", `h: split · s: full`, `h: split · s: full`],
        ["leave tp (row linear)", `h: full (${s.hidden}) after all-reduce · s: full`, `h: full after reduce-scatter · s: split (${shard})`],
        ["sp region (norm, dropout, residual)", `h: full · s: full (${seq})`, `h: full · s: split (${shard})`],
        ["embedding (rows: vocabulary)", `h: full after all-reduce · s: full`, `h: full after reduce-scatter · s: split (${shard})`],
      ]),
    };
  }

  const is = (kind) => (s) => s.kind === kind;
  const number = (name, label, value, max, when) => ({ name, label, kind: "number", whole: true, value, min: 1, max, when });
  Learn.define("splits", {
    title: "Column and row splits of tensor parallelism",
    controls: [
      { name: "kind", label: "Block", kind: "choice", long: true, value: "mlp", options: Object.entries(KINDS) },
      number("tp", "Ranks (tp)", 4, 64),
      { name: "sp", label: "Sequence parallelism", kind: "check", value: false },
      number("batch", "Sequences b", 1, 1024), number("seq", "Tokens s", 4096, 16777216), number("hidden", "Hidden size h", 4096, 262144),
      number("ffn", "Feed-forward width f", 14336, 1048576, is("mlp")), number("heads", "Heads a", 32, 1024, is("attention")),
      number("kv", "Key/value heads", 8, 1024, is("attention")), number("vocab", "Vocabulary v", 128256, 1048576, is("embedding")),
      { name: "rank", label: "Rank", kind: "step", value: 0, min: 0, max: (s) => s.tp - 1 },
    ],
    draw,
    heads,
  });
})();
