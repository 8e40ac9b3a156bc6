"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const $ = (id) => document.getElementById(id);
const digits = (value) => value >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3));
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// ---- light and dark -------------------------------------------------------------------------------------------------
const themed = []; // what is drawn again when the colours change
function setTheme(name) { root.dataset.theme = name; themed.forEach((draw) => draw()); }
const dark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = dark.matches ? "dark" : "light";
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

// ---- tables ---------------------------------------------------------------------------------------------------------
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => {
    const sort = () => {
      const up = head.getAttribute("aria-sort") === "descending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.value;
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

// ---- systems that are switched off, in every picture at once
const off = new Set();
function withoutOff(trace) { // null where all of it is off
  if (off.has(trace.name)) return null;
  const bySystem = trace.orientation === "h" || trace.mode === "text" || trace.mode === "markers";
  if (!bySystem || !Array.isArray(trace.y)) return trace;
  const kept = trace.y.map((_, i) => i).filter((i) => !off.has(String(trace.y[i]).replace(/, the paper's .*/, "")));
  const pick = (value) => Array.isArray(value) && value.length === trace.y.length ? kept.map((i) => value[i])
    : value && typeof value === "object" && !Array.isArray(value) ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, pick(one)])) : value;
  return kept.length === trace.y.length ? trace : Object.fromEntries(Object.entries(trace).map(([key, one]) => [key, pick(one)]));
}
function toggle(row) {
  const name = row.dataset.system;
  if (!off.delete(name)) off.add(name);
  row.classList.toggle("off", off.has(name));
  row.setAttribute("aria-pressed", !off.has(name));
  themed.forEach((draw) => draw());
}
for (const row of document.querySelectorAll("tr[data-system]")) {
  row.addEventListener("click", () => toggle(row));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(row); } });
}

// ---- charts: drawn when they come into sight ------------------------------------------------------------------------
function colours(layout) {
  const line = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line") };
  const mine = { uirevision: "kept", ...layout, font: { ...layout.font, color: css("--text") } };
  for (const key of Object.keys(layout)) if (/^[xy]axis/.test(key)) mine[key] = { ...layout[key], ...line };
  return mine;
}
const NARROW = matchMedia("(max-width: 640px)");
function plot(div, figure) {
  const layout = colours(figure.layout);
  if (NARROW.matches) { // long names beside bars leave no room for them: shorten
    layout.margin = { ...layout.margin, r: 20 };
    layout.font = { ...layout.font, size: 11 };
  }
  const night = root.dataset.theme === "dark"; // black lines and bars turn white there
  const shown = JSON.parse(JSON.stringify(figure.data.map(withoutOff).filter(Boolean)).replaceAll('"#222222"', night ? '"#e8e8ea"' : '"#222222"').replaceAll('"#e4e4e4"', night ? '"#3a3f46"' : '"#e4e4e4"'));
  Plotly.react(div, shown, layout, { responsive: true, displayModeBar: false });
}
function chart(div) {
  if (div.dataset.drawn) return;
  div.dataset.drawn = "yes";
  const draw = () => plot(div, data.charts[div.dataset.chart]);
  draw();
  themed.push(draw);
}
const charts = document.querySelectorAll("[data-chart]");
const seen = new IntersectionObserver((entries) => entries.forEach((entry) => { if (entry.isIntersecting) chart(entry.target); }), { rootMargin: "600px" });
charts.forEach((div) => seen.observe(div));
addEventListener("beforeprint", () => { charts.forEach(chart); document.querySelectorAll(".meanings").forEach((one) => { one.open = true; }); });

