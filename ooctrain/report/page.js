// The script of the page of a step (`ooctrain report RUN --html`): plain JavaScript, no library.
//
// 1 Data     columns of numbers become runs, which answer questions: who holds memory at a time?
// 2 State    what is shown: the instruction at the cursor, a stretch of time, a chosen name.
// 3 Drawing  lanes, memory, minimap and arena on canvases, in the colours of the style sheet.
// 4 Panels   the same in words, for the instruction at the cursor.
// 5 Input    buttons, keys, pointer, search. Everything goes through `go`, `look` and `choose`.
//
// Text enters the page as text, never as HTML, since names come from networks.

// ---- 1 Data -------------------------------------------------------------------------------------

const DATA = JSON.parse(document.getElementById("step-data").textContent);
const LANES = DATA.lanes;
const MOST_HOLDERS = 12, MOST_FOUND = 12, MOST_LINES = 100, AROUND = 7;

const summed = (steps) => { let sum = 0; return steps.map((step) => (sum += step)); };
const largest = (values) => values.reduce((a, b) => Math.max(a, b), 0);
const added = (starts, lengths) => starts.map((start, i) => start + lengths[i]);

/** A step: its list, its times in ns, and who held what. */
class Run {
  constructor(raw, letter) {
    Object.assign(this, raw);
    this.prefix = DATA.runs.length > 1 ? `${letter} ` : "";
    this.size = raw.name.length;
    this.start = summed(raw.start);
    this.end = added(this.start, raw.length);
    this.ledger = summed(raw.ledger);
    this.host = summed(raw.host);
    this.hold = { ...raw.hold, from: summed(raw.hold.from) };
    this.hold.until = added(this.hold.from, raw.hold.length);
    this.reserved = largest(added(raw.hold.at, raw.hold.size));
    this.lane = { C: [], D: [], H: [] };
    for (let i = 0; i < this.size; i++) this.lane[raw.lanes[i]]?.push(i);
    for (const own of Object.values(this.lane)) own.sort((a, b) => this.start[a] - this.start[b]);
    this.stack = stackOf(this);
  }

  text(i) {
    const name = this.names[this.name[i]], verb = this.verbs[this.verb[i]];
    return this.odd[i] ?? verb + (name ? ` ${name}` : "") + this.rests[this.rest[i]];
  }

  /** What line i waits for, the stream's own order last: {index, why, giver, until}. */
  waits(i) {
    const found = [], flat = this.needs[i];
    for (let k = 0; k < flat.length; k += 3) {
      const index = i - flat[k], giver = flat[k + 2] ? i - flat[k + 2] : -1;
      found.push({ index, why: DATA.whys[flat[k + 1]], giver, until: this.end[index] });
    }
    const before = this.before(i), latest = Math.max(0, ...found.map((wait) => wait.until));
    if (before >= 0) found.push({ index: before, why: "order", giver: -1, until: this.end[before] });
    // On a shared link one direction waits for the other.
    const other = this.lane[{ D: "H", H: "D" }[this.lanes[i]]] ?? [];
    const busy = other.find((k) => this.end[k] === this.start[i] && latest < this.end[k]);
    if (busy !== undefined) found.push({ index: busy, why: "link", giver: -1, until: this.end[busy] });
    return found;
  }

  /** The line before i on its stream, or -1. */
  before(i) {
    const own = this.lane[this.lanes[i]] ?? [];
    return own[own.indexOf(i) - 1] ?? -1;
  }

  /** Numbers of the holdings at a time, the largest first. */
  holders(time) {
    const { from, until, size } = this.hold, found = [];
    for (let k = 0; k < from.length; k++) if (from[k] <= time && time < until[k]) found.push(k);
    return found.sort((a, b) => size[b] - size[a]);
  }

  /** The lines that concern a name, in list order: {i, role}. */
  life(name) {
    const found = [], roles = new Map();
    for (const [call, [reads, writes]] of Object.entries(this.uses)) {
      const role = [reads.includes(name) && "reads it", writes.includes(name) && "writes it"];
      if (role.some(Boolean)) roles.set(Number(call), role.filter(Boolean).join(", "));
    }
    for (let i = 0; i < this.size; i++) {
      const role = this.lanes[i] === "C" && roles.get(this.name[i]);
      if (role || this.name[i] === name) found.push({ i, role: role || "" });
    }
    return found;
  }
}

