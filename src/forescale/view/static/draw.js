"use strict";
// Draws the charts of a page; a page that is one file holds the library packed, and unpacks it first.

const config = JSON.parse(document.getElementById("chart-config").textContent);
const tip = document.createElement("div");
tip.id = "tip";
tip.hidden = true;

function hint(handler, event, item, value) {
  tip.hidden = value === null || value === undefined || value === "";
  if (tip.hidden) return;
  tip.textContent = typeof value === "object" ? Object.entries(value).map(([name, each]) => `${name}: ${each}`).join("\n") : value;
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = event.clientY + 14 + "px";
}

// A click on a linked mark is an event that the page may take; else the browser opens the link.
function linking(place) {
  const loader = vega.loader(), plain = loader.sanitize.bind(loader);
  loader.sanitize = (uri, options) => {
    const taken = options && options.context === "href" && !place.dispatchEvent(new CustomEvent("follow", { detail: uri, bubbles: true, cancelable: true }));
    return taken ? Promise.reject(new Error("the page follows this link")) : plain(uri, options);
  };
  return loader;
}

async function drawChart(place) {
  const spec = JSON.parse(place.dataset.spec);
  place.removeAttribute("data-spec");
  const wide = { ...spec, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  delete wide.title;  // the page says it
  wide.description = place.getAttribute("aria-label");
  const longest = Math.max(0, ...(spec.data?.values || []).map((row) => (row.part || "").length)), columns = 7 * longest > place.clientWidth / 2 - 40 ? 1 : 2;
  const narrow = place.clientWidth < 400 ? { ...config, legend: { ...config.legend, columns, labelLimit: place.clientWidth / columns - 40 } } : config;
  const view = new vega.View(vega.parse(vegaLite.compile(wide, { config: narrow, logger: vega.logger(vega.Error) }).spec), { renderer: "svg", container: place, hover: true, loader: linking(place) });
  view.tooltip(hint);
  view.addEventListener("click", (_, item) => {
    const { quantity, stage } = item && item.datum || {};
    if (quantity) place.dispatchEvent(new CustomEvent("quantity", { detail: stage === undefined ? { quantity } : { quantity, stage }, bubbles: true }));
  });
  await view.runAsync();
  saving(place, spec);
}

// A button that saves the chart as it is, with its title.
function saving(place, spec) {
  const button = document.createElement("button");
  button.type = "button"; button.className = "save"; button.textContent = "Save as SVG";
  button.addEventListener("click", async () => {
    const whole = new vega.View(vega.parse(vegaLite.compile(spec, { config: { ...config, background: "white" } }).spec));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await whole.toSVG()], { type: "image/svg+xml" }));
    link.download = (spec.title.text || "chart").replace(/[^\w.-]+/g, "-") + ".svg";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  place.after(button);
}

// What is hidden is drawn when it is shown. The library is loaded before the first chart, never before the answer.
async function draw(inside) {
  const places = [...inside.querySelectorAll(".chart[data-spec]")].filter((place) => !place.closest("details:not([open]), [hidden]"));
  if (!places.length) return;
  for (const place of places) {
    const { height, data } = JSON.parse(place.dataset.spec);
    const bars = new Set((data?.values || []).map((row) => row.bar)).size;
    place.style.minHeight = (height?.step ? height.step * bars : height || 0) + 56 + "px";  // nothing moves when it is drawn
  }
  await library();
  for (const place of places) if (place.dataset.spec && place.isConnected) drawChart(place);
}

let loading = null;
function library() {
  const packed = document.getElementById("library"), files = document.getElementById("chart-config").dataset.library;
  loading ||= packed ? unpack(packed) : (files || "").split(" ").filter(Boolean).reduce((before, file) => before.then(() => load(file)), Promise.resolve());
  return loading;
}

function load(file) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = file; script.onload = resolve; script.onerror = reject;
    document.head.append(script);
  });
}

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.textContent), (each) => each.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}

function begin() {
  document.body.append(tip);
  draw(document);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin); else begin();