// ---- the memory map -------------------------------------------------------------------------------------------------
const HUES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#7F3C8D", "#11A579", "#E73F74"];
const NOBODY = 0xffff;
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}
const tip = document.createElement("div");
tip.id = "tip"; tip.hidden = true; document.body.append(tip);
function say(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - 260) + "px";
  tip.style.top = event.clientY + 14 + "px";
}
const inBytes = (bytes) => bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} KB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
class PoolMap {
  constructor(system) {
    Object.assign(this, system);
    this.moments = this.times.length - 1;
    this.box = document.createElement("div");
    this.box.className = "map";
    this.box.innerHTML = "<h3></h3><canvas></canvas><div class=line></div><span class=done></span>";
    this.box.querySelector("h3").textContent = this.label;
    [this.canvas, this.line, this.done] = this.box.querySelectorAll("canvas, .line, .done");
    this.done.textContent = `done after ${digits(this.times[this.moments])} s`;
    $("maps").append(this.box);
    this.canvas.addEventListener("mousemove", (event) => say(event, this.at(event)));
    this.canvas.addEventListener("mouseleave", (event) => say(event, ""));
    this.canvas.addEventListener("click", (event) => { $("which").value = this.index; setTime(event.offsetX / this.canvas.clientWidth * end); });
  }
  async load() {
    this.kind = new Uint8Array(await unpack(this.kinds));
    this.request = new Uint16Array(await unpack(this.requests));
  }
  moment(time) { // the last one that has begun
    let low = 0, high = this.moments - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.times[middle] <= time) low = middle; else high = middle - 1; }
    return low;
  }
  over(time) { return time > this.times[this.moments]; }
  colour(moment, cell) {
    const at = moment * this.cells + cell, kind = this.kind[at], who = this.request[at];
    if (who === NOBODY || $("colour").value === "kind") return palette[kind];
    const hue = hues[who % hues.length];
    return kind === 0 ? hue : hue.map((part, i) => part + (background[i] - part) * .62);
  }
  draw() {
    const width = Math.max(this.canvas.clientWidth, 300), height = this.cells;
    this.canvas.width = width; this.canvas.height = height;
    const context = this.canvas.getContext("2d"), image = context.createImageData(width, height);
    let before = -1, x0 = 0;
    for (let x = 0; x < width; x++) {
      const time = (x + .5) / width * end;
      if (this.over(time)) break;
      const moment = this.moment(time);
      for (let cell = 0; cell < height; cell++) {
        const to = ((height - 1 - cell) * width + x) * 4;
        if (moment === before) { const from = to - 4; for (let i = 0; i < 4; i++) image.data[to + i] = image.data[from + i]; continue; }
        const colour = this.colour(moment, cell);
        image.data[to] = colour[0]; image.data[to + 1] = colour[1]; image.data[to + 2] = colour[2]; image.data[to + 3] = 255;
      }
      before = moment;
    }
    context.putImageData(image, 0, 0);
    this.done.style.left = `min(calc(${100 * this.times[this.moments] / end}% + 6px), calc(100% - 9em))`;
  }
  text(moment, cell) {
    const at = moment * this.cells + cell, who = this.request[at];
    const first = cell * this.slots, end = (cell + 1) * this.slots;
    const slots = this.bytes ? `${inBytes(first)} – ${inBytes(end)}` : `slots ${Math.round(first)} – ${Math.round(end) - 1}`;
    return `${slots}: ${who === NOBODY ? "" : `request ${who}, `}${data.kinds[this.kind[at]][1]}`;
  }
  at(event) {
    const time = event.offsetX / this.canvas.clientWidth * end;
    const cell = Math.min(this.cells - 1, Math.floor((1 - event.offsetY / this.canvas.clientHeight) * this.cells));
    if (this.over(time)) return `${this.label}: done after ${digits(this.times[this.moments])} s`;
    return `${this.label}, ${digits(time)} s. ${this.text(this.moment(time), Math.max(cell, 0))}`;
  }
  grid(time) { // the pool at one moment, cell by cell, row by row from the top left
    const canvas = $("moment").querySelector("canvas"), width = canvas.parentElement.clientWidth;
    const size = Math.max(5, Math.floor(width / Math.min(64, this.cells)));
    const columns = Math.min(Math.floor(width / size), this.cells), rows = Math.ceil(this.cells / columns); // as many as the page is wide
    canvas.width = columns * size; canvas.height = rows * size;
    const context = canvas.getContext("2d"), moment = this.moment(time), counts = new Map();
    for (let cell = 0; cell < this.cells; cell++) {
      context.fillStyle = this.over(time) ? `rgb(${palette[8]})` : `rgb(${this.colour(moment, cell)})`;
      context.fillRect(cell % columns * size, Math.floor(cell / columns) * size, size - 1, size - 1);
      const kind = this.over(time) ? 8 : this.kind[moment * this.cells + cell];
      counts.set(kind, (counts.get(kind) || 0) + 1);
    }
    const said = [...counts].filter(([, n]) => n >= this.cells / 200).sort((a, b) => b[1] - a[1]).map(([kind, n]) => `${(100 * n / this.cells).toFixed(0)} % ${data.kinds[kind][1]}`);
    $("moment-text").textContent = `${this.label} at ${digits(time)} s, a cell is ${this.bytes ? inBytes(this.slots) : `${this.slots.toPrecision(3)} slots`}: ${said.join("; ")}.`;
    canvas.onmousemove = (event) => {
      const cell = Math.floor(event.offsetY / canvas.clientHeight * rows) * columns + Math.floor(event.offsetX / canvas.clientWidth * columns);
      say(event, cell < this.cells && !this.over(time) ? this.text(moment, cell) : "");
    };
    canvas.onmouseleave = (event) => say(event, "");
  }
}
let maps = [], end = 0, palette = [], hues = [], background = [];
function paint() {
  background = rgb(css("--bg"));
  palette = data.kinds.map(([, , light, night]) => rgb(root.dataset.theme === "dark" ? night : light));
  hues = HUES.map(rgb);
  $("map-legend").innerHTML = "";
  const shown = $("colour").value === "kind" ? data.kinds.map(([, text], i) => [text, palette[i]]).filter((_, i) => data.kinds_seen.includes(i))
    : [["full colour: holds a token", hues[0]], ["pale: held, empty", hues[0].map((part, i) => part + (background[i] - part) * .62)], ["free", palette[8]]];
  for (const [text, colour] of shown) {
    const span = document.createElement("span");
    span.innerHTML = `<i style="background:rgb(${colour})"></i>`; span.append(text);
    $("map-legend").append(span);
  }
  maps.forEach((map) => { map.box.hidden = off.has(map.label); if (!map.box.hidden) map.draw(); });
  setTime(now);
}
let now = 0;
function setTime(time) {
  now = Math.min(Math.max(time, 0), end);
  $("when").value = 1000 * now / end;
  $("clock").textContent = digits(now) + " s";
  maps.forEach((map) => { map.line.style.left = 100 * now / end + "%"; });
  const chosen = maps[+$("which").value];
  if (chosen) chosen.grid(now);
}
async function startMaps() {
  if (!data.maps.length) return;
  end = Math.max(...data.maps.map((map) => map.times[map.times.length - 1]));
  maps = data.maps.map((system, index) => new PoolMap({ ...system, index }));
  await Promise.all(maps.map((map) => map.load()));
  maps.forEach((map, i) => $("which").add(new Option(map.label, i)));
  $("which").value = maps.length - 1;
  now = Math.min(...maps.map((map) => map.times[map.moments])) * .6; // everybody is at work
  const rough = end / 7, power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  for (let i = 0; i * step <= end; i++) {
    const tick = document.createElement("span");
    tick.textContent = digits(i * step) + (i ? "" : " s");
    tick.style.left = 100 * i * step / end + "%";
    $("axis").append(tick);
  }
  paint();
  themed.push(paint);
  $("colour").addEventListener("change", paint);
  $("which").addEventListener("change", () => setTime(now));
  $("when").addEventListener("input", () => setTime($("when").value / 1000 * end));
  addEventListener("resize", paint);
  let playing = null;
  $("play").addEventListener("click", () => {
    if (playing) { cancelAnimationFrame(playing); playing = null; $("play").textContent = "▶ play"; return; }
    $("play").textContent = "❚❚ pause";
    if (now >= end) setTime(0);
    let before = performance.now();
    const frame = (t) => {
      setTime(now + (t - before) / 12000 * end); before = t;
      if (now < end) playing = requestAnimationFrame(frame); else { playing = null; $("play").textContent = "▶ play"; }
    };
    playing = requestAnimationFrame(frame);
  });
  root.dataset.maps = "drawn";
}