/** Bytes of each group from each time on, and their sums; without holdings the curve alone. */
function stackOf({ hold, curve }) {
  const { from, until, size, group } = hold;
  const times = [], sums = [], groups = DATA.groups.map(() => []);
  const changes = from.flatMap((at, k) => [[at, +group[k], size[k]], [until[k], +group[k], -size[k]]]);
  if (!from.length) curve.forEach(([at, held], k) => changes.push([at, 0, held - (k ? curve[k - 1][1] : 0)]));
  changes.sort((a, b) => a[0] - b[0]);
  const held = DATA.groups.map(() => 0);
  changes.forEach(([at, own, change], k) => {
    held[own] += change;
    if (changes[k + 1]?.[0] === at) return;
    times.push(at);
    held.forEach((now, g) => groups[g].push(now));
    sums.push(held.reduce((a, b) => a + b));
  });
  return { times, groups, sums, top: largest(sums) };
}

const RUNS = DATA.runs.map((raw, k) => new Run(raw, "AB"[k]));
const [A, B] = RUNS;
const END = largest(DATA.runs.map((raw) => raw.end)) || 1;
const TOP = 1.1 * (largest(RUNS.map((run) => Math.max(run.budget ?? 0, run.stack.top))) || 1);

/** Numbers with 0, 1 or 2 decimals, rounded as Python rounds them. */
const [WHOLE, TENTHS, HUNDREDTHS] = [0, 1, 2].map((minimumFractionDigits) => new Intl.NumberFormat("en", {
  minimumFractionDigits, maximumFractionDigits: minimumFractionDigits, roundingMode: "halfEven", useGrouping: false,
}));

function bytes(size) {
  const k = size < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(size) / 10 + 1e-12));
  const value = size / 1024 ** k;
  const form = k === 0 || value >= 100 ? WHOLE : value < 10 ? HUNDREDTHS : TENTHS;
  return `${form.format(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][k]}`;
}
function time(ns) {
  const us = Math.abs(ns / 1000);
  if (us < 1e3) return `${(us >= 10 ? WHOLE : TENTHS).format(ns / 1e3)} us`;
  return us < 1e6 ? `${TENTHS.format(ns / 1e6)} ms` : `${HUNDREDTHS.format(ns / 1e9)} s`;
}

// ---- 2 State ------------------------------------------------------------------------------------

const state = { at: 0, from: 0, to: END, chosen: -1, touched: null };
let waiting = null;

/** Moves the cursor to line i of the list, and shows it. */
function go(i, speak = true) {
  state.at = Math.min(Math.max(0, Math.round(i) || 0), A.size - 1);
  const here = A.start[state.at], half = (state.to - state.from) / 2;
  if (here < state.from || here > state.to) look(here - half, here + half);
  schedule(speak);
}

/** Shows a stretch of time. Nothing glides, so nothing has to stop for those whom motion troubles. */
function look(from, to) {
  const width = Math.min(END, Math.max(to - from, END * 1e-6, 1));
  state.from = Math.min(Math.max(0, from), END - width);
  state.to = state.from + width;
  schedule(false);
}

function zoom(factor, around = A.start[state.at]) {
  const pivot = Math.min(Math.max(around, state.from), state.to);
  look(pivot - (pivot - state.from) / factor, pivot + (state.to - pivot) / factor);
}

function pan(share, shift = (state.to - state.from) * share) {
  look(state.from + shift, state.to + shift);
}

/** Chooses a name (its number in run A; -1: none), whose life is then shown on every lane. */
function choose(name) {
  state.chosen = name;
  state.touched = name < 0 ? null : new Map(A.life(name).map(({ i, role }) => [i, role]));
  showLife();
  schedule(false);
}

function schedule(speak) {  // one drawing for all changes before the next frame
  if (waiting === null) requestAnimationFrame(() => { show(waiting); waiting = null; });
  waiting ||= speak;
}

const [TO_B, TO_A] = DATA.mates ?? [[], []];  // for each line the same one of the other run, or -1

/** The same line in the other run, else that of the nearest line before. */
function mate(i, mates = TO_B) {
  while (i >= 0 && mates[i] < 0) i--;
  return mates[i] ?? 0;
}

// ---- 3 Drawing ----------------------------------------------------------------------------------

