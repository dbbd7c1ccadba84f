"use strict";
// Sends the question when the form changes, marks what answers an earlier question, follows searches, shows errors.

const by = (id) => document.getElementById(id);
const form = () => by("question");
const controls = () => [...form().elements].filter((each) => each.name);
const inLayout = (control) => Boolean(control.closest("[data-group=Layout]"));
const lines = (text) => (text || "").split("\n").map((line) => line.trim()).filter(Boolean);
const ofLayout = (line) => line.startsWith("strategy.");

function words() {
  const query = new URLSearchParams();
  for (const each of controls()) if (each.value.trim()) query.append(each.name, each.value);
  return query.toString();
}

// The question without its layout: what a search for the best layouts depends on.
function searchWords() {
  const query = new URLSearchParams();
  for (const each of controls()) {
    const value = each.name === "set" ? lines(each.value).filter((line) => !ofLayout(line)).join("\n") : inLayout(each) ? "" : each.value.trim();
    if (value) query.append(each.name, value);
  }
  return query.toString();
}

// Errors: at the top of the window, which follows it, and at the field that they name.
function problem(text, field, focus) {
  noProblem();
  const place = by("problem"), input = field && by(field);
  place.textContent = text;
  if (input) {
    const group = input.closest("details");
    if (group) group.open = true;
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", "problem");
    const note = document.createElement("small");
    note.className = "error"; note.textContent = text; note.setAttribute("aria-hidden", "true");
    input.after(note);
  }
  if (focus) { place.scrollIntoView({ block: "nearest" }); place.focus({ preventScroll: true }); }
}