// ---- the batch, request by request ----------------------------------------------------------------------------------
function drawLanes() {
  const system = data.lanes[+$("lanes-of").value], traces = {};
  for (const [phase, [text, colour]] of Object.entries(data.phases)) traces[phase] = { type: "bar", orientation: "h", name: text, base: [], x: [], y: [], text: [], marker: { color: colour }, hovertemplate: "%{text}<br>%{base:.4g} + %{x:.3g} s: " + text + "<extra></extra>", textposition: "none" };
  for (const [row, phase, start, stop] of system.spans) {
    const trace = traces[phase];
    trace.base.push(start); trace.x.push(stop - start); trace.y.push(row); trace.text.push(system.facts[row]);
  }
  const rows = system.requests.length;
  const layout = { barmode: "overlay", bargap: .15, height: Math.min(900, 200 + 9 * rows), margin: { l: 50, r: 20, t: 40, b: 45 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: "system-ui, sans-serif", size: 13 },
    legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0 }, xaxis: { title: { text: "time, s" }, rangemode: "nonnegative" },
    yaxis: { autorange: "reversed", title: { text: "requests" }, showticklabels: false } };
  plot($("lanes-chart"), { data: Object.values(traces).filter((trace) => trace.x.length), layout });
  $("lanes-note").textContent = system.of > rows ? `The first ${rows} of ${system.of.toLocaleString()} requests.` : "";
}
if (data.lanes.length) {
  data.lanes.forEach((system, i) => $("lanes-of").add(new Option(system.label, i)));
  $("lanes-of").value = data.lanes.length - 1;
  const first = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    first.disconnect(); drawLanes(); themed.push(drawLanes);
  }, { rootMargin: "600px" });
  first.observe($("lanes-chart"));
  addEventListener("beforeprint", drawLanes);
  $("lanes-of").addEventListener("change", drawLanes);
}
startMaps();
