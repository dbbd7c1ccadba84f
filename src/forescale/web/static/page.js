"use strict";
// Searches beside every answer, follows a search as it goes, asks again when the server was busy.

function words() {
  const said = new URLSearchParams();
  for (const [name, value] of new FormData(document.getElementById("question"))) if (value.trim()) said.append(name, value);
  return said.toString();
}

// A framework's file fills the form with what it says; what it leaves open stays.
async function read(file) {
  const place = document.getElementById("read");
  const note = (name, text) => { const line = document.createElement(name); line.textContent = text; place.append(line); return line; };
  place.textContent = "";
  if (file.size > 1048576) { note("p", "The file is larger than 1 MiB.").className = "error"; return; }
  const answer = await fetch("/read?" + new URLSearchParams({ name: file.name }) + "&" + words(), { method: "POST", body: await file.text() });
  const found = await answer.json();
  if (!answer.ok) { note("p", found.error).className = "error"; return; }
  note("p", `${file.name}: read as ${found.format}.`);
  for (const each of found.notes) note("p", each);
  for (const [name, value] of Object.entries(found.fields)) document.getElementById(name).value = value;
  slide();
  if (found.fields.set || found.fields.config) document.getElementById("more").open = true;
  htmx.trigger("#question", "submit");
}

// Sliders stand where their fields do, by powers of two; moved, they fill them.
function slide() {
  for (const slider of document.querySelectorAll("[data-for]")) {
    const value = Number(document.getElementById(slider.dataset.for).value);
    slider.value = value > 0 ? Math.log2(value) : (Number(slider.min) + Number(slider.max)) / 2;
    slider.setAttribute("aria-valuetext", value > 0 ? String(value) : "as it is");
  }
}

function slid(slider) {
  const value = 2 ** Number(slider.value), text = String(value < 8 ? Number(value.toPrecision(2)) : Math.round(value));
  document.getElementById(slider.dataset.for).value = text;
  slider.setAttribute("aria-valuetext", text);
}

// The best layouts are searched beside every answer, for a short time; the button searches for longer, or cancels.
let running = null, waiting = 0;
function stop() {
  clearTimeout(waiting); waiting = 0;
  if (running) running.close();
  running = null;
  document.getElementById("search").textContent = "Search the best layout";
}

// Where the layout is not legal there is no answer, and the layouts that are stand below what is wrong.
function place() {
  const found = document.getElementById("found") || document.createElement("section");
  if (!found.id) { found.id = "found"; found.setAttribute("aria-label", "Best layouts"); document.getElementById("answer").append(found); }
  return found;
}

function search(soon) {
  stop();
  const found = place();
  document.getElementById("search").textContent = "Cancel the search";
  const say = (text) => {
    if (!document.getElementById("progress")) found.insertAdjacentHTML("afterbegin", '<p id="progress"></p>');
    document.getElementById("progress").textContent = text;
  };
  const show = (html) => { stop(); found.innerHTML = html; htmx.process(found); draw(found); gain(); said("found"); };
  if (!soon) found.innerHTML = "<h3>Best layouts</h3>";
  say("Searching …");
  running = new EventSource("/search?" + (soon ? "soon=1&" : "") + words());
  running.addEventListener("progress", (event) => {
    const far = JSON.parse(event.data);
    say(`${far.num_evaluated.toLocaleString("en")} evaluated, ${far.num_pruned.toLocaleString("en")} proven worse, of ${far.num_legal.toLocaleString("en")} legal; ${far.elapsed_s.toFixed(1)} s`);
  });
  running.addEventListener("found", (event) => show(soon && event.data.includes('class="error"') && !document.getElementById("step") ? "" : event.data));
  running.addEventListener("busy", (event) => {
    running.close(); say("Others are searching; this waits for its turn.");
    waiting = setTimeout(search, 1000 * event.data, soon);
  });
  running.onerror = () => { if (running) show('<p class="error" role="alert">The search could not be asked; try again.</p>'); };
}

// How much shorter the best step is than that of the layout above it.
function gain() {
  const place = document.getElementById("gain"), best = document.querySelector("#found tbody data"), now = document.querySelector("#step data");
  if (!place || !best || !now) return;
  const saved = 1 - Number(best.value) / Number(now.value);
  place.textContent = saved > 0.0005 ? `The first takes ${(100 * saved).toPrecision(2)} % less time a step than the layout above.` : "";
}

// What changed is said in a few words to who does not see it.
function said(id) {
  const told = document.querySelectorAll(id === "answer" ? "#answer h2, .figures > div" : "#found > p");
  document.getElementById("said").textContent = [...told].map((each) => each.textContent.trim().replace(/\s+/g, " ")).join("; ");
}

// What was kept stays in the browser.
function comparable() {
  const button = document.getElementById("compare");
  if (button) button.hidden = !sessionStorage.getItem("kept");
}

document.addEventListener("click", async (event) => {
  const dialog = document.getElementById("explanation");
  if (event.target === dialog || event.target.parentElement === dialog && event.target.type === "button") dialog.close();
  if ("copy" in event.target.dataset) { await navigator.clipboard.writeText(event.target.nextElementSibling.textContent); event.target.textContent = "Copied"; }
  if (event.target.id === "keep") { sessionStorage.setItem("kept", event.target.dataset.address); event.target.textContent = "Kept"; comparable(); }
  if (event.target.id === "compare") {
    const kept = encodeURIComponent(sessionStorage.getItem("kept"));
    htmx.ajax("GET", `/compare?with=${kept}&${document.getElementById("keep").dataset.address}`, "#compared");
  }
});

document.addEventListener("DOMContentLoaded", () => {
  comparable(); slide(); search(true);
  document.addEventListener("input", (event) => { if (event.target.dataset.for) slid(event.target); else if (event.target.closest("#question")) slide(); });
  document.getElementById("config").addEventListener("change", (event) => { if (event.target.value.trim()) document.getElementById("model").value = "own"; });
  document.getElementById("question").addEventListener("submit", () => { if (matchMedia("(max-width: 50rem)").matches) document.getElementById("answer").scrollIntoView(); });
  document.getElementById("search").addEventListener("click", () => {
    if (!running && !waiting) { search(false); return; }
    stop();
    document.getElementById("found").innerHTML = "<h3>Best layouts</h3><p>Cancelled.</p>";
  });
  document.addEventListener("toggle", (event) => { if (event.target.open) draw(event.target); }, true);
  document.getElementById("file").addEventListener("change", (event) => {
    event.stopPropagation();
    if (event.target.files.length) read(event.target.files[0]);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    requestAnimationFrame(() => setTimeout(draw, 0, event.target));  // numbers are seen first
    comparable();
    if (event.target.id === "answer") { said("answer"); search(true); }
    if (event.target.id === "tree") document.getElementById("explanation").open || document.getElementById("explanation").showModal();
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    const asked = event.detail;
    if (asked.xhr.status === 429) setTimeout(() => htmx.ajax("GET", asked.pathInfo.finalRequestPath, "#" + asked.target.id), 1000 * (asked.xhr.getResponseHeader("Retry-After") || 1));
  });
  document.addEventListener("quantity", (event) => htmx.ajax("GET", `/explain?${new URLSearchParams(event.detail)}&${document.getElementById("keep").dataset.address}`, "#tree"));
});
