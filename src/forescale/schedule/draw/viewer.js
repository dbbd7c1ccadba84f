"use strict";
// Draws steps on canvases that share one time axis, follows pointer and keyboard, and sorts the table below them.

const panels = JSON.parse(document.getElementById("data").textContent);
const LEFT = 58, RIGHT = 56, ROW = 22, STRIP = 9, GAP = 5, AXIS = 18;
const FONT = "11px system-ui, Helvetica, Arial, sans-serif", LOST = "#d6336c", HELD = "rgba(217,164,65,0.8)";
const longest = Math.max(...panels.map(p => p.makespan));
const view = { from: 0, to: longest };
const tip = document.getElementById("tip"), told = document.getElementById("told");
const shown = panels.map((p, place) => makePanel(p, document.querySelectorAll("canvas")[place]));
let ink, paper;

function makePanel(p, canvas) {
  const hasMemory = p.memory.some(row => row.length > 0);
  const byRank = Array.from({ length: p.ranks }, () => []);
  p.bars.forEach((bar, index) => byRank[bar[0]].push([bar, index]));
  const panel = {
    p, canvas, hasMemory, byRank, pitch: ROW + (hasMemory ? STRIP : 0) + GAP,
    incoming: new Map(p.messages.map(([s, r]) => [r, s])),
    peak: Math.max(1e-12, ...p.memory.flat().map(step => step[1])), hover: -1,
  };
  point(panel);
  type(panel);
  return panel;
}

function scaleOf(panel) { return (panel.canvas.clientWidth - LEFT - RIGHT) / (view.to - view.from); }

function draw(panel) {
  const { p, canvas, pitch, byRank } = panel;
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = pitch * p.ranks + AXIS;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  const k = scaleOf(panel), x = t => LEFT + (t - view.from) * k, right = width - RIGHT;
  g.font = FONT;
  for (let r = 0; r < p.ranks; r++) {
    const top = r * pitch;
    g.fillStyle = ink; g.textAlign = "right"; g.fillText("rank " + r, LEFT - 6, top + 15);
    g.textAlign = "left"; g.fillText((100 * p.bubble[r]).toFixed(1) + " %", right + 6, top + 15);
    g.save();
    g.beginPath(); g.rect(LEFT, top, right - LEFT, pitch); g.clip();
    g.globalAlpha = 0.1; g.fillRect(x(0), top, p.makespan * k, ROW); g.globalAlpha = 1;
    g.textAlign = "center";
    for (const [bar, index] of byRank[r]) drawBar(g, bar, index === panel.hover, top, x(bar[1]), (bar[2] - bar[1]) * k, right);
    g.fillStyle = LOST;
    for (const [rank, from, to] of p.shades) {
      if (rank === r) g.fillRect(x(from), top + ROW - 5, Math.max((to - from) * k, 0.3), 5);
    }
    if (panel.hasMemory) drawMemory(g, panel, r, top + ROW, x);
    g.restore();
  }
  drawArrow(g, panel, x);
  drawAxis(g, x, right, pitch * p.ranks + 12);
}

function drawBar(g, [, , , microbatch, fill, text, , overlapped, copies], chosen, top, left, wide, right) {
  if (left + wide < LEFT || left > right) return;
  const high = copies ? 4 : ROW, words = String(microbatch);
  g.fillStyle = fill; g.fillRect(left, top, Math.max(wide, 0.4), high);
  if (wide > 3 || chosen) {
    g.strokeStyle = chosen || overlapped ? ink : paper; g.lineWidth = chosen ? 3 : 0.7;
    g.strokeRect(left, top, wide, high);
  }
  if (!copies && wide > 7 * words.length) { g.fillStyle = text; g.fillText(words, left + wide / 2, top + 15); }
}

function drawMemory(g, panel, r, top, x) {
  g.fillStyle = HELD;
  const steps = panel.p.memory[r];
  for (let i = 0; i < steps.length; i++) {
    const end = i + 1 < steps.length ? steps[i + 1][0] : panel.p.makespan, h = STRIP * steps[i][1] / panel.peak;
    g.fillRect(x(steps[i][0]), top + STRIP - h, x(end) - x(steps[i][0]) + 0.3, h);
  }
}

function drawArrow(g, panel, x) {
  const from = panel.incoming.get(panel.hover);
  if (from === undefined) return;
  const a = panel.p.bars[from], b = panel.p.bars[panel.hover];
  g.strokeStyle = LOST; g.lineWidth = 2; g.beginPath();
  g.moveTo(x(a[2]), a[0] * panel.pitch + ROW / 2); g.lineTo(x(b[1]), b[0] * panel.pitch + ROW / 2); g.stroke();
}

function drawAxis(g, x, right, y) {
  const raw = (view.to - view.from) / 8, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw);
  g.fillStyle = ink; g.textAlign = "center";
  for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
    if (x(t) <= right + 1) g.fillText(String(+t.toPrecision(6)), x(t), y);
  }
}

function drawAll() {
  const style = getComputedStyle(document.body);
  ink = style.color; paper = style.backgroundColor;
  shown.forEach(draw);
}

function move(from, span = view.to - view.from) {
  view.from = Math.max(0, Math.min(longest - span, from)); view.to = view.from + span;
  drawAll();
}

