"use strict";
// Ring attention: which rank computes which part of the causal mask in which step, and what the slowest rank costs.

(() => {
  const { svg, text, digits, table } = Learn;

  // Chunks of the sequence (two per rank) that a rank owns.
  const chunks = (rank, s) => (s.order === "zigzag" ? [rank, 2 * s.ranks - 1 - rank] : [2 * rank, 2 * rank + 1]);
  const owner = (chunk, s) => (s.order === "zigzag" ? Math.min(chunk, 2 * s.ranks - 1 - chunk) : Math.floor(chunk / 2));
  // Share of a pair of chunks that is computed: all of it, the lower triangle, or nothing.
  const share = (query, key, s) => (!s.causal || key < query ? 1 : key === query ? 0.5 : 0);
  // In step k, a rank holds the keys and values of the rank k places before it.
  const step = (query, key, s) => (owner(query, s) - owner(key, s) + s.ranks) % s.ranks;

  function work(s) {
    const rows = [];
    for (let rank = 0; rank < s.ranks; rank++) {
      const row = new Array(s.ranks).fill(0);
      for (const query of chunks(rank, s)) for (let key = 0; key < 2 * s.ranks; key++) row[step(query, key, s)] += share(query, key, s);
      rows.push(row);
    }
    return rows;
  }

  function draw(s, { width }) {
    const size = 2 * s.ranks, narrow = width < 560, side = Math.min(narrow ? width - 60 : width * 0.5, 380), cell = side / size, left = 44, top = 34;
    const shown = s.step ? s.step - 1 : null, nodes = [text(left, 12, "keys and values: chunk", { class: "small" })];
    for (let query = 0; query < size; query++) {
      const rank = owner(query, s), y = top + query * cell;
      if (cell >= 13) nodes.push(text(left - 6, y + cell / 2 + 4, `q${query}`, { "text-anchor": "end", class: "small" }), (cell >= 20 || query % 2 === 0) && text(left + query * cell + cell / 2, top - 6, query, { "text-anchor": "middle", class: "small" }));
      for (let key = 0; key < size; key++) {
        const x = left + key * cell, part = share(query, key, s), at = step(query, key, s);
        const title = part ? `query chunk ${query} (rank ${rank}), key chunk ${key} (rank ${owner(key, s)}): step ${at + 1}` : `query chunk ${query}, key chunk ${key}: masked`;
        const faint = shown !== null && at !== shown ? " faint" : "";
        nodes.push(svg("g", {}, svg("title", {}, title), svg("rect", { x, y, width: cell, height: cell, class: part === 1 ? `f${rank % 8}${faint}` : "empty" }),
          part === 0.5 && svg("polygon", { points: `${x},${y} ${x},${y + cell} ${x + cell},${y + cell}`, class: `f${rank % 8}${faint}` }),
          part > 0 && cell >= 22 && text(x + (part === 1 ? cell / 2 : cell / 3), y + (part === 1 ? cell / 2 : 0.72 * cell) + 4, at + 1, { "text-anchor": "middle", class: "small" })));
      }
    }
    // Work of each rank: bars, one part per step.
    const rows = work(s), x0 = narrow ? 64 : left + side + 80, y0 = narrow ? top + side + 40 : top + 12, bar = Math.min(30, narrow ? 22 : side / s.ranks);
    const longest = rows[0].map((_, at) => Math.max(...rows.map((row) => row[at]))), total = longest.reduce((sum, value) => sum + value, 0);
    const scale = (width - x0 - 8) / total;
    nodes.push(text(x0 - 50, y0 - 10, "work of each rank by step; gaps: it waits", { class: "small" }));
    rows.forEach((row, rank) => {
      const y = y0 + rank * bar;
      nodes.push(text(x0 - 8, y + bar / 2 + 3, `rank ${rank}`, { "text-anchor": "end", class: "small" }));
      let start = 0;
      row.forEach((value, at) => {
        const faint = shown !== null && at !== shown ? " faint" : "", length = value * scale;
        nodes.push(svg("g", {}, svg("title", {}, `rank ${rank}, step ${at + 1}: ${digits(value)} of ${digits(longest[at])} chunk pairs`),
          svg("rect", { x: x0 + start * scale, y: y + 1, width: longest[at] * scale, height: bar - 3, class: "empty" }),
          svg("rect", { x: x0 + start * scale, y: y + 1, width: Math.max(length, 0.01), height: bar - 3, class: `f${rank % 8}${faint}` }),
          length > 14 && text(x0 + start * scale + length / 2, y + bar / 2 + 3, digits(value), { "text-anchor": "middle", class: "small" })));
        start += longest[at];
      });
    });
    const all = rows.flat().reduce((sum, value) => sum + value, 0), ideal = all / s.ranks;
    const totals = rows.map((row) => row.reduce((sum, value) => sum + value, 0));
    const [least, most] = [Math.min(...totals), Math.max(...totals)].map((value) => digits(value)), range = least === most ? most : `${least} to ${most}`;
    return {
      height: narrow ? y0 + s.ranks * bar + 8 : Math.max(top + side, y0 + s.ranks * bar) + 8,
      nodes,
      formula: `balance = work / (ranks · Σ over steps of the slowest rank) = ${digits(all)} / (${s.ranks} · ${digits(total)})`,
      value: `${digits((100 * ideal) / total)} %`,
      text: `${s.order === "zigzag" ? "Zig-zag: rank r has chunks r and 2·cp − 1 − r of the sequence." : "Contiguous: rank r has chunks 2r and 2r + 1 of the sequence."} ${s.causal ? "Masked pairs are empty, pairs on the diagonal count half." : "Without a mask, all pairs are computed."} The ranks compute ${range} chunk pairs each; a step of the ring ends with its slowest rank, ${digits(total)} pairs in total, and ${digits(ideal)} would be ideal.${shown === null ? "" : ` Step ${s.step}: every rank computes on the keys and values of the rank ${shown} places before it.`}`,
      extra: table("Chunk pairs by rank and step", ["rank", "chunks", ...rows[0].map((_, at) => `step ${at + 1}`), "sum"],
        rows.map((row, rank) => [`${rank}`, chunks(rank, s).join(", "), ...row.map((value) => digits(value)), digits(totals[rank])])),
    };
  }

  Learn.define("ring", {
    title: "Ring attention: the causal mask by rank",
    controls: [
      { name: "order", label: "Order of chunks", kind: "choice", value: "contiguous", options: [["contiguous", "contiguous"], ["zigzag", "zig-zag"]] },
      { name: "ranks", label: "Ranks (cp)", kind: "number", whole: true, value: 4, min: 2, max: 8 },
      { name: "causal", label: "Causal mask", kind: "check", value: true },
      { name: "step", label: "Step (0: all)", kind: "step", value: 0, min: 0, max: (s) => s.ranks },
    ],
    draw,
    work,
  });
})();
