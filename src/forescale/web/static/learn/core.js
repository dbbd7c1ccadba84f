"use strict";
// Interactive pictures: controls, a drawing that follows them, the formula with its value, and a link that holds the state.
// A picture is Learn.define(name, {title, controls, draw}); <div data-picture="name"> shows it. Classic scripts: they also
// run from a file, where browsers do not load modules.

const Learn = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const pictures = {};

  // Elements --------------------------------------------------------------------------------------------------------
  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  const html = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
  const svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
  const text = (x, y, label, attributes = {}) => svg("text", { x, y, ...attributes }, String(label));

  // Lines of a text that are at most `width` wide.
  function lines(label, width) {
    const result = [""], most = Math.floor(width / 6.5);
    for (const word of label.split(" ")) {
      const longer = result.at(-1) ? `${result.at(-1)} ${word}` : word;
      if (longer.length <= most || !result.at(-1)) result[result.length - 1] = longer;
      else result.push(word);
    }
    return result;
  }

  // A rectangle with a label where it has room, and its full text as a tooltip.
  function box(x, y, width, height, { color = 0, label = "", title = "", ...more } = {}) {
    const room = label && width > 6.4 * String(label).length + 4 && height >= 13;
    return svg("g", {}, title && svg("title", {}, title),
      svg("rect", { x, y, width: Math.max(width, 0.5), height, class: `f${color}`, ...more }),
      room && text(x + width / 2, y + height / 2 + 4, label, { "text-anchor": "middle" }));
  }

  // Numbers ---------------------------------------------------------------------------------------------------------
  const digits = (value, count = 3) => {
    if (!Number.isFinite(value)) return String(value);
    if (value !== 0 && (Math.abs(value) >= 1e15 || Math.abs(value) < 1e-3)) return value.toExponential(count - 1);
    const whole = Math.abs(value) >= 10 ** (count - 1);
    return whole ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(count)));
  };
  function scaled(value, units, base) {
    let at = 0, rest = value;
    while (at < units.length - 1 && Math.abs(rest) >= base) { rest /= base; at += 1; }
    return `${digits(rest, rest >= 1000 ? 4 : 3)} ${units[at]}`;
  }
  const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
  const count = (value) => scaled(value, ["", "K", "M", "B", "T"], 1000).trim();
  const milliseconds = (value) => `${digits(value, 4)} ms`;

  // State: defaults, then attributes of the element, then the address ---------------------------------------------------
  function checked(control, raw) {
    if (control.kind === "check") return { value: raw === true || raw === "1" || raw === "true" };
    if (control.kind === "choice") {
      const values = control.options.map(([value]) => value);
      return values.includes(raw) ? { value: raw } : { error: `${control.label} "${raw}" must be one of ${values.join(", ")}` };
    }
    if (control.kind === "text") {  // a name that goes into a command to copy: nothing that a shell reads otherwise
      return /^[\w./@-]{1,80}$/.test(raw) ? { value: raw } : { error: `${control.label} "${raw}" must be a name of letters, digits and . _ - / @` };
    }
    const value = Number(raw);
    const low = control.min, high = typeof control.max === "function" ? Infinity : control.max;
    const valid = String(raw).trim() !== "" && Number.isFinite(value) && value >= low && value <= high && (!control.whole || Number.isInteger(value));
    const limit = high === Infinity ? `at least ${low}` : `between ${low} and ${high.toLocaleString("en")}`;
    return valid ? { value } : { error: `${control.label} "${raw}" must be ${control.whole ? "a whole number " : ""}${limit}` };
  }
  const written = (value) => (value === true ? "1" : value === false ? "0" : String(value));

  function address(id, state, defaults) {
    const query = new URLSearchParams(location.search);
    for (const name of [...query.keys()]) if (name.startsWith(`${id}.`)) query.delete(name);
    for (const [name, value] of Object.entries(state)) if (value !== defaults[name]) query.set(`${id}.${name}`, written(value));
    const search = query.toString();
    return `${location.pathname}${search ? `?${search}` : ""}#${id}`;
  }

  // One picture -------------------------------------------------------------------------------------------------------
  function show(place) {
    const picture = pictures[place.dataset.picture], name = place.dataset.label || picture.title, id = place.id || (place.id = place.dataset.picture);
    const query = new URLSearchParams(location.search), defaults = {}, state = {}, errors = [], inputs = {};
    for (const control of picture.controls) {
      const set = place.dataset[control.name];
      defaults[control.name] = set === undefined ? control.value : checked(control, set).value;
      state[control.name] = defaults[control.name];
      const linked = query.get(`${id}.${control.name}`);
      if (linked === null) continue;
      const { value, error } = checked(control, linked);
      if (error) errors.push(`${error}; ${written(defaults[control.name])} is shown`);
      else state[control.name] = value;
    }

    const drawing = html("div", { class: "learn-drawing" }), formula = html("p", { class: "learn-formula" });
    const description = html("p", { class: "learn-text", id: `${id}-text`, role: "status" }), extra = html("div", { class: "learn-extra" });
    const problem = html("p", { class: "learn-problem", role: "alert", id: `${id}-problem` }, errors.join(". "));
    const link = html("a", { href: "#" }, "Link to this picture with its parameters");
    const reset = html("button", { type: "button", onclick: () => set(defaults) }, "Reset");
    const form = html("form", { class: "learn-controls", "aria-label": `${name}: parameters`, onsubmit: (event) => event.preventDefault() });
    let timer = 0;

    const limit = (control) => (typeof control.max === "function" ? control.max(state) : control.max);
    function field(control) {
      const key = `${id}-${control.name}`;
      let input;
      if (control.kind === "choice") {
        input = html("select", { id: key }, control.options.map(([value, label]) => html("option", { value }, label)));
      } else if (control.kind === "check") input = html("input", { id: key, type: "checkbox" });
      else if (control.kind === "text") input = html("input", { id: key, type: "text", spellcheck: "false", autocomplete: "off" });
      else if (control.kind === "step") input = html("input", { id: key, type: "range", min: control.min, step: 1 });
      else input = html("input", { id: key, type: "number", min: control.min, max: control.max, step: control.whole ? 1 : "any", inputmode: "decimal" });
      input.addEventListener("input", () => changed(control, input));
      inputs[control.name] = input;
      const label = html("label", { for: key, class: `learn-${control.kind}${control.long ? " learn-long" : ""}` }, html("span", {}, control.label), input);
      if (control.kind !== "step") return label;
      const play = html("button", { type: "button", class: "learn-play", onclick: () => (timer ? stop() : run(control, play)) }, "Play");
      return html("div", { class: "learn-steps" }, label, play);
    }

    function changed(control, input) {
      const { value, error } = checked(control, control.kind === "check" ? input.checked : input.value);
      problem.textContent = error || "";
      input.toggleAttribute("aria-invalid", Boolean(error));
      if (error) { input.setAttribute("aria-invalid", "true"); input.setAttribute("aria-describedby", problem.id); return; }
      input.removeAttribute("aria-describedby");
      set({ [control.name]: value });
    }

    function stop() {
      clearInterval(timer); timer = 0;
      for (const button of form.querySelectorAll(".learn-play")) button.textContent = "Play";
    }
    function run(control, play) {
      play.textContent = "Pause";
      if (state[control.name] >= limit(control)) set({ [control.name]: control.min });
      timer = setInterval(() => (state[control.name] < limit(control) ? set({ [control.name]: state[control.name] + 1 }) : stop()), 900);
    }

    function set(changes) {
      Object.assign(state, changes);
      if (changes === defaults) { problem.textContent = ""; stop(); }
      draw();
      try { history.replaceState(history.state, "", link.getAttribute("href")); } catch { /* some browsers keep the address of a file */ }
      document.dispatchEvent(new Event("learn-address"));  // the links of all pictures hold the parameters of all
    }
    const relink = () => { link.href = address(id, state, defaults); };
    document.addEventListener("learn-address", relink);

    function draw() {
      for (const control of picture.controls) {
        const input = inputs[control.name], shown = !control.when || control.when(state);
        input.closest("label").hidden = !shown;
        if (control.kind === "step") {
          const most = limit(control);
          state[control.name] = Math.min(state[control.name], most);
          input.max = most;
          input.closest(".learn-steps").hidden = !shown || most <= control.min;
          input.setAttribute("aria-valuetext", `${state[control.name]} of ${most}`);
          input.previousSibling.textContent = `${control.label}: ${state[control.name]} of ${most}`;
        }
        if (control.kind === "check") input.checked = state[control.name];
        else if (document.activeElement !== input || control.kind === "step" || control.kind === "choice") { input.value = state[control.name]; input.removeAttribute("aria-invalid"); }
      }
      const focus = drawing.contains(document.activeElement) && document.activeElement.dataset.key;
      const width = Math.max(Math.min(drawing.clientWidth || 640, 960), 240);
      const result = picture.draw({ ...state }, { width, set, id });
      const role = result.interactive ? "group" : "img";
      drawing.replaceChildren(svg("svg", {
        viewBox: `0 0 ${width} ${result.height}`, width, height: result.height, role, "aria-label": name, "aria-describedby": description.id,
      }, result.nodes));
      if (focus) drawing.querySelector(`[data-key="${focus}"]`)?.focus();
      formula.replaceChildren(...[result.formula].flat().flatMap((line, at) => [at ? html("br") : "", html("code", {}, line)]), html("strong", {}, ` ${result.sign || "="} ${result.value}`));
      description.textContent = result.text;
      extra.replaceChildren(...[result.extra].flat().filter(Boolean));
      for (const wrap of extra.querySelectorAll(".learn-wide")) wrap.toggleAttribute("tabindex", wrap.scrollWidth > wrap.clientWidth);
      for (const wrap of extra.querySelectorAll(".learn-wide[tabindex]")) wrap.tabIndex = 0;
      relink();
    }

    form.append(...picture.controls.map(field));
    place.classList.add("learn");
    place.setAttribute("role", "group");
    place.setAttribute("aria-label", name);
    place.replaceChildren(form, problem, drawing, formula, description, extra, html("p", { class: "learn-actions" }, link, " ", reset));
    let before = 0;
    new ResizeObserver(() => { if (drawing.clientWidth !== before) { before = drawing.clientWidth; draw(); } }).observe(drawing);
    draw();
    place.picture = { state, set };
  }

  // A table that scrolls within itself where the screen is narrower.
  const table = (caption, head, rows, kind = "") => html("div", { class: `learn-wide ${kind}`, role: "region", "aria-label": caption },
    html("table", { class: "learn-table" }, html("caption", {}, caption), html("thead", {}, html("tr", {}, head.map((cell) => html("th", { scope: "col" }, cell)))),
      html("tbody", {}, rows.map((row) => html("tr", {}, row.map((cell, at) => html(at ? "td" : "th", at ? {} : { scope: "row" }, cell)))))));

  const legend = (parts) => html("p", { class: "learn-legend" }, parts.map(([color, label]) => html("span", {}, html("i", { class: `f${color}` }), label)));

  // Expressions exported from Forescale's own formulas: a number, a name, or [operator, first, second].
  const RANK = { "+": 1, "-": 1, "×": 2, "/": 2 };
  const APPLY = { "+": (a, b) => a + b, "-": (a, b) => a - b, "×": (a, b) => a * b, "/": (a, b) => a / b };
  function evaluate(expression, values) {
    if (typeof expression === "number") return expression;
    if (typeof expression === "string") return values[expression];
    const [operator, first, second] = expression;
    return APPLY[operator](evaluate(first, values), evaluate(second, values));
  }
  function infix(expression, names = {}, rank = 0) {
    if (!Array.isArray(expression)) return typeof expression === "string" ? names[expression] || expression : String(expression);
    const [operator, first, second] = expression, level = RANK[operator], strict = operator === "/" || operator === "-";
    if (operator === "/" && names[second] === "1") return infix(first, names, rank);
    const inner = `${infix(first, names, level)}${{ "+": " + ", "-": " − ", "×": "·", "/": " / " }[operator]}${infix(second, names, strict ? level + 0.5 : level)}`;
    return level < rank ? `(${inner})` : inner;
  }

  function start() {
    for (const place of document.querySelectorAll("[data-picture]")) show(place);
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target) target.scrollIntoView();
  }
  addEventListener("DOMContentLoaded", start);  // after the deferred scripts of all pictures

  return { define: (name, picture) => { pictures[name] = picture; }, pictures, html, svg, text, lines, box, table, legend, digits, bytes, count, milliseconds, evaluate, infix, data: {} };
})();
