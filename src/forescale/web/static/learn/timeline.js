"use strict";
// One step of a rank: a compute stream and a communication stream. Each stream runs its operations in order; an operation
// starts when the one before it in its stream has ended and everything that it waits for has happened.

(() => {
  const { svg, text, box, digits, milliseconds, legend } = Learn;

  // Return start and end of every operation {stream, time, label, color, waits: [{on, at: "start"|"end", part}]}.
  function scheduled(operations) {
    const free = { compute: 0, comm: 0 }, queues = { compute: [], comm: [] };
    for (const item of operations) queues[item.stream].push(item);
    const done = (item) => item.waits.every(({ on }) => on.end !== undefined);
    for (let moved = true; moved;) {
      moved = false;
      for (const stream of ["compute", "comm"]) {
        while (queues[stream].length && done(queues[stream][0])) {
          const item = queues[stream].shift();
          const ready = item.waits.map(({ on, part = 1 }) => on.start + part * (on.end - on.start));
          item.start = Math.max(free[stream], 0, ...ready);
          item.end = free[stream] = item.start + item.time;
          moved = true;
        }
      }
    }
    return operations;
  }

  const after = (...items) => items.filter(Boolean).map((on) => ({ on }));
  const KINDS = {
    ddp: "Data parallel: gradient buckets",
    zero3: "ZeRO-3: gathers with prefetch",
    tp: "Tensor parallel: exchanges in a layer",
    cp: "Ring attention: keys and values",
  };

  // Milliseconds of a message: latency and bytes × share over bandwidth.
  const message = (s, megabytes, share) => s.latency / 1000 + (share * megabytes) / s.bandwidth;

  function ddp(s) {
    const result = [], share = (2 * (s.ranks - 1)) / s.ranks, total = s.layers * s.volume, size = Math.min(s.bucket, total);
    let last = null;  // the next forward pass waits until the gradients of this micro-batch are exchanged
    for (let micro = 0; micro < s.micro; micro++) {
      for (let at = 0; at < s.layers; at++) {
        result.push({ stream: "compute", time: s.forward, label: `F${at}`, color: 0, waits: after(at ? null : last) });
      }
      const backward = [];
      for (let at = s.layers - 1; at >= 0; at--) backward.push({ stream: "compute", time: s.backward, label: `B${at}`, color: 1, waits: [] });
      result.push(...backward);
      if (s.nosync && micro < s.micro - 1) continue;
      const buckets = Math.ceil(total / size - 1e-9);
      for (let at = 0; at < buckets; at++) {
        const amount = Math.min(size, total - at * size), filled = at * size + amount;
        const layer = Math.min(Math.ceil(filled / s.volume - 1e-9), s.layers) - 1;
        const waits = s.overlap ? [{ on: backward[layer], part: filled / s.volume - layer }] : after(backward[s.layers - 1]);
        last = { stream: "comm", time: message(s, amount, share), label: `bucket ${at}`, color: 3, waits };
        result.push(last);
      }
    }
    return result;
  }

  function zero3(s) {
    const share = (s.ranks - 1) / s.ranks, result = [], order = [];
    for (let at = 0; at < s.layers; at++) order.push({ at, forward: true });
    for (let at = s.layers - 1; at >= 0; at--) order.push({ at, forward: false });
    const passes = order.map(({ at, forward }) => ({ stream: "compute", time: forward ? s.forward : s.backward, label: `${forward ? "F" : "B"}${at}`, color: forward ? 0 : 1, waits: [] }));
    const gathers = order.map(({ at }) => ({ stream: "comm", time: message(s, s.volume, share), label: `gather ${at}`, color: 2, waits: [] }));
    passes.forEach((pass, at) => {
      pass.waits = after(gathers[at]);
      const trigger = s.prefetch ? passes[at - s.prefetch] : passes[at - 1];  // weights of `prefetch` further layers are held
      gathers[at].waits = trigger ? [{ on: trigger, part: s.prefetch ? 0 : 1 }] : [];
      result.push(pass);
    });
    // Stream order: the next gathers go before the reduce-scatter of the layer whose backward pass has just ended.
    let next = 0;
    passes.forEach((pass, at) => {
      while (next < gathers.length && next <= at + s.prefetch) result.push(gathers[next++]);
      if (order[at].forward) return;
      result.push({ stream: "comm", time: message(s, s.volume, share), label: `scatter ${order[at].at}`, color: 3, waits: after(pass) });
    });
    return result;
  }

  function tp(s) {
    const share = (2 * (s.ranks - 1)) / s.ranks, result = [];
    let exchange = null;
    const half = (time, label, color) => {
      const pass = { stream: "compute", time: time / 2, label, color, waits: after(exchange) };
      exchange = { stream: "comm", time: message(s, s.volume, share), label: "all-reduce", color: 3, waits: s.overlap ? [{ on: pass, part: 0 }] : after(pass) };
      result.push(pass, exchange);
    };
    for (let at = 0; at < s.layers; at++) { half(s.forward, `A${at}`, 0); half(s.forward, `M${at}`, 0); }
    for (let at = s.layers - 1; at >= 0; at--) { half(s.backward, `M${at}`, 1); half(s.backward, `A${at}`, 1); }
    return result;
  }

  function cp(s) {
    const result = [];
    let received = null;
    for (let at = 0; at < s.ranks; at++) {
      const pass = { stream: "compute", time: s.forward, label: `step ${at}`, color: 0, waits: after(received) };
      result.push(pass);
      if (at === s.ranks - 1) break;
      const waits = s.overlap ? [...after(received), { on: pass, part: 0 }] : after(pass);
      received = { stream: "comm", time: message(s, s.volume, 1), label: `send ${at}`, color: 2, waits };
      result.push(received);
    }
    return result;
  }

  const MAKE = { ddp, zero3, tp, cp };
  const FORMULA = {
    ddp: (s) => `bucket: latency + 2·(n − 1)/n · bytes / bandwidth = ${milliseconds(message(s, Math.min(s.bucket, s.layers * s.volume), (2 * (s.ranks - 1)) / s.ranks))}`,
    zero3: (s) => `gather of a layer: latency + (n − 1)/n · bytes / bandwidth = ${milliseconds(message(s, s.volume, (s.ranks - 1) / s.ranks))}`,
    tp: (s) => `all-reduce: latency + 2·(n − 1)/n · bytes / bandwidth = ${milliseconds(message(s, s.volume, (2 * (s.ranks - 1)) / s.ranks))}`,
    cp: (s) => `send of keys and values: latency + bytes / bandwidth = ${milliseconds(message(s, s.volume, 1))}`,
  };
  const REMARK = {
    ddp: (s) => (s.overlap ? "A bucket leaves as soon as the backward pass has filled it; the last one is always exposed." : "Without overlap, all buckets wait for the end of the backward pass.")
      + (s.micro > 1 ? (s.nosync ? " With no_sync, only the last micro-batch exchanges gradients." : " Without no_sync, every micro-batch exchanges all gradients.") : ""),
    zero3: (s) => (s.prefetch ? `The gather of a layer starts ${s.prefetch} layer${s.prefetch > 1 ? "s" : ""} ahead.` : "Without prefetch, every layer waits for its own gather.") + " Each layer is gathered for the forward and again for the backward pass; its gradients are reduce-scattered.",
    tp: (s) => `Four exchanges per layer, after attention (A) and feed-forward (M), forward and backward. ${s.overlap ? "The exchange runs in parts beside the product that makes its input." : "Each one is exposed, because the next product needs its result."}`,
    cp: (s) => `Each rank computes on one chunk of keys and values per step. ${s.overlap ? "The next chunk arrives during the computation." : "Without overlap, the next step waits for the transfer."}`,
  };

  function draw(s, { width }) {
    const operations = scheduled(MAKE[s.kind](s)), left = 6, right = width - 6;
    const end = Math.max(...operations.map((item) => item.end)), busy = operations.filter((item) => item.stream === "compute").reduce((sum, item) => sum + item.time, 0);
    const sent = operations.filter((item) => item.stream === "comm").reduce((sum, item) => sum + item.time, 0), exposed = end - busy;
    const x = (time) => left + (time / end) * (right - left), y = { compute: 22, comm: 82 }, nodes = [];
    nodes.push(text(left, 15, "compute stream", { class: "strong" }), text(left, 75, "communication stream", { class: "strong" }));
    for (const item of operations) {
      const title = `${item.label}: ${milliseconds(item.start)} to ${milliseconds(item.end)}`;
      nodes.push(box(x(item.start), y[item.stream], x(item.end) - x(item.start), 30, { color: item.color, label: item.label, title }));
    }
    const step = 10 ** Math.floor(Math.log10(end / 3)), tick = [1, 2, 5, 10].map((factor) => factor * step).find((value) => end / value <= Math.max(3, width / 90));
    nodes.push(svg("line", { x1: left, x2: right, y1: 120, y2: 120, class: "axis" }));
    for (let at = 0; at <= end + 1e-9; at += tick) {
      const anchor = at === 0 ? "start" : x(at) > right - 20 ? "end" : "middle";
      nodes.push(svg("line", { x1: x(at), x2: x(at), y1: 120, y2: 125, class: "axis" }), text(x(at), 138, `${digits(at)}${at ? "" : " ms"}`, { class: "small", "text-anchor": anchor }));
    }
    const colors = s.kind === "cp" ? [[0, "attention on a chunk"], [2, "keys and values"]] : [[0, "forward"], [1, "backward"], ...(s.kind === "zero3" ? [[2, "all-gather of weights"], [3, "reduce-scatter of gradients"]] : [[3, "all-reduce"]])];
    return {
      height: 144,
      nodes,
      formula: [FORMULA[s.kind](s), `exposed communication = step − compute = ${milliseconds(end)} − ${milliseconds(busy)}`],
      value: milliseconds(exposed),
      text: `${KINDS[s.kind]}. The step takes ${milliseconds(end)}; ${milliseconds(sent)} of messages, of which ${milliseconds(exposed)} (${digits(sent ? (100 * exposed) / sent : 0)} %) are not hidden behind compute. ${REMARK[s.kind](s)}`,
      extra: legend(colors),
    };
  }

  const is = (...kinds) => (s) => kinds.includes(s.kind);
  Learn.define("timeline", {
    title: "One step of a rank: compute and communication over time",
    controls: [
      { name: "kind", label: "What is sent", kind: "choice", long: true, value: "ddp", options: Object.entries(KINDS) },
      { name: "overlap", label: "Overlap with compute", kind: "check", value: true, when: is("ddp", "tp", "cp") },
      { name: "nosync", label: "no_sync until the last micro-batch", kind: "check", value: true, when: (s) => s.kind === "ddp" && s.micro > 1 },
      { name: "ranks", label: "Ranks n of the group", kind: "number", whole: true, value: 8, min: 1, max: 4096 },
      { name: "layers", label: "Layers", kind: "number", whole: true, value: 6, min: 1, max: 24, when: is("ddp", "zero3", "tp") },
      { name: "forward", label: "Forward of a layer (ring: one step) [ms]", kind: "number", value: 4, min: 0.001, max: 10000 },
      { name: "backward", label: "Backward of a layer [ms]", kind: "number", value: 8, min: 0.001, max: 10000, when: is("ddp", "zero3", "tp") },
      { name: "volume", label: "MB of a layer (ring: of a send)", kind: "number", value: 400, min: 0.001, max: 1000 },
      { name: "bandwidth", label: "Bandwidth [GB/s]", kind: "number", value: 150, min: 0.01, max: 100000 },
      { name: "latency", label: "Latency of a message [µs]", kind: "number", value: 30, min: 0, max: 1000000 },
      { name: "bucket", label: "Bucket [MB]", kind: "number", value: 500, min: 25, max: 100000, when: is("ddp") },
      { name: "micro", label: "Micro-batches per step", kind: "number", whole: true, value: 1, min: 1, max: 4, when: is("ddp") },
      { name: "prefetch", label: "Layers gathered ahead", kind: "number", whole: true, value: 1, min: 0, max: 8, when: is("zero3") },
    ],
    draw,
    exposed(s) {
      const operations = scheduled(MAKE[s.kind](s));
      return Math.max(...operations.map((item) => item.end)) - operations.filter((item) => item.stream === "compute").reduce((sum, item) => sum + item.time, 0);
    },
  });
})();
