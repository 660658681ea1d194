"use strict";
// Asks the program every second how the job is, and draws it. Every text comes through textContent: what
// stands in a record never becomes markup.
const every = 1000;
const boxesUpTo = 16; // a side with more ranks is drawn as cells
const rowsShown = 600;
const patience = 5000, planPatience = 10000; // milliseconds; for a plan the program reads the store first
const shownFor = 120000, shownAtLeast = 20000; // milliseconds of the versions' picture
const $ = (id) => document.getElementById(id);
const svgSpace = "http://www.w3.org/2000/svg";
let state = null;
let token = "";
let chosen = null;

function make(tag, classes, text) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== undefined) element.textContent = text;
  return element;
}
function draw(tag, attributes, text) {
  const element = document.createElementNS(svgSpace, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
// The children of a list, one for each item and in the same order; those that stay keep the focus. Of
// items with one key the first is kept: a second child of that key would never be found again.
function sync(list, items, keyOf, create, update) {
  const there = new Map([...list.children].map((child) => [child.dataset.key, child]));
  const taken = new Set();
  for (const item of items) {
    const key = String(keyOf(item));
    if (taken.has(key)) continue;
    const at = taken.size;
    taken.add(key);
    let child = there.get(key);
    there.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (list.children[at] !== child) list.insertBefore(child, list.children[at] ?? null);
    update(child, item);
  }
  for (const child of there.values()) child.remove();
}

const ageText = (seconds) =>
  seconds < 10 ? seconds.toFixed(1) + " s" : seconds < 600 ? Math.round(seconds) + " s" : Math.round(seconds / 60) + " min";
// Two batches may be shown by one name.
const sideKeyOf = (row) => row.side + "\n" + row.batch;
const keyOf = (row) => sideKeyOf(row) + "\n" + row.rank;

// Publishers and senders stand left of those who read from them.
function sidesOf(rows) {
  const sides = new Map();
  for (const row of rows) {
    const key = sideKeyOf(row);
    if (!sides.has(key)) sides.set(key, { key, name: row.side || "no side yet", what: row.what, rows: [] });
    sides.get(key).rows.push(row);
  }
  const gives = (side) => side.rows.some((row) => row.work === "publish" || row.work === "send");
  return [...sides.values()].sort((a, b) => gives(b) - gives(a) || a.name.localeCompare(b.name));
}
// By rank: who waits for it, however long.
function waitersOf(rows) {
  const waiters = new Map();
  for (const row of rows) {
    for (const rank of row.awaited) waiters.set(rank, [...(waiters.get(rank) ?? []), row.rank]);
  }
  return waiters;
}
// Whoever is waited for too long is red, too.
function blamedRanks(rows) {
  return new Set(rows.filter((row) => row.state === "blocked").flatMap((row) => row.awaited));
}

// Of a problem what stays the same for as long as it lasts.
const lasting = (text) => text.replace(/,? [0-9.]+ (s|min)\b|, [0-9]+ % of it are left|, the newest is [0-9]+/g, "");
function drawProblems() {
  const problems = state.problems.map((problem) => problem.text);
  if (state.error) problems.unshift("The store does not answer: " + state.error);
  sync($("problems"), problems, lasting, () => make("p", "problem"), put);
  // Said once, not again with every second that goes by.
  sync($("announced"), problems.map(lasting), (text) => text, () => make("p"), put);
}
function drawTiles() {
  const rows = state.rows;
  const count = (states) => rows.filter((row) => states.includes(row.state)).length;
  const speeds = rows.filter((row) => row.gbps > 0 && row.work !== "publish" && row.work !== "send");
  put($("count-ranks"), String(new Set(rows.filter((row) => row.state !== "gone").map((row) => row.rank)).size));
  put($("count-version"), rows.some((row) => row.version) ? String(Math.max(...rows.map((row) => row.version))) : "-");
  put($("count-moving"), String(count(["moves"])));
  put($("count-waiting"), String(count(["waits", "blocked"])));
  put($("count-speed"), speeds.length ? speeds.reduce((sum, row) => sum + row.gbps, 0).toFixed(1) : "-");
}

function choose(row) {
  chosen = chosen === keyOf(row) ? null : keyOf(row);
  $("filter").value = chosen ? "rank " + row.rank : "";
  render();
}
function ranksText(ranks) {
  const named = ranks.slice(0, 6).join(", ") + (ranks.length > 6 ? ` and ${ranks.length - 6} more` : "");
  return (ranks.length === 1 ? "rank " : "ranks ") + named;
}
// What it does, and, where that matters, who waits for it.
function doingText(row, blamed, waiters) {
  const waiting = waiters.get(row.rank) ?? [];
  const matters = waiting.length && (row.state === "gone" || (blamed.has(row.rank) && row.state !== "blocked"));
  return row.doing + (matters ? `; ${ranksText(waiting)} wait${waiting.length === 1 ? "s" : ""} for it` : "");
}
function describe(row, doing) {
  return `rank ${row.rank}, ${row.version ? "version " + row.version + ", " : ""}${doing}, on ${row.host}`;
}
function rankButton(row) {
  const item = make("li");
  const button = make("button", "box");
  button.type = "button";
  const bar = make("progress");
  bar.setAttribute("aria-hidden", "true");
  const version = make("span", "v");
  version.append(make("span"), make("span", "a"));
  button.append(make("b"), version, make("span", "d"), bar);
  button.addEventListener("click", () => choose(button.row));
  item.append(button);
  return item;
}
function updateRank(item, row, compact, blamed, waiters) {
  const button = item.firstChild;
  const state = row.state !== "gone" && blamed.has(row.rank) ? "blocked" : row.state;
  const text = doingText(row, blamed, waiters);
  button.row = row;
  button.className = (compact ? "cell " : "box ") + state + (blamed.has(row.rank) ? " blamed" : "") + (chosen === keyOf(row) ? " chosen" : "");
  button.dataset.rank = row.rank;
  const [name, version, doing, bar] = button.children;
  put(name, "rank " + row.rank);
  put(version.children[0], row.version ? "v" + row.version : "");
  put(version.children[1], row.version ? " \u00b7 " + ageText(row.age) : "");
  put(doing, text);
  bar.hidden = state !== "moves";
  bar.value = row.share;
  button.setAttribute("aria-label", describe(row, text));
  button.title = describe(row, text);
}
// Of a side that is drawn as cells: who has which version.
function versionGroups(rows) {
  const groups = new Map();
  for (const row of rows) groups.set(row.version, (groups.get(row.version) ?? 0) + 1);
  return [...groups].sort((a, b) => b[0] - a[0]).slice(0, 6)
    .map(([version, count]) => `${count} at ${version ? "v" + version : "no version"}`);
}
function drawSides(sides, blamed, waiters) {
  sync($("sides"), sides, (side) => side.key,
    () => {
      const section = make("div", "side");
      const title = make("h3");
      title.append(make("span"), make("small"));
      section.append(title, make("ul", "boxes"), make("ul", "groups"));
      return section;
    },
    (section, side) => {
      const compact = side.rows.length > boxesUpTo;
      put(section.querySelector("h3 span"), side.name);
      put(section.querySelector("h3 small"), `${side.what}${side.what ? ", " : ""}${side.rows.length} ${side.rows.length === 1 ? "rank" : "ranks"}`);
      const list = section.children[1];
      list.className = compact ? "cells" : "boxes";
      sync(list, side.rows, (row) => row.rank, rankButton, (item, row) => updateRank(item, row, compact, blamed, waiters));
      const groups = compact ? versionGroups(side.rows) : [];
      sync(section.children[2], groups, (text) => text, () => make("li"), put);
    });
  $("empty").hidden = sides.length > 0;
}

function curve(from, to) {
  const middle = (from.x + to.x) / 2;
  return `M${from.x},${from.y} C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}`;
}
// Of two boxes of one column: right of it.
function arc(from, to) {
  const reach = from.x + Math.min(60, 26 + Math.abs(to.y - from.y) / 8);
  return `M${from.x},${from.y} C${reach},${from.y} ${reach},${to.y} ${to.x},${to.y}`;
}
function arrowHead(kind) {
  const head = draw("marker", { id: "head-" + kind, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" });
  head.append(draw("path", { d: "M0,0 L8,4 L0,8 z" }));
  return head;
}
const batchKeyOf = (row, rank) => row.batch + "\n" + rank;
// Where things are on the page, seen from the picture that lies behind them.
function placesOf(sides) {
  const origin = $("arrows").getBoundingClientRect();
  const sections = new Map([...$("sides").children].map((section) => [section.dataset.key, section]));
  const boxes = new Map();
  for (const side of sides) {
    for (const button of sections.get(side.key).querySelectorAll("button")) {
      const box = { button, side };
      for (const key of [batchKeyOf(button.row, button.row.rank), button.row.rank]) if (!boxes.has(key)) boxes.set(key, box);
    }
  }
  // Of a rank its part in the same batch; if it has none, or tells of none, any.
  const boxOf = (row, rank) => boxes.get(batchKeyOf(row, rank)) ?? boxes.get(rank);
  const at = (element, right) => {
    const box = element.getBoundingClientRect();
    return { x: (right ? box.right : box.left) - origin.left, y: box.top - origin.top + box.height / 2 };
  };
  return { at, boxOf, listOf: (side) => sections.get(side.key).children[1] };
}
function arrowTo(places, from, to, kind, width, label) {
  const leftToRight = places.at(from).x < places.at(to).x;
  const a = places.at(from, leftToRight), b = places.at(to, !leftToRight);
  if (Math.abs(a.x - b.x) < 8) return []; // columns that stand below each other
  const head = kind.startsWith("wait") ? "wait" : "read";
  const drawn = [draw("path", { d: curve(a, b), class: kind, "stroke-width": width, "marker-end": `url(#head-${head})` })];
  if (!label) return drawn;
  const half = 6 + 3.6 * label.length, x = b.x + (leftToRight ? -1 : 1) * (half + 20);
  return [...drawn, draw("rect", { x: x - half, y: b.y - 10, width: 2 * half, height: 20, rx: 10 }), draw("text", { x, y: b.y + 4 }, label)];
}
// Who reads from whom. Between large sides one arrow stands for all.
function readArrows(side, places) {
  const reads = side.rows.filter((row) => row.from.length);
  const kindOf = (rows) => (rows.some((row) => row.state === "moves") ? "read flow" : "read");
  const speed = (gbps) => (gbps ? gbps.toFixed(1) + " GB/s" : "");
  if (side.rows.length > boxesUpTo) {
    const total = reads.reduce((sum, row) => sum + row.gbps, 0);
    const sources = new Set(reads.flatMap((row) => row.from.map((rank) => places.boxOf(row, rank)?.side)));
    return [...sources].filter((source) => source && source !== side)
      .flatMap((source) => arrowTo(places, places.listOf(source), places.listOf(side), kindOf(reads), 5, speed(total)));
  }
  return reads.flatMap((row) => {
    const reader = places.boxOf(row, row.rank)?.button;
    const sources = row.from.map((rank) => places.boxOf(row, rank)).filter((source) => source && source.side !== side);
    const width = Math.min(5, 1.5 + row.gbps / Math.max(1, sources.length));
    // The label is the last one drawn, above the lines.
    return sources.flatMap((source, at) =>
      arrowTo(places, source.button, reader, kindOf([row]), width, at === sources.length - 1 ? speed(row.gbps) : ""));
  });
}
// Who waits for whom; among cells there is no room for it, a ring marks there who is waited for.
function waitArrows(row, places) {
  return row.awaited.flatMap((rank) => {
    const from = places.boxOf(row, row.rank), to = places.boxOf(row, rank);
    if (!from || !to || from === to) return [];
    if (from.side !== to.side) return arrowTo(places, from.button, to.button, "wait", 2, "");
    if (from.side.rows.length > boxesUpTo) return [];
    const [a, b] = [from, to].map((each) => places.at(each.button, true));
    return [draw("path", { d: arc(a, b), class: "wait", "stroke-width": 2, "marker-end": "url(#head-wait)" })];
  });
}
function drawArrows(sides) {
  const waiting = state.rows.filter((row) => row.state === "blocked").slice(0, 64);
  $("sides").parentElement.classList.toggle("waiting", waiting.length > 0);
  const places = placesOf(sides);
  const heads = draw("defs", {});
  heads.append(arrowHead("read"), arrowHead("wait"));
  $("arrows").replaceChildren(heads, ...sides.flatMap((side) => readArrows(side, places)), ...waiting.flatMap((row) => waitArrows(row, places)));
}

// The versions of each side, in the order of the columns.
function lanesOf(sides) {
  const lanes = new Map(sides.map((side) => [side.key, { ...side, versions: [] }]));
  for (const each of state.versions) {
    if (state.now - each.last < shownFor) lanes.get(sideKeyOf(each))?.versions.push(each);
  }
  for (const lane of lanes.values()) lane.versions.sort((a, b) => a.first - b.first);
  return [...lanes.values()].filter((lane) => lane.versions.length);
}
const versionTitle = (each, size) => `version ${each.version}: ${each.ranks} of ${size} ranks, within ${ageText((each.last - each.first) / 1000)}`;
// A side as one line of bars, from its first rank to its last; a small one with a line for each rank.
function drawLane(svg, lane, top, x, left, right) {
  const small = lane.rows.length <= boxesUpTo;
  const line = small ? 18 : 30;
  const lines = small ? lane.rows.length : 1;
  const bottom = top + 36 + lines * line;
  svg.append(draw("text", { class: "name", x: 0, y: top + 14 }, lane.name + (lane.what ? ", " + lane.what : "")));
  const middle = (at) => top + 36 + at * line + line / 2;
  for (let at = 0; at < lines; ++at) {
    svg.append(draw("line", { class: "lane", x1: left, x2: right, y1: middle(at), y2: middle(at) }));
    if (small) svg.append(draw("text", { class: "who", x: left - 8, y: middle(at) + 4 }, String(lane.rows[at].rank)));
  }
  let free = left;
  for (const each of lane.versions) {
    const begin = Math.max(left, x(each.first)), end = Math.max(begin + 2, x(each.last));
    const band = draw("rect", { x: small ? begin - 4 : begin, width: end - begin + (small ? 8 : 0), y: top + 36 + (small ? 0 : 8), height: small ? lines * line : 14, rx: 4,
      class: small ? "band" : each.ranks >= lane.rows.length ? "whole" : "part" });
    band.append(draw("title", {}, versionTitle(each, lane.rows.length)));
    svg.append(band);
    for (const [rank, when] of small ? each.at : []) {
      const at = lane.rows.findIndex((row) => row.rank === rank);
      if (at >= 0 && x(when) >= left) svg.append(draw("circle", { cx: x(when), cy: middle(at), r: 3.5 }));
    }
    const half = 4 * String(each.version).length + 5;
    const center = Math.min((begin + end) / 2, right + 5 - half);
    if (center - half < free) continue;
    svg.append(draw("text", { class: "num", x: center, y: top + 31 }, String(each.version)));
    free = center + half;
  }
  return bottom + 14;
}
function drawVersions(sides) {
  const lanes = lanesOf(sides);
  const width = Math.max(320, $("versions").clientWidth), right = width - 10;
  const left = 16 + 8 * Math.max(1, ...lanes.flatMap((lane) => lane.rows.map((row) => String(row.rank).length)));
  const oldest = Math.min(state.now, ...lanes.flatMap((lane) => lane.versions.map((each) => each.first)));
  const span = Math.min(shownFor, Math.max(shownAtLeast, (state.now - oldest) * 1.04));
  const x = (at) => left + (1 - (state.now - at) / span) * (right - left);
  const svg = draw("svg", { role: "img", "aria-label": "Versions over time: which rank got which when" });
  let top = 0;
  for (const lane of lanes) top = drawLane(svg, lane, top, x, left, right);
  for (const [at, anchor] of [[span, "start"], [span / 2, "middle"], [0, "end"]]) {
    svg.append(draw("text", { x: x(state.now - at), y: top + 12, "text-anchor": anchor }, at ? ageText(at / 1000) + " ago" : "now"));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${top + 18}`);
  $("versions").replaceChildren(svg);
}

function drawLog() {
  const entries = state.log.slice(-100).reverse();
  sync($("log"), entries, (entry) => entry.at + entry.text,
    (entry) => {
      const item = make("li");
      item.append(make("time", "", new Date(entry.at).toLocaleTimeString("en-GB")), make("span", entry.kind === "problem" ? "problem-line" : entry.kind, entry.text));
      return item;
    },
    () => {});
}

function drawTable(blamed) {
  const wanted = $("filter").value.trim().toLowerCase();
  const matches = (row) => !wanted || wanted === "rank " + row.rank
    || (!wanted.startsWith("rank ") && `${row.rank} ${row.side} ${row.what} ${row.host} ${row.doing}`.toLowerCase().includes(wanted));
  const rows = state.rows.filter(matches);
  sync($("rows"), rows.slice(0, rowsShown), keyOf,
    () => {
      const line = make("tr");
      for (let at = 0; at < 9; ++at) line.append(make("td"));
      return line;
    },
    (line, row) => {
      line.className = row.state !== "gone" && blamed.has(row.rank) ? "blocked" : row.state;
      const cells = [row.rank, row.side, row.what, row.version || "-", row.version ? ageText(row.age) : "-",
        row.gbps ? row.gbps.toFixed(2) : "-", row.doing, row.host, row.pid + (row.embedded ? "" : "*")];
      cells.forEach((text, at) => put(line.children[at], String(text)));
    });
  put($("more"), rows.length > rowsShown ? `${rows.length - rowsShown} more; narrow them by what stands in the field` : "");
}

function render() {
  if (!state || !state.rows) return;
  put($("space"), state.namespace);
  put($("store"), state.store);
  const sides = sidesOf(state.rows);
  const blamed = blamedRanks(state.rows);
  drawProblems();
  drawTiles();
  drawSides(sides, blamed, waitersOf(state.rows));
  drawArrows(sides);
  drawVersions(sides);
  drawLog();
  drawTable(blamed);
  drawPlanChoice(sides);
  document.title = (state.problems.length ? `(${state.problems.length}) ` : "") + "tensorbus";
}

// The sides that read, to choose from.
function drawPlanChoice(sides) {
  const reading = sides.filter((side) => side.rows.some((row) => row.work === "pull" || row.work === "recv"));
  const choices = [{ key: "", text: "choose who reads" },
    ...reading.map((side) => ({ key: JSON.stringify([side.rows[0].batch, side.rows[0].side]), text: `${side.what}, read by ${side.name}` }))];
  const before = $("plan-of").value;
  const first = $("plan-of").length < 2 && reading.length === 1 && state.rows.length <= 2 * boxesUpTo;
  sync($("plan-of"), choices, (choice) => choice.key, () => make("option"), (option, choice) => {
    option.value = choice.key;
    put(option, choice.text);
  });
  if (first) $("plan-of").value = choices[1].key; // the only one there is, and quickly drawn
  if ($("plan-of").value !== before) drawPlan();
}
async function drawPlan() {
  const choice = $("plan-of").value;
  $("plan").hidden = true;
  if (!choice) return put($("plan-text"), "Who reads what from whom: choose a side that reads.");
  const [batch, side] = JSON.parse(choice);
  put($("plan-text"), "...");
  try {
    const answer = await fetch("plan.svg?" + new URLSearchParams({ batch, side }), asking(planPatience));
    const text = await answer.text();
    if ($("plan-of").value !== choice) return;
    if (answer.status === 503) setTimeout(() => $("plan-of").value === choice && drawPlan(), every); // it draws one for somebody else
    if (!answer.ok) return put($("plan-text"), "There is no plan: " + text);
    $("plan-picture").src = "data:image/svg+xml," + encodeURIComponent(text);
    $("plan-picture").alt = `What each rank of ${side} reads from whom; bands are as thick as their bytes`;
    $("plan").hidden = false;
    put($("plan-text"), "Bands are as thick as the bytes that move.");
  } catch (error) {
    if ($("plan-of").value === choice) put($("plan-text"), "There is no plan: " + whyOf(error));
  }
}

function live(on, text) {
  $("live").className = "live " + (on ? "on" : "off");
  put($("live-text"), text);
}
const headers = () => (token ? { Authorization: "Bearer " + token } : {});
// A program that is stopped, or cut off, keeps its connections and says nothing.
const asking = (time) => ({ headers: headers(), cache: "no-store", signal: AbortSignal.timeout(time) });
const whyOf = (error) => (error instanceof TypeError || error instanceof DOMException ? "the program does not answer" : error.message);
async function ask() {
  const answer = await fetch("state.json", asking(patience));
  $("entry").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(answer.status === 401 ? "a token is needed" : "the program says " + answer.status);
  state = await answer.json();
  live(!state.error, state.error ? "the store is away" : "live");
}
async function look() {
  try {
    await ask();
  } catch (error) {
    return live(false, whyOf(error));
  }
  render();
}
function follow() {
  look().finally(() => setTimeout(follow, every));
}

const themes = ["auto", "light", "dark"];
$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = themes[(themes.indexOf(now) + 1) % themes.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  put($("theme"), next[0].toUpperCase() + next.slice(1));
  $("theme").setAttribute("aria-label", "Theme: " + (next === "auto" ? "as the system" : next));
});
$("filter").addEventListener("input", render);
$("plan-of").addEventListener("change", drawPlan);
$("entry").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  look();
});
addEventListener("resize", render);
follow();
