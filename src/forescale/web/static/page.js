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
    if (by("more").contains(input)) by("more").open = true;
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

const answers = () => [by("answer"), by("details")];
const answered = () => Boolean(by("step"));

function sent() {
  if (answered()) {
    outdated(answers(), true);
    by("state").textContent = "Computing. The figures below answer the previous question.";
  } else by("state").textContent = "Computing.";
  if (ranking.key !== searchWords()) leaveRanking();
  gain();
}

function refused(text, field, focus) {
  problem(text, field, focus);
  for (const part of answers()) part.removeAttribute("aria-busy");
  by("state").textContent = answered() ? "The figures below answer the previous question." : "";
  rank();
}

// The best layouts are searched next to every answer, for a short time; the button searches for longer, or cancels.
const ranking = { key: null, shown: false, source: null, wait: 0 };

function stop() {
  clearTimeout(ranking.wait); ranking.wait = 0;
  if (ranking.source) ranking.source.close();
  ranking.source = null;
  by("search").textContent = "Search the best layout";
}

function say(text) {
  const stale = by("ranking").classList.contains("outdated") ? "The layouts below answer the previous question." : "";
  by("progress").textContent = [text, stale].filter(Boolean).join(" ");
}

function leaveRanking() {
  stop();
  ranking.key = null; ranking.shown = false;
  if (!by("ranking").hasChildNodes()) return;
  outdated([by("ranking")], true);
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
  say("Searching …");
  const source = new EventSource("/search?" + (soon ? "soon=1&" : "") + words());
  ranking.source = source;
  const end = (text) => { stop(); by("ranking").removeAttribute("aria-busy"); say(text); };
  source.addEventListener("progress", (event) => {
    const far = JSON.parse(event.data), count = (value) => value.toLocaleString("en");
    say(`${count(far.num_evaluated)} of ${count(far.num_legal)} legal layouts evaluated, ${count(far.num_pruned)} excluded by a bound; ${far.elapsed_s.toFixed(1)} s`);
  });
  source.addEventListener("found", (event) => {
    by("ranking").innerHTML = event.data;
    current([by("ranking")]);
    ranking.shown = true;
    end("");
    htmx.process(by("ranking")); draw(by("ranking")); gain(); said("found");
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

// How much shorter the best step is than that of the layout above.
function gain() {
  const place = by("gain"), best = document.querySelector("#ranking tbody data"), now = document.querySelector("#step data");
  if (!place || !best) return;
  const known = now && !document.querySelector("#answer.outdated, #ranking.outdated"), saved = known ? 1 - Number(best.value) / Number(now.value) : 0;
  place.textContent = saved > 0.0005 ? `The first layout takes ${(100 * saved).toPrecision(2)} % less time per step than the layout above.` : "";
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
  const mine = ++reads, place = by("read"), most = 1048576;
  const note = (text) => { const line = document.createElement("p"); line.textContent = text; place.append(line); };
  const failed = (text) => { place.textContent = ""; problem(`${file.name}: ${text}`, "file", true); };
  if (file.size > most) { failed("The file is larger than 1 MiB."); return; }
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
  const told = document.querySelectorAll(id === "answer" ? "#answer h2, .figures > div" : "#ranking > div > p");
  by("said").textContent = [...told].map((each) => each.textContent.trim().replace(/\s+/g, " ")).join("; ");
}

// What was kept stays in the browser.
function comparable() {
  if (by("compare")) by("compare").hidden = !sessionStorage.getItem("kept");
}

document.addEventListener("click", async (event) => {
  const dialog = by("explanation"), target = event.target;
  if (target === dialog || target.parentElement === dialog && target.type === "button") dialog.close();
  if ("copy" in target.dataset) { await navigator.clipboard.writeText(target.nextElementSibling.textContent); target.textContent = "Copied"; }
  if (target.id === "keep") { sessionStorage.setItem("kept", target.dataset.address); target.textContent = "Kept"; comparable(); }
  if (target.id === "compare") {
    const kept = encodeURIComponent(sessionStorage.getItem("kept"));
    htmx.ajax("GET", `/compare?with=${kept}&${by("keep").dataset.address}`, "#compared");
  }
  const link = target.closest && target.closest("[data-layout] a[href^='/?']");
  if (link && !(event.ctrlKey || event.metaKey || event.shiftKey || event.altKey)) { event.preventDefault(); follow(link.getAttribute("href"), link); }
});

// Whether an error may take the focus: not from someone who types in the next field already.
const asks = (event) => event.detail.requestConfig.triggeringEvent?.type !== "change";

document.addEventListener("DOMContentLoaded", () => {
  const first = by("problem");
  comparable(); slide();
  if (first.textContent) problem(first.textContent, first.dataset.field, true);
  rank();
  document.addEventListener("input", (event) => { if (event.target.dataset.for) slid(event.target); else if (event.target.closest("#question")) slide(); });
  document.addEventListener("follow", (event) => { event.preventDefault(); follow(event.detail, event.target); });
  document.addEventListener("toggle", (event) => { if (event.target.open) draw(event.target); }, true);
  document.addEventListener("quantity", (event) => htmx.ajax("GET", `/explain?${new URLSearchParams(event.detail)}&${by("keep").dataset.address}`, "#tree"));
  by("config").addEventListener("change", (event) => { if (event.target.value.trim()) by("model").value = "own"; });
  by("clear").addEventListener("click", () => clear(() => true));
  by("clear-layout").addEventListener("click", () => clear(inLayout));
  by("search").addEventListener("click", () => {
    if (!ranking.source && !ranking.wait) { search(false); return; }
    stop(); by("ranking").removeAttribute("aria-busy"); say("Cancelled.");
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
      setTimeout(() => { if (!ofAnswer || question === words()) ofAnswer ? submit() : htmx.ajax("GET", pathInfo.finalRequestPath, { target }); }, 1000 * (xhr.getResponseHeader("Retry-After") || 1));
    } else if (ofAnswer && xhr.status >= 400) {
      event.detail.shouldSwap = false;
      const text = document.createElement("div");
      text.innerHTML = xhr.responseText;
      refused(text.textContent.trim(), text.firstElementChild?.dataset.field, asks(event));
    } else if (ofAnswer) { noProblem(); current(answers()); by("state").textContent = ""; }
  });
  document.body.addEventListener("htmx:sendError", (event) => {
    const text = "The server did not answer. Check that forescale serve is running, and try again.";
    if (event.detail.target.id === "answer") refused(text, "", asks(event));
    else problem(text, "", true);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    requestAnimationFrame(() => setTimeout(draw, 0, event.target.id === "answer" ? by("details") : event.target));  // numbers are seen first
    comparable();
    if (event.target.id === "answer") {
      said("answer"); rank();
      if (matchMedia("(max-width: 50rem)").matches && asks(event)) by("answer").scrollIntoView();
    }
    if (event.target.id === "tree") by("explanation").open || by("explanation").showModal();
  });
});