function noProblem() {
  by("problem").textContent = "";
  for (const input of document.querySelectorAll("[aria-invalid]")) { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-describedby"); }
  for (const note of document.querySelectorAll("#question small.error")) note.remove();
}

// What answers the previous question is dimmed and labelled until its successor is there.
function outdated(parts, busy) {
  for (const part of parts) { part.classList.add("outdated"); part.setAttribute("aria-busy", String(busy)); }
}

function current(parts) {
  for (const part of parts) { part.classList.remove("outdated"); part.removeAttribute("aria-busy"); }
}

const answers = () => [by("answer"), by("details"), by("compared")];
const answered = () => Boolean(by("step"));

function sent() {
  by("diagnosis").textContent = "";  // it answers the question before
  if (answered()) {
    outdated(answers(), true);
    by("state").textContent = "Computing. The dimmed figures answer the previous question.";
  } else by("state").textContent = "Computing.";
  if (ranking.key !== searchWords()) leaveRanking();
  gain();
}

function refused(text, field, focus) {
  problem(text, field, focus);
  for (const part of answers()) part.removeAttribute("aria-busy");
  by("state").textContent = answered() ? "The dimmed figures answer the previous question." : "";
  rank();
}

// The best layouts are searched next to every answer, for a short time; the button searches for longer, or cancels.
const rankings = () => [by("ranking"), by("hero")];
const ranking = { key: null, shown: false, source: null, wait: 0 };

function stop() {
  clearTimeout(ranking.wait); ranking.wait = 0;
  if (ranking.source) ranking.source.close();
  ranking.source = null;
  by("search").textContent = "Search the best layout";
}

function say(text) {
  const stale = by("ranking").classList.contains("outdated") ? "The dimmed layouts answer the previous question." : "";
  by("progress").textContent = [text, stale].filter(Boolean).join(" ");
}

function leaveRanking() {
  stop();
  ranking.key = null; ranking.shown = false;
  if (!by("ranking").hasChildNodes()) return;
  outdated(rankings(), true);
  gain();
  say("");
}

function rank() {
  if (ranking.key !== searchWords() || !(ranking.shown || ranking.source || ranking.wait)) search(true);
  else gain();
}

function search(soon) {
  if (ranking.key !== searchWords()) leaveRanking();
  stop();
  ranking.key = searchWords();
  by("search").textContent = "Cancel the search";
  by("best").classList.remove("failed");
  say("Searching …");
  const source = new EventSource("/search?" + (soon ? "soon=1&" : "") + words());
  ranking.source = source;
  const end = (text) => { stop(); for (const part of rankings()) part.removeAttribute("aria-busy"); say(text); by("best").classList.toggle("failed", text !== ""); };
  source.addEventListener("progress", (event) => {
    const far = JSON.parse(event.data), count = (value) => value.toLocaleString("en");
    const best = far.best ? ` Best step so far: ${far.best.toPrecision(4)} s.` : "";
    say(`Searching: ${count(far.num_evaluated + far.num_pruned)} of ${count(far.num_legal)} legal layouts settled in ${far.elapsed_s.toFixed(0)} s.${best}`);
  });
  source.addEventListener("found", (event) => {
    by("ranking").innerHTML = event.data;
    by("hero").replaceChildren(by("ranking").querySelector(".hero-source"));
    current(rankings());
    ranking.shown = true;
    end("");
    for (const part of rankings()) htmx.process(part);
    draw(by("ranking")); gain(); said("found");
  });
  source.addEventListener("failed", (event) => {
    ranking.shown = true;  // asked again, it would fail again
    end(soon && by("problem").textContent ? "" : event.data);
  });
  source.addEventListener("busy", (event) => {
    source.close(); say("Other searches are running; this one waits for its turn.");
    ranking.wait = setTimeout(search, 1000 * event.data, soon);
  });
  source.onerror = () => { if (ranking.source === source) end("The server did not answer the search; try again."); };
}

// How much shorter the best step is than that of the form's layout, and which parts of the step make the difference.
const NAMES = { tensor_comm: "tensor communication", context_comm: "context communication", expert_comm: "expert communication", pipeline_comm: "pipeline communication", data_comm: "data-parallel communication", host_comm: "transfers to the host", bubble: "the pipeline bubble", recompute: "recomputation", reference: "the reference model", ffn: "feed-forward", moe: "experts", norm: "normalization", head: "the output layer" };

function gain() {
  const place = by("gain"), why = by("why"), best = document.querySelector("#hero [data-parts]"), now = document.querySelector("#answer [data-parts]"), step = document.querySelector("#step data");
  if (!place || !best) return;
  const known = now && step && !document.querySelector("#answer.outdated, #hero.outdated"), saved = known ? 1 - Number(best.dataset.step) / Number(step.value) : 0;
  const differs = saved > 0.0005;
  place.textContent = differs ? `The best layout takes ${(100 * saved).toPrecision(2)} % less time per step than yours.` : known ? "No layout of this search is faster than yours." : "";
  why.textContent = known && differs ? reason(JSON.parse(best.dataset.parts), JSON.parse(now.dataset.parts)) : "";
}

function reason(best, now) {
  const seconds = (value) => `${Math.abs(value).toPrecision(2)} s`, total = Object.values(now).reduce((sum, value) => sum + value, 0);
  const changes = [...new Set([...Object.keys(best), ...Object.keys(now)])].map((name) => [NAMES[name] || name, (best[name] || 0) - (now[name] || 0)]).filter(([, value]) => Math.abs(value) > 0.002 * total).sort((a, b) => a[1] - b[1]);
  const less = changes.filter(([, value]) => value < 0).slice(0, 3).map(([name, value]) => `${seconds(value)} less on ${name}`);
  const more = changes.filter(([, value]) => value > 0).slice(-2).reverse().map(([name, value]) => `${seconds(value)} more on ${name}`);
  return less.length ? `Per step it spends ${less.join(", ")}${more.length ? `; ${more.join(" and ")}` : ""}.` : "";
}

// A link to another layout changes the layout of the form and nothing else that was typed; any other changes its fields.
function follow(href, from) {
  const base = from.closest("[data-address]");
  const to = new URLSearchParams(href.slice(href.indexOf("?") + 1));
  const since = new URLSearchParams(base ? base.dataset.address : "");
  const whole = Boolean(base && "layout" in base.dataset);
  for (const each of controls()) {
    const value = to.get(each.name) || "", before = since.get(each.name) || "";
    if (each.name === "set") {
      const kept = lines(each.value).filter((line) => !(whole && ofLayout(line)) && (lines(value).includes(line) || !lines(before).includes(line)));
      each.value = [...new Set([...kept, ...lines(value).filter((line) => whole && ofLayout(line) || !lines(before).includes(line))])].join("\n");
    } else if (whole && inLayout(each) || value !== before) each.value = value;
  }
  submit();
}

function submit() {
  slide();
  if (by("set").value || by("config").value) by("more").open = true;
  htmx.trigger("#question", "submit");
}

function clear(chosen) {
  for (const each of controls()) if (chosen(each)) each.value = "";
  if (chosen(by("set"))) { by("file").value = ""; by("read").textContent = ""; }
  else by("set").value = lines(by("set").value).filter((line) => !ofLayout(line)).join("\n");
  submit();
}

// A framework's file fills the form with what it says; what it leaves open stays.
let reads = 0;
async function read(file) {
  const mine = ++reads, place = by("read"), most = 8388608;
  const note = (text) => { const line = document.createElement("p"); line.textContent = text; place.append(line); };
  const failed = (text) => { place.textContent = ""; problem(`${file.name}: ${text}`, "file", true); };
  if (file.size > most) { failed("The file is larger than 8 MiB."); return; }
  place.textContent = `Reading ${file.name} …`;
  let answer, found;
  try {
    answer = await fetch("/read?" + new URLSearchParams({ name: file.name }) + "&" + words(), { method: "POST", body: file });
    found = await answer.json();
  } catch { if (mine === reads) failed("The server did not answer; try again."); return; }
  if (mine !== reads) return;
  if (!answer.ok) { failed(found.error.replace(`${file.name}: `, "")); return; }
  place.textContent = "";
  note(`${file.name}: read as ${found.format}.`);
  for (const each of found.notes) note(each);
  if (found.html) { by("diagnosis").innerHTML = found.html; by("diagnosis").scrollIntoView({ block: "nearest" }); return; }
  for (const [name, value] of Object.entries(found.fields)) by(name).value = value;
  submit();
}

// Sliders show their fields' values, by powers of two; moved, they fill them.
function slide() {
  for (const slider of document.querySelectorAll("[data-for]")) {
    const value = Number(by(slider.dataset.for).value);
    slider.value = value > 0 ? Math.log2(value) : (Number(slider.min) + Number(slider.max)) / 2;
    slider.setAttribute("aria-valuetext", value > 0 ? String(value) : "default");
  }
}

function slid(slider) {
  const value = 2 ** Number(slider.value), text = String(value < 8 ? Number(value.toPrecision(2)) : Math.round(value));
  by(slider.dataset.for).value = text;
  slider.setAttribute("aria-valuetext", text);
}

// Screen readers announce what changed in a few words.
function said(id) {
  const told = document.querySelectorAll(id === "answer" ? "#answer .asked, #answer .layout, #answer .big, #answer .figures > div" : "#gain, #why, #ranking > div > p");
  by("said").textContent = [...told].map((each) => each.textContent.trim().replace(/\s+/g, " ")).join("; ");
}

// Up to three questions are kept, in the browser and in the link to the comparison.
const kept = () => JSON.parse(sessionStorage.getItem("kept") || "[]");
const question = () => document.querySelector("#details [data-address]")?.dataset.address || "";

function comparable() {
  const questions = kept(), link = by("compare-link");
  by("forget").hidden = link.hidden = !questions.length;
  by("keep").disabled = questions.length > 2;
  link.href = `/?${question()}#compare=${encodeURIComponent(questions.join("|"))}`;
}

function compared() {
  comparable();
  const questions = kept(), query = new URLSearchParams(question());
  for (const each of questions) query.append("with", each);
  by("compared").removeAttribute("aria-busy");
  if (!questions.length) { by("compared").textContent = ""; current([by("compared")]); }
  else if (selected() === "compare" && answered()) fetched(`/compare?${query}`, () => String(query) === comparison() && answerIsCurrent(), (text) => { by("compared").innerHTML = text; current([by("compared")]); });
}

function comparison() {
  const query = new URLSearchParams(question());
  for (const each of kept()) query.append("with", each);
  return String(query);
}

const answerIsCurrent = () => !by("answer").classList.contains("outdated");

// What answers a question that is not the current one any more is discarded.
async function fetched(path, wanted, show) {
  let answer, text;
  try { answer = await fetch(path, { headers: { "HX-Request": "true" } }); text = await answer.text(); } catch { return; }
  if (!wanted()) return;
  if (answer.status === 429) { setTimeout(() => wanted() && fetched(path, wanted, show), 1000 * (answer.headers.get("Retry-After") || 1)); return; }
  if (!answer.ok) { const box = document.createElement("div"); box.innerHTML = text; text = ""; problem(box.textContent.trim(), "", false); return; }
  show(text);
  for (const part of [by("compared"), by("details")]) { htmx.process(part); draw(part); }
}

function pictures() {
  const address = question();
  if (address) setTimeout(() => address === question() && fetched(`/pictures?${address}`, () => address === question(), (text) => {
    const box = document.createElement("template");
    box.innerHTML = text;
    for (const part of box.content.querySelectorAll("[data-part]")) by(part.dataset.part).replaceChildren(...part.childNodes);
  }), 300);
}

function keep(questions) {
  sessionStorage.setItem("kept", JSON.stringify(questions.slice(0, 3)));
  compared();
}

// Tabs; the selected one is part of the address.
const tabs = () => [...document.querySelectorAll("[role=tab]")];
const selected = () => document.querySelector("[role=tab][aria-selected=true]").dataset.tab;

function select(name) {
  for (const tab of tabs()) {
    const is = tab.dataset.tab === name, panel = by(`panel-${tab.dataset.tab}`);
    tab.setAttribute("aria-selected", String(is)); tab.tabIndex = is ? 0 : -1;
    if (panel) panel.hidden = !is;
  }
  const answer = { cost: "run", explain: "terms" }[name];  // fetched when the tab is opened
  if (answer && by(answer)) htmx.trigger(by(answer), "opened");
  if (name === "compare") compared();
  const panel = by(`panel-${name}`);
  if (panel) { panel.classList.add("opened"); draw(panel); }
}

function remember() {
  const hash = selected() === "layouts" ? "" : `#${selected()}`;
  if (location.hash !== hash) history.replaceState(history.state, "", location.pathname + location.search + hash);
}

function restored() {
  const hash = decodeURIComponent(location.hash.slice(1)), names = tabs().map((tab) => tab.dataset.tab);
  if (hash === "gallery") by("gallery").open = true;
  if (hash.startsWith("compare=")) { sessionStorage.setItem("kept", JSON.stringify(hash.slice(8).split("|").slice(0, 3))); select("compare"); } else if (names.includes(hash)) select(hash);
}

// The card: a picture of the answer, to save, to link and to embed.
function share(address) {
  const here = location.origin, link = `${here}/?${address}`, card = `${here}/card.svg?${address}`;
  by("card").src = card; by("card").alt = `The answer as a picture: ${document.querySelector(".asked")?.textContent || ""}`;
  by("card-svg").href = card; by("card-png").href = `/card.png?${address}`; by("card-link").href = link;
  by("embed-html").textContent = `<a href="${link}"><img src="${card}" width="600" alt="Forescale"></a>`;
  by("embed-markdown").textContent = `[![Forescale](${card})](${link})`;
  by("share").showModal();
}

// Models, clusters and frameworks are chosen from a list that every word typed narrows; numbers stand next to names.
let numbers = null, catalogue = null;
const unit = (value, digits = 3) => { const place = Math.max(0, Math.floor(Math.log10(value) / 3)); return `${Number((value / 1000 ** place).toPrecision(digits))}${["", "k", "M", "G", "T", "P"][place]}`; };
const describe = {
  model: (row) => `${unit(row.params).replace("G", " B").replace("M", " M").replace("T", " T")} parameters · ${row.layers} layers${row.seq_len ? ` · up to ${row.seq_len.toLocaleString("en")} tokens` : ""}`,
  cluster: (row) => `${(row.hbm / 2 ** 30).toFixed(0)} GiB · ${unit(row.flops).replace(/([A-Z])$/, " $1")}FLOP/s bf16`,
};
const METERS = { flops: "compute", bandwidth: "memory", network: "network" };

function picker(input) {
  const names = [...by(`${input.id}-names`).options].map((option) => option.value), list = document.createElement("ul");
  let shown = [], at = -1;
  input.removeAttribute("list"); list.className = "names"; list.id = `${input.id}-list`; list.hidden = true;
  list.setAttribute("role", "listbox"); list.setAttribute("aria-label", `${input.id} names`);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "false", "aria-controls": list.id, "aria-autocomplete": "list" })) input.setAttribute(name, value);
  input.after(list);
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); input.removeAttribute("aria-activedescendant"); };
  const mark = (place) => {
    at = place;
    [...list.children].forEach((row, index) => row.setAttribute("aria-selected", String(index === at)));
    const row = list.children[at];
    if (row) { input.setAttribute("aria-activedescendant", row.id); row.scrollIntoView({ block: "nearest" }); } else input.removeAttribute("aria-activedescendant");
  };
  const choose = (name) => { close(); if (input.value !== name) { input.value = name; input.dispatchEvent(new Event("change", { bubbles: true })); } };
  const open = async (all) => {
    const terms = all ? [] : input.value.toLowerCase().split(/[\s-]+/).filter(Boolean);
    shown = names.filter((name) => terms.every((term) => name.toLowerCase().includes(term)));
    const rows = numbers?.[input.id], highest = (name) => Math.max(...rows.map((row) => row[name]));
    list.replaceChildren(...shown.slice(0, 200).map((name, place) => {
      const row = document.createElement("li"), known = rows?.find((each) => each.name === name);
      row.id = `${list.id}-${place}`; row.setAttribute("role", "option"); row.setAttribute("aria-selected", "false"); row.textContent = name;
      if (known) {
        const text = document.createElement("small");
        text.textContent = describe[input.id](known);
        if (input.id === "cluster") for (const [key, label] of Object.entries(METERS)) text.insertAdjacentHTML("beforeend", `${key === "flops" ? "<br>" : ""}${label} <span class="meter"><i style="width:${(100 * known[key] / highest(key)).toFixed(0)}%"></i></span> `);
        row.append(text);
      }
      row.addEventListener("mousedown", (event) => { event.preventDefault(); choose(name); });
      return row;
    }));
    list.hidden = !shown.length || document.activeElement !== input; input.setAttribute("aria-expanded", String(!list.hidden));
    mark(all ? shown.indexOf(input.value) : -1);
    if (!numbers && describe[input.id]) { catalogue ||= fetch("/static/names.json").then((answer) => answer.json()).catch(() => ({})); numbers = await catalogue; if (!list.hidden) open(all); }
  };
  input.addEventListener("click", () => open(true));
  input.addEventListener("input", () => open(false));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) { open(true); return; }
      mark((at + (event.key === "ArrowDown" ? 1 : -1) + list.children.length) % list.children.length);
    } else if (event.key === "Escape") close();
    else if (event.key === "Enter" && !list.hidden && at >= 0) { event.preventDefault(); choose(shown[at]); }
  });
}

