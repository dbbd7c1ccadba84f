"use strict";
// How to find a training configuration: questions, answered one after the other, that end in a command to copy.

(() => {
  const { svg, html, text, lines } = Learn;

  const QUESTIONS = [
    { name: "one", criterion: "20·Ψ + 34·L·s·b·h ≤ memory of a device (bytes)", ask: "Do all states and the activations of one sequence fit on one device?", leaf: "dp",
      why: "Weights, gradients and optimizer states take 16 to 20 bytes per parameter." },
    { name: "zero", criterion: "20·Ψ/dp + 34·L·s·b·h ≤ memory, (dp − 1)·peak / (2·tokens·bandwidth) < 1", ask: "Do they fit with ZeRO-3, and are there enough tokens per device to hide its gathers?", leaf: "zero3",
      why: "The tokens are those of all replicas, the bandwidth is in elements per second." },
    { name: "node", criterion: "(6 + 12/dp)·Ψ/tp + 34·L·s·b·h/tp ≤ memory, tp ≤ devices of a node", ask: "Do they fit with tensor parallelism within a node?", leaf: "tp",
      why: "The exchanges of tensor parallelism are exposed; they need the bandwidth of a node." },
    { name: "long", criterion: "34·L·s·b·h > (6 + 12/dp)·Ψ", ask: "Do activations outweigh the states (long sequences)?", leaf: "cp", otherwise: "pp",
      why: "Context parallelism divides activations only; a pipeline divides the states." },
  ];
  const LEAVES = {
    dp: { label: "Data parallelism with ZeRO-1", flags: "--zero 1" },
    zero3: { label: "ZeRO-3", flags: "--zero 3" },
    tp: { label: "Tensor parallelism in a node, ZeRO-1", flags: "--tp 8 --zero 1" },
    cp: { label: "Tensor and context parallelism", flags: "--tp 8 --cp 4 --zero 1" },
    pp: { label: "Tensor and pipeline parallelism", flags: "--tp 8 --pp 4 --zero 1" },
  };

  // The question that is asked now, or the leaf that the answers lead to; which questions are reached.
  function place(s) {
    const reached = [];
    for (const question of QUESTIONS) {
      reached.push(question);
      if (s[question.name] === "yes") return { reached, leaf: question.leaf };
      if (s[question.name] !== "no") return { reached, leaf: null };
      if (question.otherwise) return { reached, leaf: question.otherwise };
    }
    return { reached, leaf: null };
  }
  const base = (s) => `${s.model} --cluster ${s.cluster} --devices ${s.devices} --seq-len ${s.seq} --global-batch-size ${s.batch}`;
  const commands = (s, leaf) => [`forescale project ${base(s)} ${LEAVES[leaf].flags}${s.experts ? " --ep 8" : ""}`, `forescale search ${base(s)}`];

  function node(x, y, width, label, { color, key, on, press, strong, outlined }) {
    const parts = lines(label, width - 12), height = parts.length * 15 + 10;
    const attributes = press ? { role: "button", tabindex: 0, "data-key": key, "aria-pressed": String(on), onclick: press, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); press(); } } } : {};
    return { height, node: svg("g", attributes, svg("rect", { x, y, width, height, rx: 5, class: `${color}${outlined ? " outlined" : ""}` }),
      svg("text", { "text-anchor": "middle", class: strong ? "strong" : "" }, parts.map((part, at) => svg("tspan", { x: x + width / 2, y: y + 18 + at * 15 }, `${part} `)))) };
  }

  function draw(s, { width, set }) {
    const { reached, leaf } = place(s), nodes = [], gap = 44, wide = Math.min(width * 0.56, 420), side = Math.min(width - wide - gap, 300), answers = {};
    let y = 4;
    QUESTIONS.forEach((question, at) => {
      const live = reached.includes(question), answer = live ? s[question.name] : "";
      const choose = (value) => { for (const [index, later] of QUESTIONS.entries()) answers[later.name] = index < at ? "no" : index === at ? value : ""; set(answers); };
      const asked = node(1, y, wide, question.ask, { color: live ? "f0" : "empty", outlined: live && !answer });
      const end = node(wide + gap, y, side, LEAVES[question.leaf].label, { color: "f2", key: question.leaf, on: leaf === question.leaf, outlined: leaf === question.leaf, strong: leaf === question.leaf, press: () => choose("yes") });
      const height = Math.max(asked.height, end.height), middle = y + 14;
      nodes.push(svg("line", { x1: wide + 1, x2: wide + gap - 1, y1: middle, y2: middle, class: answer === "yes" ? "mark" : "axis" }), text(wide + gap / 2, middle - 4, "yes", { "text-anchor": "middle", class: "small" }));
      nodes.push(asked.node, end.node);
      const below = y + height + 34, x = wide / 2;
      nodes.push(svg("line", { x1: x, x2: x, y1: y + asked.height, y2: below, class: answer === "no" ? "mark" : "axis" }), text(x + 8, y + height + 20, "no", { class: "small" }));
      y = below;
      if (question.otherwise) {
        const last = node(1, y, wide, LEAVES[question.otherwise].label, { color: "f2", key: question.otherwise, on: leaf === question.otherwise, outlined: leaf === question.otherwise, strong: leaf === question.otherwise, press: () => choose("no") });
        nodes.push(last.node);
        y += last.height + 4;
      }
    });
    const now = reached.at(-1), status = html("span", { role: "status" });
    const row = (line) => html("div", { class: "learn-command" }, html("code", {}, line.split(" ").flatMap((word) => [html("span", {}, word), " "])), html("button", {
      type: "button",
      onclick: () => navigator.clipboard.writeText(line).then(() => { status.textContent = "Copied."; }, () => { status.textContent = "The browser refuses to copy; select the text."; }),
    }, "Copy"));
    return {
      height: y + 2,
      interactive: true,
      nodes,
      formula: now.criterion,
      sign: leaf ? `? ${s[now.name]} →` : "?",
      value: leaf ? LEAVES[leaf].label : "yes or no",
      text: leaf ? `${LEAVES[leaf].label}. The first command projects this layout, the second searches all layouts; compare both. Then set the batch and tune the throughput: forescale advise does all three steps.` : `${now.ask} ${now.why}`,
      extra: leaf ? [...commands(s, leaf).map(row), status] : [],
    };
  }

  const answers = [["", "not answered"], ["yes", "yes"], ["no", "no"]];
  Learn.define("decisions", {
    title: "Finding the best training configuration",
    controls: [
      { name: "model", label: "Model", kind: "text", value: "llama-3.1-70b" }, { name: "cluster", label: "Cluster", kind: "text", value: "h100-sxm" },
      { name: "devices", label: "Devices", kind: "number", whole: true, value: 256, min: 1, max: 1e7 }, { name: "seq", label: "Tokens per sequence", kind: "number", whole: true, value: 8192, min: 1, max: 16777216 },
      { name: "batch", label: "Sequences per step", kind: "number", whole: true, value: 512, min: 1, max: 1e7 }, { name: "experts", label: "Mixture of experts (ep 8)", kind: "check", value: false },
      ...QUESTIONS.map(({ name, ask }, at) => ({ name, label: ask, kind: "choice", long: true, value: "", options: answers, when: (s) => place(s).reached.includes(QUESTIONS[at]) })),
    ],
    draw,
    place,
    commands,
    leaves: LEAVES,
  });
})();