function zoom(t, factor) {
  const span = Math.min(longest, Math.max(longest * 1e-4, (view.to - view.from) * factor));
  move(t - (t - view.from) / (view.to - view.from) * span, span);
}

function words(bar) {
  return `${bar[6]}, rank ${bar[0]}\nstart ${+bar[1].toPrecision(7)}\nend ${+bar[2].toPrecision(7)}\ntakes ${+(bar[2] - bar[1]).toPrecision(6)}`;
}

// Mark a pass and say what it is beside (left, top) of the window; null marks none.
function choose(panel, found, left, top) {
  const hover = found ? found[1] : -1;
  if (hover !== panel.hover) { panel.hover = hover; draw(panel); }
  tip.hidden = !found;
  if (!found) return;
  tip.textContent = words(found[0]);
  tip.style.left = Math.max(4, Math.min(left + 14, innerWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = Math.max(4, Math.min(top + 14, innerHeight - tip.offsetHeight - 4)) + "px";
}

function point(panel) {
  const c = panel.canvas, down = new Map();
  let drag = null;
  const timeAt = event => view.from + (event.offsetX - LEFT) / scaleOf(panel);
  c.addEventListener("wheel", event => { event.preventDefault(); zoom(timeAt(event), Math.exp(event.deltaY * 0.0015)); }, { passive: false });
  c.addEventListener("dblclick", () => move(0, longest));
  c.addEventListener("pointerdown", event => {
    c.setPointerCapture(event.pointerId); down.set(event.pointerId, event.offsetX);
    drag = { x: event.offsetX, from: view.from };
  });
  for (const name of ["pointerup", "pointercancel"]) c.addEventListener(name, event => { down.delete(event.pointerId); drag = null; });
  c.addEventListener("pointermove", event => {
    if (down.size > 1) {
      const apart = () => Math.abs([...down.values()][0] - [...down.values()][1]), before = apart();
      down.set(event.pointerId, event.offsetX);
      zoom(timeAt(event), before / Math.max(1, apart())); return;
    }
    if (drag && Math.abs(event.offsetX - drag.x) > 3) { move(drag.from - (event.offsetX - drag.x) / scaleOf(panel)); return; }
    const t = timeAt(event), row = panel.byRank[Math.floor(event.offsetY / panel.pitch)] || [];
    choose(panel, row.find(([bar]) => bar[1] <= t && t < bar[2] && !bar[8]), event.clientX, event.clientY);
  });
  c.addEventListener("pointerleave", () => choose(panel, null));
}

// Arrows go from pass to pass and from rank to rank, + and - zoom, Home shows all.
function type(panel) {
  const c = panel.canvas;
  const go = (rank, t, later) => {
    const row = (panel.byRank[rank] || []).filter(([bar]) => !bar[8]);
    return later === 0 ? row.find(([bar]) => bar[2] > t) || row.at(-1) : later > 0 ? row.find(([bar]) => bar[1] > t) : row.findLast(([bar]) => bar[1] < t);
  };
  c.addEventListener("keydown", event => {
    const at = panel.hover < 0 ? null : panel.p.bars[panel.hover], middle = at ? (at[1] + at[2]) / 2 : (view.from + view.to) / 2;
    const steps = {
      ArrowRight: () => at ? go(at[0], at[1], 1) : go(0, view.from, 0), ArrowLeft: () => at ? go(at[0], at[1], -1) : go(0, view.from, 0),
      ArrowDown: () => at ? go(at[0] + 1, at[1], 0) : go(0, view.from, 0), ArrowUp: () => at ? go(at[0] - 1, at[1], 0) : go(0, view.from, 0),
    };
    const others = { "+": () => zoom(middle, 0.7), "-": () => zoom(middle, 1 / 0.7), Home: () => move(0, longest), Escape: () => choose(panel, null) };
    if (!(event.key in steps) && !(event.key in others)) return;
    event.preventDefault();
    if (event.key in others) { others[event.key](); return; }
    const found = steps[event.key]();
    if (!found) return;
    const bar = found[0], span = view.to - view.from;
    if (bar[1] < view.from || bar[2] > view.to) move((bar[1] + bar[2] - span) / 2);
    const place = c.getBoundingClientRect();
    choose(panel, found, place.left + LEFT + (bar[2] - view.from) * scaleOf(panel), place.top + (bar[0] + 1) * panel.pitch);
    told.textContent = words(bar);
  });
  c.addEventListener("blur", () => choose(panel, null));
}

// A button in every head of the table sorts its rows: falling first, then rising.
function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    let falling = true;
    button.type = "button"; button.className = "number"; button.textContent = head.textContent;
    const value = row => row.cells[place].textContent, number = row => Number(value(row));
    button.addEventListener("click", () => {
      const rows = [...body.rows], sign = falling ? -1 : 1;
      const numeric = rows.every(row => !Number.isNaN(number(row)));
      rows.sort((a, b) => sign * (numeric ? number(a) - number(b) : value(a).localeCompare(value(b))));
      body.replaceChildren(...rows);
      for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      falling = !falling;
    });
    head.replaceChildren(button);
  });
}

document.querySelectorAll("table").forEach(sortable);
window.addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