const find = (id) => document.getElementById(id);
const plot = find("plot"), map = find("map"), arena = find("arena");
const ROW = 20, GAP = 5, MEMORY = 200, AXIS = 24, MAP = 44, STRIP = 34;
let ink = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`);
  const names = ["text", "faint", "line", "empty", "ground", "limit", "mark", "net", "out", "in"];
  ink = Object.fromEntries(names.map((name) => [name, read(name)]));
  Object.assign(ink, { phases: DATA.phases.map(read), groups: DATA.groups.map(read) });
}

/** A canvas fitted to its width and to the pixels of the screen. */
function fitted(canvas, height, width = canvas.clientWidth) {
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  canvas.style.height = `${height}px`;
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = "12px system-ui, sans-serif";
  return { g, width };
}

const drawings = {};
/** A drawing by name, made again only when its size, its colours or `key` have changed. */
function kept(name, height, width, key, draw) {
  const own = (drawings[name] ??= { canvas: document.createElement("canvas") });
  const known = [width, devicePixelRatio, ink.text, key].join();
  if (own.known !== known) draw(fitted(own.canvas, height, width).g);
  own.known = known;
  return own.canvas;
}

/** The rows of the plot, from top to bottom. */
const ROWS = RUNS.flatMap((run) => [
  ...[..."CDH"].map((stream) => ({ run, stream, label: run.prefix + LANES[stream], draw: lane })),
  ...(run.messages.length ? [{ run, label: run.prefix + LANES.N, draw: network }] : []),
  ...(run.predicted ? [{ run, label: `${run.prefix}predicted`, draw: foretold }] : []),
]).concat({ run: A, label: "chosen", draw: presence });
const HEIGHT = ROWS.length * (ROW + GAP) + 14 + MEMORY + AXIS;
const left = (width) => (width < 500 ? 66 : 84);

/** Draws boxes [start, end) of one row; boxes too small to be seen beside each other are left out. */
function boxes({ g, x, low, high }, y, order, start, end, colourOf, height = ROW) {
  let first = 0, last = order.length;
  while (first < last) {  // the first box that ends within the view
    const middle = (first + last) >> 1;
    if (end[order[middle]] < low) first = middle + 1; else last = middle;
  }
  let drawn = -9;
  for (let k = first; k < order.length && start[order[k]] <= high; k++) {
    const i = order[k], from = x(Math.max(start[i], low)), width = x(Math.min(end[i], high)) - from;
    if (width < 0.5 && from - drawn < 0.5) continue;
    drawn = from;
    g.fillStyle = colourOf(i);
    g.fillRect(from, y, Math.max(width - (width > 3 ? 0.6 : 0), 0.6), height);
  }
}

/** The colour of each line of a stream. */
function hue(run, stream) {
  return stream === "C" ? (i) => ink.phases[run.phase[i]] : () => (stream === "D" ? ink.out : ink.in);
}

function lane(box, y, { run, stream }) {
  const own = run.lane[stream], touched = run === A ? state.touched : null;
  box.g.globalAlpha = touched ? 0.3 : 1;
  boxes(box, y, own, run.start, run.end, hue(run, stream));
  box.g.globalAlpha = 1;
  if (touched) boxes(box, y, own.filter((i) => touched.has(i)), run.start, run.end, hue(run, stream));
}

function network(box, y, { run: { messages } }) {
  const [, from, until] = [0, 1, 2].map((part) => messages.map((message) => message[part]));
  boxes(box, y, [...messages.keys()], from, until, () => ink.net);
}

/** When it should have run: the calls, and the copies below them, each half as high. */
function foretold(box, y, { run }) {
  const { start, end } = run.predicted;
  for (const stream of "CDH") {
    const own = run.lane[stream].filter((i) => start[i] >= 0);
    boxes(box, stream === "C" ? y : y + ROW / 2, own, start, end, hue(run, stream), ROW / 2 - 1);
  }
}

/** When the chosen name was on the device. */
function presence(box, y) {
  const { name, from, until, group } = A.hold;
  const own = [...from.keys()].filter((k) => name[k] === state.chosen && until[k] >= box.low);
  boxes(box, y + 3, own, from, until, (k) => ink.groups[group[k]], ROW - 6);
}

/** For each pixel column its x, and the place in the stack of the fullest moment within it. */
function* columns({ low, high, margin, width }, { times, sums }) {
  let k = 0;
  while (k + 1 < times.length && times[k + 1] <= low) k++;
  for (let column = 0; column < width - margin; column++) {
    const until = low + ((high - low) * (column + 1)) / (width - margin);
    let best = k;
    for (; k < times.length && times[k] < until; k++) if (sums[k] > sums[best]) best = k;
    k = Math.max(0, k - 1);
    yield [margin + column, best];
  }
}

/** Memory by group, each on top of those before it. */
function memory(box, bottom, height) {
  for (const [x, k] of columns(box, A.stack)) {
    let floor = bottom;
    A.stack.groups.forEach((group, n) => {
      const own = (group[k] / TOP) * height;
      box.g.fillStyle = ink.groups[n];
      box.g.fillRect(x, floor - own, 1.02, own);
      floor -= own;
    });
  }
}

/** A dashed line through points. */
function dashed(g, colour, points) {
  g.strokeStyle = colour;
  g.setLineDash([6, 4]);
  g.beginPath();
  for (const [x, y] of points) g.lineTo(x, y);
  g.stroke();
  g.setLineDash([]);
}

function ticks(high, most) {
  const rough = high / most, unit = 10 ** Math.floor(Math.log10(rough || 1));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  return Array.from({ length: Math.floor(high / step) + 1 }, (_, k) => k * step);
}

/** All but the cursor. */
function drawGround(g, width) {
  const margin = left(width), { from: low, to: high } = state;
  const x = (t) => margin + ((t - low) / (high - low)) * (width - margin);
  const box = { g, x, low, high, margin, width };
  let y = 0;
  for (const row of ROWS) {
    g.fillStyle = ink.empty;
    g.fillRect(margin, y, width - margin, ROW);
    g.fillStyle = ink.faint;
    g.fillText(row.label, 0, y + 14, margin - 6);
    row.draw(box, y, row);
    y += ROW + GAP;
  }
  const bottom = y + 14 + MEMORY;
  const unit = 1024 ** Math.floor(Math.log2(TOP) / 10);
  for (const tick of ticks(TOP / unit, 5)) {
    const at = bottom - ((tick * unit) / TOP) * MEMORY;
    g.fillStyle = ink.line;
    g.fillRect(margin, at, width - margin, 1);
    g.fillStyle = ink.faint;
    g.fillText(tick ? bytes(tick * unit) : "0", 0, at + 4, margin - 6);
  }
  memory(box, bottom, MEMORY);
  const height = (size) => bottom - (size / TOP) * MEMORY;
  if (B) dashed(g, ink.text, [...columns(box, B.stack)].map(([px, k]) => [px, height(B.stack.sums[k])]));
  if (A.budget) {
    dashed(g, ink.limit, [[margin, height(A.budget)], [width, height(A.budget)]]);
    const label = `budget ${bytes(A.budget)}`;
    g.fillStyle = ink.limit;
    g.fillText(label, width - g.measureText(label).width, height(A.budget) - 4);
  }
  g.fillStyle = ink.faint;
  const every = ticks(high - low, width < 500 ? 3 : 7)[1] || 1;
  for (let tick = Math.ceil(low / every) * every; tick <= high; tick += every) {
    const label = tick ? time(tick) : "0", wide = g.measureText(label).width;
    g.fillRect(x(tick), bottom, 1, 4);
    g.fillText(label, Math.min(Math.max(x(tick) - wide / 2, margin), width - wide), bottom + 17);
  }
}

/** The ground, and on it the cursor with the instruction under it. */
function drawPlot() {
  const { g, width } = fitted(plot, HEIGHT), margin = left(width);
  const key = [state.from, state.to, state.chosen];
  g.drawImage(kept("plot", HEIGHT, width, key, (inner) => drawGround(inner, width)), 0, 0, width, HEIGHT);
  const x = (t) => margin + ((t - state.from) / (state.to - state.from)) * (width - margin);
  RUNS.forEach((run, k) => {
    const i = k ? mate(state.at) : state.at, at = x(run.start[i]);
    if (at < margin || at > width) return;
    g.fillStyle = g.strokeStyle = ink.mark;
    if (!k) g.fillRect(at - 0.75, 0, 1.5, HEIGHT - AXIS);
    const row = ROWS.findIndex((one) => one.run === run && one.stream === run.lanes[i]);
    if (row < 0) return;  // it runs nowhere
    g.lineWidth = 2;
    g.strokeRect(at, row * (ROW + GAP) - 1, Math.max(2, Math.min(x(run.end[i]), width) - at), ROW + 2);
  });
}

/** The whole step, small, and the stretch that the plot shows. */
function drawMap() {
  const { g, width } = fitted(map, MAP), margin = left(width);
  const x = (t) => margin + (t / END) * (width - margin);
  g.drawImage(kept("map", MAP, width, "", (inner) => {
    const box = { g: inner, x, low: 0, high: END, margin, width };
    memory(box, MAP, MAP);
    boxes(box, 0, A.lane.C, A.start, A.end, hue(A, "C"), 8);
  }), 0, 0, width, MAP);
  g.fillStyle = ink.ground;
  g.globalAlpha = 0.72;
  g.fillRect(margin, 0, x(state.from) - margin, MAP);
  g.fillRect(x(state.to), 0, width - x(state.to), MAP);
  g.globalAlpha = 1;
  g.fillStyle = g.strokeStyle = ink.mark;
  g.strokeRect(x(state.from) + 0.5, 0.5, Math.max(2, x(state.to) - x(state.from) - 1), MAP - 1);
  g.fillRect(x(A.start[state.at]), 0, 1, MAP);
}

/** The arena at the cursor: each holding at its address. */
function drawArena(held) {
  const { g, width } = fitted(arena, STRIP), { at, size, name, group } = A.hold;
  const whole = Math.max(A.budget ?? 0, A.reserved) || 1, x = (address) => (address / whole) * width;
  g.fillStyle = ink.empty;
  g.fillRect(0, 0, width, STRIP);
  for (const k of held) {
    g.fillStyle = name[k] === state.chosen ? ink.mark : ink.groups[group[k]];
    g.fillRect(x(at[k]), 0, Math.max(0.6, x(size[k]) - 0.6), STRIP);
  }
  if (A.budget) {
    g.fillStyle = ink.limit;
    g.fillRect(Math.min(x(A.budget), width - 1.5), 0, 1.5, STRIP);
  }
}

// ---- 4 Panels -----------------------------------------------------------------------------------

function el(tag, content = "", more = {}) {
  const made = document.createElement(tag);
  made.append(...[content].flat());
  return Object.assign(made, more);
}
const fill = (id, ...content) => find(id).replaceChildren(...content);
const link = (label, act) => el("button", label, { className: "jump", onclick: act });
const jump = (i) => link(`${i} ${A.text(i)}`, () => go(i));
const pick = (name) => link(A.names[name], () => choose(name));
const percent = (part, whole) => `${WHOLE.format((100 * part) / whole)} %`;
function show(loud) {
  if (!plot.clientWidth) return;  // on paper
  const i = state.at, held = A.holders(A.start[i]);
  find("scrub").value = find("number").value = i;
  find("scrub").setAttribute("aria-valuetext", `${i}: ${A.text(i)}`);
  for (const draw of [drawPlot, drawMap, showLine, showList]) draw(i);
  for (const draw of [drawArena, showHolders]) draw(held);
  if (!loud) return;
  find("said").textContent = `Instruction ${i}: ${A.text(i)}, at ${time(A.start[i])}, ${bytes(A.ledger[i])} held`;
}

function showLine(i) {
  const before = i ? A.ledger[i - 1] : A.ledger[0] - A.claim[0], released = before + A.claim[i] - A.ledger[i];
  const runs = Boolean(LANES[A.lanes[i]]), from = A.predicted?.start[i] ?? -1, until = A.predicted?.end[i];
  const there = TO_B[i] ?? -1;
  const stretch = (from, until) => `${time(from)} to ${time(until)}, ${time(until - from)}`;
  const told = {
    when: runs ? stretch(A.start[i], A.end[i]) : time(A.start[i]),
    predicted: from >= 0 && stretch(from, until),
    claims: A.claim[i] > 0 && bytes(A.claim[i]),
    "gives back": released > 0 && bytes(released) + (runs ? ", of the run before as it ends" : ""),
    ledger: `${bytes(A.ledger[i])} after it` + (A.budget ? `, ${percent(A.ledger[i], A.budget)} of the budget` : ""),
    "host ledger": A.complete && `${bytes(A.host[i])} after it`,
    "in run B": B && (there < 0 ? "not there" : `${there}, at ${time(B.start[there])}`),
  };
  find("line-title").textContent = `${i} ${A.text(i)}`;
  fill("line", ...Object.entries(told).flatMap(([name, value]) => (value ? [el("dt", name), el("dd", value)] : [])));
  const waits = A.waits(i), latest = largest(waits.map((wait) => wait.until)), last = A.before(i);
  const idle = runs ? A.start[i] - (A.end[last] ?? 0) : 0;
  find("idle").textContent = idleWords(i, idle, A.start[i] - latest);
  fill("waits", ...waits.map(({ index, why, giver, until: done }) => el("li", [
    jump(index), `: ${DATA.words[why]}`, ...(giver >= 0 ? [", by ", jump(giver)] : []), `; done at ${time(done)}`,
    ...(done === latest && idle > 0 ? [el("strong", ", the last")] : []),
  ])));
}

function idleWords(i, idle, late) {
  const stream = LANES[A.lanes[i]];
  if (!A.complete) return "This record has what ran, without the list: what waits for what is not known.";
  if (!stream) return "It runs nowhere: it takes effect when all that it waits for is done.";
  if (idle <= 0) return A.start[i] > 0 ? "It does not wait: its stream is busy till then." : "The step begins with it.";
  const behind = late > 0 ? `, ${time(late)} of that after all that it waits for is done` : "";
  return `The ${stream} stream stands idle for ${time(idle)} before it${behind}.`;
}

function showList(i) {
  const inside = document.activeElement?.closest("#lists") !== null;
  fill("list", ...around(A, i, (k) => TO_B[k] < 0, (k) => k));
  if (B) fill("list-b", ...around(B, mate(i), (k) => TO_A[k] < 0, (k) => mate(k, TO_A)));
  if (inside) find("list").querySelector("[aria-current] button")?.focus();
}

/** The lines around one; `lonely`: those that the other run has not. */
function around(run, at, lonely, target) {
  const found = [];
  for (let k = Math.max(0, at - AROUND); k <= Math.min(run.size - 1, at + AROUND); k++) {
    const label = [el("span", `${k}`, { className: "place" }), " ", run.text(k)];
    const button = el("button", label, { tabIndex: k === at ? 0 : -1, onclick: () => go(target(k)) });
    const item = el("li", button, lonely(k) ? { className: "lonely", title: "in one run only" } : {});
    if (k === at) item.setAttribute("aria-current", "true");
    found.push(item);
  }
  return found;
}

function showHolders(held) {
  const { name, group, size, at } = A.hold, sum = (some) => some.reduce((total, k) => total + size[k], 0);
  const whole = sum(held), rest = held.slice(MOST_HOLDERS);
  const dot = (k) => el("i", "", { style: `background:var(--${DATA.groups[group[k]]})` });
  const line = (label, kind, some, place) =>
    el("tr", [label, kind, bytes(some), percent(some, whole), place].map((cell) => el("td", cell)));
  fill("holders", ...held.slice(0, MOST_HOLDERS).map((k) =>
    line([dot(k), pick(name[k])], DATA.groups[group[k]], size[k], bytes(at[k]))));
  if (rest.length) find("holders").append(line(`${rest.length} others`, "", sum(rest), ""));
  find("held").textContent = name.length
    ? `${bytes(whole)} in ${held.length} pieces at ${time(A.start[state.at])}, when instruction ${state.at} begins`
    : "This record does not say who held the memory.";
}

function showLife() {
  const name = state.chosen, { from, until, name: names } = A.hold;
  find("forget").hidden = name < 0;
  find("life-said").textContent = "Choose a name: search, or click on one.";
  if (name < 0) return fill("life");
  const stays = [...names.keys()].filter((k) => names[k] === name).map((k) => `${time(from[k])} to ${time(until[k])}`);
  const more = stays.length > MOST_HOLDERS ? ` and ${stays.length - MOST_HOLDERS} times more` : "";
  find("life-said").textContent = `${A.names[name]}: `
    + (stays.length ? `on the device ${stays.slice(0, MOST_HOLDERS).join(", ")}${more}` : "holds no memory");
  const lines = [...state.touched].map(([i, role]) => el("li", [jump(i), ` ${role}, ${time(A.start[i])}`]));
  const hidden = lines.length - MOST_LINES;
  fill("life", ...lines.slice(0, MOST_LINES), ...(hidden > 0 ? [el("li", `and ${hidden} more`)] : []));
}

function search(words) {
  const wanted = words.trim().toLowerCase();
  const names = [...A.names.keys()].filter((k) => wanted && A.names[k].toLowerCase().includes(wanted));
  names.sort((a, b) => A.names[a].length - A.names[b].length);
  const take = (k) => () => { choose(k); go([...state.touched.keys()][0] ?? state.at); search(""); };
  fill("found", ...names.slice(0, MOST_FOUND).map((k) => el("li", link(A.names[k], take(k)))));
  find("found-said").textContent = !wanted ? "" : names.length ? `${names.length} found` : "nothing has this name";
}

// ---- 5 Input ------------------------------------------------------------------------------------

/** The line nearest to a point of the plot. */
function under(event) {
  const margin = left(plot.clientWidth), { offsetX, offsetY } = event;
  const t = state.from + ((offsetX - margin) / (plot.clientWidth - margin)) * (state.to - state.from);
  const { run = A, stream } = ROWS[Math.floor(offsetY / (ROW + GAP))] ?? {};
  let best = -1, near = Infinity;
  for (const i of stream ? run.lane[stream] : [...A.lane.C, ...A.lane.D, ...A.lane.H]) {
    const away = Math.max(run.start[i] - t, t - run.end[i], 0);
    if (away < near) [best, near] = [i, away];
  }
  return { run, i: best, t };
}

let drag = null;
plot.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, from: state.from, to: state.to, moved: false };
  plot.setPointerCapture(event.pointerId);
});
plot.addEventListener("pointermove", (event) => {
  if (!drag) { const { run, i } = under(event); plot.title = i < 0 ? "" : run.text(i); return; }
  const shift = ((drag.x - event.clientX) / plot.clientWidth) * (drag.to - drag.from);
  drag.moved ||= Math.abs(drag.x - event.clientX) > 4;
  if (drag.moved) look(drag.from + shift, drag.to + shift);
});
plot.addEventListener("pointerup", (event) => {
  const { run, i } = under(event);
  if (drag && !drag.moved && i >= 0) go(run === A ? i : mate(i, TO_A));
  drag = null;
});
plot.addEventListener("wheel", (event) => {
  event.preventDefault();
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / plot.clientWidth);
  else zoom(Math.exp(-event.deltaY / 300), under(event).t);
}, { passive: false });
map.addEventListener("pointerdown", (event) => {
  const margin = left(map.clientWidth), t = ((event.offsetX - margin) / (map.clientWidth - margin)) * END;
  look(t - (state.to - state.from) / 2, t + (state.to - state.from) / 2);
});

const KEYS = {
  ArrowLeft: () => go(state.at - 1), ArrowRight: () => go(state.at + 1), Home: () => go(0),
  ArrowUp: () => go(state.at - 1), ArrowDown: () => go(state.at + 1), End: () => go(A.size - 1),
  PageUp: () => go(state.at - 20), PageDown: () => go(state.at + 20), 0: () => look(0, END),
  "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6), "[": () => pan(-0.2), "]": () => pan(0.2),
};
for (const place of [plot, find("lists")]) {
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
}

let waited = 0;
const BUTTONS = {
  back: KEYS.ArrowLeft, on: KEYS.ArrowRight, wait: () => go(A.idle[waited++ % A.idle.length]),
  closer: KEYS["+"], wider: KEYS["-"], whole: KEYS[0], earlier: KEYS["["], later: KEYS["]"], forget: () => choose(-1),
};
for (const [id, act] of Object.entries(BUTTONS)) find(id).addEventListener("click", act);
for (const button of document.querySelectorAll("[data-go]")) button.onclick = () => go(Number(button.dataset.go));
find("scrub").addEventListener("input", (event) => go(event.target.valueAsNumber));
find("number").addEventListener("change", (event) => go(event.target.valueAsNumber));
find("search").addEventListener("input", (event) => search(event.target.value));
find("search").addEventListener("keydown", ({ key }) => {
  if (key === "Enter") find("found").querySelector("button")?.click();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); schedule(false); });
new ResizeObserver(() => schedule(false)).observe(plot);
find("wait").disabled = !A.idle.length;
readColours();
choose(-1);
