"use strict";
// Collectives message by message. A cell holds the contributions of ranks to one chunk of the data.

(() => {
  const { svg, text, digits, legend } = Learn;
  const log2 = (n) => Math.ceil(Math.log2(n));
  const linear = (n) => Array.from({ length: n }, (_, at) => at);

  // cells[rank][chunk] is the set of ranks whose contribution is there, as bits.
  const empty = (n) => linear(n).map(() => new Array(n).fill(0));
  const whole = (n) => (1 << n) - 1;

  // Each kind: cells at the start, and messages [from, to, chunks, "add" | "copy"] of each step.
  const KINDS = {
    broadcast: {
      label: "broadcast",
      start: (n) => empty(n).map((row, rank) => row.map(() => (rank ? 0 : 1))),
      steps: (n) => linear(log2(n)).map((k) => linear(n).filter((rank) => rank < 2 ** k && rank + 2 ** k < n).map((rank) => [rank, rank + 2 ** k, linear(n), "copy"])),
      cost: "⌈log₂ n⌉ · (α + V/B)", time: (n, a, v, b) => log2(n) * (a + v / b),
      remark: "A binomial tree: the ranks that have the data double in every step.",
    },
    reduce: {
      label: "reduce",
      start: (n) => empty(n).map((row, rank) => row.map(() => 1 << rank)),
      steps: (n) => linear(log2(n)).reverse().map((k) => linear(n).filter((rank) => rank < 2 ** k && rank + 2 ** k < n).map((rank) => [rank + 2 ** k, rank, linear(n), "add"])),
      cost: "⌈log₂ n⌉ · (α + V/B)", time: (n, a, v, b) => log2(n) * (a + v / b),
      remark: "The tree of broadcast backwards; partial sums travel to rank 0.",
    },
    gather: {
      label: "gather",
      start: (n) => empty(n).map((row, rank) => row.map((_, chunk) => (rank === chunk ? 1 << rank : 0))),
      steps: (n) => linear(n - 1).map((k) => [[k + 1, 0, [k + 1], "copy"]]),
      cost: "(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => (n - 1) * (a + v / (n * b)),
      remark: "Rank 0 receives the chunks one after the other; its link is the limit.",
    },
    scatter: {
      label: "scatter",
      start: (n) => empty(n).map((row, rank) => row.map(() => (rank ? 0 : 1))),
      steps: (n) => linear(n - 1).map((k) => [[0, k + 1, [k + 1], "move"]]),
      cost: "(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => (n - 1) * (a + v / (n * b)),
      remark: "Rank 0 sends each rank its chunk; its link is the limit.",
    },
    all_gather: {
      label: "all-gather (ring)",
      start: (n) => empty(n).map((row, rank) => row.map((_, chunk) => (rank === chunk ? 1 << rank : 0))),
      steps: (n) => linear(n - 1).map((k) => linear(n).map((rank) => [rank, (rank + 1) % n, [(rank - k + n) % n], "copy"])),
      cost: "(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => (n - 1) * (a + v / (n * b)),
      remark: "Each rank passes on the chunk that it received last.",
    },
    reduce_scatter: {
      label: "reduce-scatter (ring)",
      start: (n) => empty(n).map((row, rank) => row.map(() => 1 << rank)),
      steps: (n) => linear(n - 1).map((k) => linear(n).map((rank) => [rank, (rank + 1) % n, [(rank - k - 1 + 2 * n) % n], "move-add"])),
      cost: "(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => (n - 1) * (a + v / (n * b)),
      remark: "Partial sums travel around the ring; rank r ends with the sum of chunk r.",
    },
    all_reduce: {
      label: "all-reduce (ring)",
      start: (n) => empty(n).map((row, rank) => row.map(() => 1 << rank)),
      steps: (n) => [...KINDS.reduce_scatter.steps(n), ...KINDS.all_gather.steps(n)],
      cost: "2·(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => 2 * (n - 1) * (a + v / (n * b)),
      remark: "A reduce-scatter, then an all-gather: 2·(n − 1)/n of the data cross each link.",
    },
    all_to_all: {
      label: "all-to-all (pairwise)",
      start: (n) => empty(n).map((row, rank) => row.map(() => 1 << rank)),
      steps: (n) => linear(n - 1).map((k) => linear(n).map((rank) => [rank, (rank + k + 1) % n, [(rank + k + 1) % n], "exchange"])),
      cost: "(n − 1) · (α + V/(n·B))", time: (n, a, v, b) => (n - 1) * (a + v / (n * b)),
      remark: "Each rank sends a different chunk to every other rank: the transposition of a matrix. Tokens go to their experts so. Cells of a rank are then numbered by the sender.",
    },
    barrier: {
      label: "barrier",
      start: (n) => empty(n).map((row, rank) => row.map((_, chunk) => (rank === chunk ? 1 << rank : 0))),
      steps: (n) => linear(log2(n)).map((k) => linear(n).map((rank) => [rank, (rank + 2 ** k) % n, linear(n).filter((d) => d < 2 ** k).map((d) => (rank - d + n) % n), "copy"])),
      cost: "⌈log₂ n⌉ · α", time: (n, a) => log2(n) * a,
      remark: "Dissemination: after step k, each rank has heard of 2ᵏ ranks. No data is sent; a cell shows which ranks are known to have arrived.",
    },
  };

  function applied(cells, messages) {
    const next = cells.map((row) => [...row]);
    for (const [from, to, chunks, action] of messages) {
      for (const chunk of chunks) {
        if (action === "exchange") { next[to][from] = 1 << from; continue; }  // into a buffer of its own
        if (action.includes("add")) next[to][chunk] |= cells[from][chunk];
        else if (cells[from][chunk]) next[to][chunk] = cells[from][chunk];
        if (action.startsWith("move")) next[from][chunk] &= action === "move" ? 0 : ~cells[from][chunk];
      }
    }
    return next;
  }
  const after = (kind, n, count) => KINDS[kind].steps(n).slice(0, count).reduce(applied, KINDS[kind].start(n));

  function draw(s, { width }) {
    const kind = KINDS[s.kind], n = s.ranks, steps = kind.steps(n), cells = after(s.kind, n, s.step), messages = s.step ? steps[s.step - 1] : [];
    const left = 34, top = 92, column = (width - left - 8) / n, cell = Math.min(0.7 * column, 96), pad = (column - cell) / 2, nodes = [];
    const middle = (rank) => left + (rank + 0.5) * column;
    // Arrows of the messages of this step above the columns.
    for (const [from, to, chunks] of messages) {
      const wide = Math.abs(to - from), lift = 14 + 48 * (wide / n), y = top - 22, x1 = middle(from), x2 = middle(to);
      nodes.push(svg("g", {}, svg("title", {}, `rank ${from} sends ${chunks.length === n ? "all chunks" : `chunk ${chunks.join(", ")}`} to rank ${to}`),
        svg("path", { d: `M${x1} ${y} C${x1} ${y - lift} ${x2} ${y - lift} ${x2} ${y - 6}`, class: "arrow" }), svg("polygon", { points: `${x2 - 4},${y - 7} ${x2 + 4},${y - 7} ${x2},${y}`, class: "head" })));
    }
    for (let rank = 0; rank < n; rank++) {
      nodes.push(text(middle(rank), top - 6, column > 44 ? `rank ${rank}` : rank, { "text-anchor": "middle" }));
      for (let chunk = 0; chunk < n; chunk++) {
        const x = left + rank * column + pad, y = top + chunk * 26, bits = cells[rank][chunk], parts = linear(n).filter((one) => bits & (1 << one));
        const arrived = messages.some(([from, to, chunks, action]) => to === rank && (action === "exchange" ? from === chunk : chunks.includes(chunk)));
        const title = `rank ${rank}, chunk ${chunk}: ${parts.length === 0 ? "nothing" : parts.length === n && n > 1 ? "the sum of all ranks" : `data of rank ${parts.join(" + ")}`}`;
        nodes.push(svg("g", {}, svg("title", {}, title), svg("rect", { x, y, width: cell, height: 23, class: "empty" }),
          parts.map((one, at) => svg("rect", { x: x + (at * cell) / parts.length, y, width: cell / parts.length, height: 23, class: `f${one % 8}` })),
          arrived && svg("rect", { x, y, width: cell, height: 23, class: "outlined", fill: "none", style: "fill: none" })));
      }
    }
    for (let chunk = 0; chunk < n; chunk++) nodes.push(text(left - 6, top + chunk * 26 + 16, `c${chunk}`, { "text-anchor": "end", class: "small" }));
    const volume = s.size * 1e6, seconds = kind.time(n, s.latency * 1e-6, volume, s.bandwidth * 1e9), ms = `${digits(1000 * seconds, 4)} ms`;
    const sizes = s.kind === "barrier" ? "" : `, V = ${digits(s.size)} MB, B = ${digits(s.bandwidth)} GB/s`;
    return {
      height: top + n * 26 + 6,
      nodes,
      formula: `time = ${kind.cost}, n = ${n}, α = ${digits(s.latency)} µs${sizes}`,
      value: ms,
      text: `${kind.label}, ${s.step === 0 ? "before the first step" : `after step ${s.step}`} of ${steps.length}. ${kind.remark} A cell shows the ranks whose data it contains, by colour; several colours are a sum of them; outlined cells have just arrived.`,
      extra: legend(linear(n).map((rank) => [rank % 8, `rank ${rank}`])),
    };
  }

  Learn.define("collectives", {
    title: "Collectives step by step",
    controls: [
      { name: "kind", label: "Collective", kind: "choice", long: true, value: "all_reduce", options: Object.entries(KINDS).map(([name, kind]) => [name, kind.label]) },
      { name: "ranks", label: "Ranks n", kind: "number", whole: true, value: 4, min: 2, max: 8 },
      { name: "size", label: "Data V of a rank, or of the result [MB]", kind: "number", value: 64, min: 0, max: 1e6 },
      { name: "latency", label: "Latency α of a message [µs]", kind: "number", value: 10, min: 0, max: 1e6 },
      { name: "bandwidth", label: "Bandwidth B of a link [GB/s]", kind: "number", value: 50, min: 0.001, max: 1e5 },
      { name: "step", label: "Step", kind: "step", value: 0, min: 0, max: (s) => KINDS[s.kind].steps(s.ranks).length },
    ],
    draw,
    after,
    kinds: KINDS,
  });
})();
