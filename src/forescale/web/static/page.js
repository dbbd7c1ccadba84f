"use strict";
// Draws the charts, follows a search as it goes, asks again when the server was busy.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const labels = () => ({
  axis: { labelColor: dark.matches ? "#e6e9ef" : "#1c2330", titleColor: dark.matches ? "#e6e9ef" : "#1c2330", gridColor: dark.matches ? "#3a4250" : "#dde1e8", labelFontSize: 12, titleFontSize: 12 },
  legend: { labelColor: dark.matches ? "#e6e9ef" : "#1c2330", titleColor: dark.matches ? "#e6e9ef" : "#1c2330", orient: "bottom", columns: 3, labelFontSize: 12 },
  rule: { color: dark.matches ? "#ff8a80" : "#b3261e" },
  view: { stroke: null },
  range: { category: ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f"] },
});

function draw(inside) {
  for (const place of inside.querySelectorAll(".chart[data-spec]")) {
    const spec = JSON.parse(place.dataset.spec);
    vegaEmbed(place, spec, { actions: false, renderer: "svg", config: labels() }).then((drawn) => {
      drawn.view.addEventListener("click", (_, item) => {
        const quantity = item && item.datum && item.datum.quantity;
        if (quantity) htmx.ajax("GET", "/explain?quantity=" + encodeURIComponent(quantity) + "&" + words(), "#explanation");
      });
    });
  }
}

function words() {
  const said = new URLSearchParams();
  for (const [name, value] of new FormData(document.getElementById("question"))) if (value.trim()) said.append(name, value);
  return said.toString();
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
  draw(document);
  comparable();
  document.getElementById("search").addEventListener("click", search);
  document.body.addEventListener("htmx:afterSwap", (event) => { draw(event.target); comparable(); });
  document.body.addEventListener("htmx:responseError", (event) => {
    const asked = event.detail;
    if (asked.xhr.status === 429) setTimeout(() => htmx.ajax("GET", asked.pathInfo.finalRequestPath, "#" + asked.target.id), 1000 * (asked.xhr.getResponseHeader("Retry-After") || 1));
  });
  dark.addEventListener("change", () => draw(document));
});
