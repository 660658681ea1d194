"use strict";
// Asks the program every second how the job is, and draws it. Every text comes through textContent: what
// stands in a record never becomes markup.
const every = 1000;
const boxesUpTo = 16; // a side with more ranks is drawn as cells
const rowsShown = 600;
const shownFor = 120000; // milliseconds of the versions' picture
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
// The children of a list, one for each item and in the same order; those that stay keep the focus.
function sync(list, items, keyOf, create, update) {
  const there = new Map([...list.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    const key = String(keyOf(item));
    let child = there.get(key);
    there.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (list.children[at] !== child) list.insertBefore(child, list.children[at] ?? null);
    update(child, item);
  });
  for (const child of there.values()) child.remove();
}

const ageText = (seconds) =>
  seconds < 10 ? seconds.toFixed(1) + " s" : seconds < 600 ? Math.round(seconds) + " s" : Math.round(seconds / 60) + " min";
const versionText = (row) => (row.version ? "v" + row.version : "");
const keyOf = (row) => row.side + "\n" + row.what + "\n" + row.rank;

// Publishers and senders stand left of those who read from them.
function sidesOf(rows) {
  const sides = new Map();
  for (const row of rows) {
    const key = row.side + "\n" + row.what;
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

function drawProblems() {
  const problems = state.problems.map((problem) => problem.text);
  if (state.error) problems.unshift("The store does not answer: " + state.error);
  sync($("problems"), problems, (text) => text.replace(/[0-9.]+ (s|min)\b/, ""), () => make("p", "problem"), put);
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
  button.append(make("b"), make("span", "v"), make("span", "d"));
  button.addEventListener("click", () => choose(button.row));
  item.append(button);
  return item;
}
function updateRank(item, row, compact, blamed, waiters) {
  const button = item.firstChild;
  const state = row.state !== "gone" && blamed.has(row.rank) ? "blocked" : row.state;
  const text = doingText(row, blamed, waiters);
  button.row = row;
  button.className = (compact ? "cell " : "box ") + state + (chosen === keyOf(row) ? " chosen" : "");
  button.dataset.rank = row.rank;
  const [name, version, doing] = button.children;
  put(name, "rank " + row.rank);
  put(version, versionText(row));
  put(doing, text);
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
// Who reads from whom, and who waits for whom. Between large sides one arrow stands for all.
function drawArrows(sides) {
  const svg = $("arrows");
  const origin = svg.getBoundingClientRect();
  const place = (element, right) => {
    const box = element.getBoundingClientRect();
    return { x: (right ? box.right : box.left) - origin.left, y: box.top - origin.top + box.height / 2 };
  };
  const sections = new Map([...$("sides").children].map((section) => [section.dataset.key, section]));
  const boxes = new Map();
  for (const side of sides) {
    for (const button of sections.get(side.key).querySelectorAll("button")) {
      boxes.set(Number(button.dataset.rank), { button, side });
    }
  }
  const drawn = [];
  const arrow = (from, to, kind, width, label) => {
    const leftToRight = place(from).x < place(to).x;
    const a = place(from, leftToRight), b = place(to, !leftToRight);
    if (Math.abs(a.x - b.x) < 8) return; // in one column, or below each other
    drawn.push(draw("path", { d: curve(a, b), class: kind, "stroke-width": width }));
    if (label) drawn.push(draw("text", { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 - 5 }, label));
  };
  for (const side of sides) {
    const reads = side.rows.filter((row) => row.from.length);
    const compact = side.rows.length > boxesUpTo;
    if (compact && reads.length) {
      const total = reads.reduce((sum, row) => sum + row.gbps, 0);
      const sources = new Set(reads.flatMap((row) => row.from).map((rank) => boxes.get(rank)?.side).filter(Boolean));
      for (const source of sources) {
        arrow(sections.get(source.key).children[1], sections.get(side.key).children[1], "read", 6, total.toFixed(1) + " GB/s");
      }
      continue;
    }
    for (const row of reads) {
      const reader = boxes.get(row.rank)?.button;
      const sources = row.from.map((rank) => boxes.get(rank)).filter((source) => source && source.side !== side);
      sources.forEach((source, at) => {
        arrow(source.button, reader, "read", Math.min(6, 1.5 + row.gbps / sources.length), at === 0 && row.gbps ? row.gbps.toFixed(1) + " GB/s" : "");
      });
    }
  }
  for (const row of state.rows.filter((each) => each.state === "blocked").slice(0, 64)) {
    for (const rank of row.awaited) {
      const from = boxes.get(row.rank)?.button, to = boxes.get(rank)?.button;
      if (from && to) arrow(from, to, "wait", 2, "");
    }
  }
  svg.replaceChildren(...drawn);
}

function drawVersions() {
  const lanes = new Map();
  for (const each of state.versions) {
    const key = each.what + " \u2014 " + (each.side || "?");
    if (!lanes.has(key)) lanes.set(key, []);
    lanes.get(key).push(each);
  }
  const sizes = new Map();
  for (const row of state.rows) {
    const key = row.what + " \u2014 " + (row.side || "?");
    sizes.set(key, (sizes.get(key) ?? 0) + 1);
  }
  const width = Math.max(320, $("versions").clientWidth), left = 8, high = 46;
  const x = (at) => left + (1 - (state.now - at) / shownFor) * (width - left - 12);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${Math.max(1, lanes.size) * high + 22}`, role: "img", "aria-label": "Versions over time" });
  let top = 0;
  for (const [name, versions] of lanes) {
    svg.append(draw("text", { x: left, y: top + 13 }, name));
    svg.append(draw("line", { class: "lane", x1: left, x2: width - 8, y1: top + high - 4, y2: top + high - 4 }));
    let free = -1;
    for (const each of versions.filter((one) => state.now - one.last < shownFor).sort((a, b) => a.first - b.first)) {
      const begin = Math.max(left, x(each.first)), end = Math.max(begin + 3, x(each.last));
      const whole = each.ranks >= (sizes.get(name) ?? 1);
      const bar = draw("rect", { x: begin, y: top + 30, width: end - begin, height: 10, rx: 2, class: whole ? "whole" : "part" });
      bar.append(draw("title", {}, `version ${each.version}: ${each.ranks} ranks, within ${ageText((each.last - each.first) / 1000)}`));
      svg.append(bar);
      if (begin < free) continue;
      svg.append(draw("text", { class: "num", x: begin, y: top + 27 }, String(each.version)));
      free = begin + 10 + 8 * String(each.version).length;
    }
    top += high;
  }
  for (const [at, label] of [[shownFor, "2 min ago"], [shownFor / 2, "1 min"], [0, "now"]]) {
    svg.append(draw("text", { x: Math.min(width - 34, x(state.now - at)), y: top + 14 }, label));
  }
  $("versions").replaceChildren(svg);
}

function drawLog() {
  const entries = state.log.slice(-100).reverse();
  sync($("log"), entries, (entry) => entry.at + entry.text,
    (entry) => {
      const item = make("li");
      item.append(make("time", "", new Date(entry.at).toLocaleTimeString()), make("span", entry.kind === "problem" ? "problem-line" : entry.kind, entry.text));
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
  drawVersions();
  drawLog();
  drawTable(blamed);
  drawPlanChoice(sides);
}

// The sides that read, to choose from.
function drawPlanChoice(sides) {
  const reading = sides.filter((side) => side.rows.some((row) => row.work === "pull" || row.work === "recv"));
  const choices = [{ key: "", text: "choose who reads" },
    ...reading.map((side) => ({ key: JSON.stringify([side.rows[0].batch, side.rows[0].side]), text: `${side.what}, read by ${side.name}` }))];
  const before = $("plan-of").value;
  sync($("plan-of"), choices, (choice) => choice.key, () => make("option"), (option, choice) => {
    option.value = choice.key;
    put(option, choice.text);
  });
  if ($("plan-of").value !== before) drawPlan();
}
async function drawPlan() {
  const choice = $("plan-of").value;
  $("plan").hidden = true;
  if (!choice) return put($("plan-text"), "Who reads what from whom: choose a side that reads.");
  const [batch, side] = JSON.parse(choice);
  put($("plan-text"), "...");
  try {
    const answer = await fetch("plan.svg?" + new URLSearchParams({ batch, side }), { headers: headers(), cache: "no-store" });
    const text = await answer.text();
    if ($("plan-of").value !== choice) return;
    if (!answer.ok) return put($("plan-text"), "There is no plan: " + text);
    $("plan-picture").src = "data:image/svg+xml," + encodeURIComponent(text);
    $("plan-picture").alt = `What each rank of ${side} reads from whom; bands are as thick as their bytes`;
    $("plan").hidden = false;
    put($("plan-text"), "Bands are as thick as the bytes that move.");
  } catch (error) {
    put($("plan-text"), "There is no plan: " + error.message);
  }
}

function live(on, text) {
  $("live").className = "live " + (on ? "on" : "off");
  put($("live-text"), text);
}
const headers = () => (token ? { Authorization: "Bearer " + token } : {});
async function ask() {
  const answer = await fetch("state.json", { headers: headers(), cache: "no-store" });
  $("entry").hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(answer.status === 401 ? "a token is needed" : "the program says " + answer.status);
  state = await answer.json();
  live(!state.error, state.error ? "the store is away" : "live");
  render();
}
async function follow() {
  try {
    await ask();
  } catch (error) {
    live(false, error instanceof TypeError ? "the program does not answer" : error.message);
  }
  setTimeout(follow, every);
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
  ask().catch((error) => live(false, error.message));
});
addEventListener("resize", render);
follow();