document.addEventListener("click", async (event) => {
  const target = event.target, dialog = target.closest && target.closest("dialog");
  if (dialog && (target === dialog || target.parentElement === dialog && target.classList.contains("save") && !("copy" in target.dataset))) dialog.close();
  if ("copy" in target.dataset) { await navigator.clipboard.writeText(target.nextElementSibling.textContent); target.textContent = "Copied"; }
  if ("share" in target.dataset) share(target.dataset.share);
  if ("tab" in target.dataset) { select(target.dataset.tab); remember(); }
  if (target.id === "keep") keep([...kept(), question()]);
  if (target.id === "forget") keep([]);
  const link = target.closest && target.closest("[data-layout] a[href^='/?']");
  if (link && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey)) { event.preventDefault(); follow(link.getAttribute("href"), link); }
});

document.addEventListener("keydown", (event) => {
  if (event.target.role !== "tab" && event.target.getAttribute?.("role") !== "tab") return;
  const all = tabs(), at = all.indexOf(event.target), to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = all[(to + all.length) % all.length];
  select(tab.dataset.tab); remember(); tab.focus();
});

// Whether an error may take the focus: not from someone who types in the next field already.
const asks = (event) => event.detail.requestConfig.triggeringEvent?.type !== "change";

document.addEventListener("DOMContentLoaded", () => {
  const first = by("problem");
  comparable(); slide();
  for (const input of document.querySelectorAll("#question input[list]")) picker(input);
  addEventListener("hashchange", restored);
  restored(); pictures();
  for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
  });
  if (first.textContent) problem(first.textContent, first.dataset.field, true);
  rank();
  document.addEventListener("input", (event) => { if (event.target.dataset.for) slid(event.target); else if (event.target.closest("#question")) slide(); });
  document.addEventListener("follow", (event) => { event.preventDefault(); follow(event.detail, event.target); });
  document.addEventListener("toggle", (event) => { if (event.target.open) draw(event.target); }, true);
  document.addEventListener("quantity", (event) => htmx.ajax("GET", `/explain?${new URLSearchParams(event.detail)}&${question()}`, { target: "#tree", source: "#tree" }));
  by("config").addEventListener("change", (event) => { if (event.target.value.trim()) by("model").value = "own"; });
  by("clear").addEventListener("click", () => clear(() => true));
  by("clear-layout").addEventListener("click", () => clear(inLayout));
  by("search").addEventListener("click", () => {
    if (!ranking.source && !ranking.wait) { search(false); return; }
    stop(); for (const part of rankings()) part.removeAttribute("aria-busy"); say("Cancelled.");
  });
  by("file").addEventListener("change", (event) => {
    event.stopPropagation();
    if (event.target.files.length) read(event.target.files[0]);
  });
  document.body.addEventListener("htmx:beforeRequest", (event) => { if (event.detail.target.id === "answer") sent(); });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, target, pathInfo } = event.detail, ofAnswer = target.id === "answer";
    if (xhr.status === 429) {
      event.detail.shouldSwap = false;
      const question = words();
      if (ofAnswer) by("state").textContent = "The server is busy; the question is sent again.";
      setTimeout(() => { if (!ofAnswer || question === words()) ofAnswer ? submit() : htmx.ajax("GET", pathInfo.finalRequestPath, { target, source: target }); }, 1000 * (xhr.getResponseHeader("Retry-After") || 1));
    } else if (ofAnswer && xhr.status >= 400) {
      event.detail.shouldSwap = false;
      const text = document.createElement("div");
      text.innerHTML = xhr.responseText;
      refused(text.textContent.trim(), text.firstElementChild?.dataset.field, asks(event));
    } else if (ofAnswer) { noProblem(); current([by("answer"), by("details")]); by("state").textContent = ""; }
  });
  document.body.addEventListener("htmx:sendError", (event) => {
    const text = "The server did not answer. Check that forescale serve is running, and try again.";
    if (event.detail.target.id === "answer") refused(text, "", asks(event));
    else problem(text, "", true);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    requestAnimationFrame(() => setTimeout(draw, 0, event.target.id === "answer" ? by("details") : event.target));  // numbers are seen first
    if (event.target.id === "answer") {
      select(selected()); remember(); comparable(); pictures();
      if (selected() !== "compare") by("compared").removeAttribute("aria-busy");  // fetched when the tab is opened
      said("answer"); rank();
      if (matchMedia("(max-width: 50rem)").matches && asks(event)) by("answer").scrollIntoView();
    }
    if (event.target.id === "tree") by("explanation").open || by("explanation").showModal();
  });
});
