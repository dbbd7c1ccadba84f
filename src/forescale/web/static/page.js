"use strict";
// Follows a search as it goes, asks again when the server was busy.

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

// What is to be taken elsewhere has a button that copies it.
function copyable(inside) {
  for (const text of inside.querySelectorAll("pre:not(.copied)")) {
    text.classList.add("copied");
    const button = document.createElement("button");
    button.type = "button"; button.className = "save"; button.textContent = "Copy";
    button.addEventListener("click", async () => { await navigator.clipboard.writeText(text.textContent); button.textContent = "Copied"; });
    text.before(button);
  }
}

let running = null;
function search() {
  const found = document.getElementById("found");
  const button = document.getElementById("search");
  if (running) {
    running.close(); running = null; button.textContent = "Search the best layout"; found.textContent = "Cancelled.";
    return;
  }
  button.textContent = "Cancel the search";
  found.innerHTML = '<h2>Best layouts</h2><p id="progress">Searching …</p>';
  const end = () => { running.close(); running = null; button.textContent = "Search the best layout"; };
  running = new EventSource("/search?" + words());
  running.addEventListener("progress", (event) => {
    const far = JSON.parse(event.data);
    document.getElementById("progress").textContent = `${far.num_evaluated.toLocaleString("en")} evaluated, ${far.num_pruned.toLocaleString("en")} proven worse, of ${far.num_legal.toLocaleString("en")} legal; ${far.elapsed_s.toFixed(1)} s`;
  });
  running.addEventListener("found", (event) => { end(); found.innerHTML = event.data; htmx.process(found); draw(found); });
  running.onerror = () => { if (running) { end(); found.innerHTML = '<p class="error" role="alert">The search could not be asked; try again.</p>'; } };
}

// What was kept stays in the browser.
function comparable() {
  const button = document.getElementById("compare");
  if (button) button.hidden = !sessionStorage.getItem("kept");
}

document.addEventListener("click", (event) => {
  if (event.target.id === "keep") { sessionStorage.setItem("kept", event.target.dataset.address); event.target.textContent = "Kept"; comparable(); }
  if (event.target.id === "compare") {
    const kept = encodeURIComponent(sessionStorage.getItem("kept"));
    htmx.ajax("GET", `/compare?with=${kept}&${document.getElementById("keep").dataset.address}`, "#compared");
  }
});

document.addEventListener("DOMContentLoaded", () => {
  comparable(); slide(); copyable(document);
  document.addEventListener("input", (event) => { if (event.target.dataset.for) slid(event.target); else if (event.target.closest("#question")) slide(); });
  document.getElementById("search").addEventListener("click", search);
  document.getElementById("file").addEventListener("change", (event) => {
    event.stopPropagation();
    if (event.target.files.length) read(event.target.files[0]);
  });
  document.body.addEventListener("htmx:afterSwap", (event) => { draw(event.target); comparable(); copyable(event.target); });
  document.body.addEventListener("htmx:responseError", (event) => {
    const asked = event.detail;
    if (asked.xhr.status === 429) setTimeout(() => htmx.ajax("GET", asked.pathInfo.finalRequestPath, "#" + asked.target.id), 1000 * (asked.xhr.getResponseHeader("Retry-After") || 1));
  });
  document.addEventListener("quantity", (event) => htmx.ajax("GET", "/explain?quantity=" + encodeURIComponent(event.detail) + "&" + words(), "#explanation"));
});
