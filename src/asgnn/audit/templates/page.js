"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const NO_CLASS = 65535;

  // --- columns -----------------------------------------------------------------------------------------------------

  /** A column of the page: base64 of a little-endian array. */
  function unpack(text, Kind) {
    const characters = atob(text), bytes = new Uint8Array(characters.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
    return new Kind(bytes.buffer);
  }

  const ids = data.ids, classes = data.classes;
  const classOf = data.nodes.class ? unpack(data.nodes.class, Uint16Array) : null;
  const confidenceOf = data.nodes.confidence ? unpack(data.nodes.confidence, Float32Array) : null;

  function readTable(packed, main) {
    const table = {
      count: packed.count,
      source: unpack(packed.source, Uint32Array),
      target: unpack(packed.target, Uint32Array),
      rank: packed.rank ? unpack(packed.rank, Uint32Array) : Uint32Array.from({ length: packed.count }, (_, i) => i + 1),
      scores: packed.scores.map(({ name, label, values }) => ({ name, label, values: unpack(values, Float32Array) })),
      unit: packed.largest / 65535,
      given: packed.given ? unpack(packed.given, Float32Array) : null,
      layers: packed.layers.map(({ name, values }) => ({ name, values: unpack(values, Uint16Array) })),
    };
    table.main = table.scores.find((one) => one.name === main)?.values || new Float32Array(0);
    // Probabilities have the range 0 to 1; other scores may go beyond it.
    table.low = 0;
    table.high = 1;
    for (const value of table.main) if (Number.isFinite(value)) {
      if (value < table.low) table.low = value;
      if (value > table.high) table.high = value;
    }
    table.part = (value) => (Math.max(table.low, Math.min(table.high, value)) - table.low) / (table.high - table.low) || 0;
    return table;
  }

  const edges = readTable(data.edges, "suspicion"), missing = readTable(data.missing, "plausibility");
  const layers = edges.layers.length;

  /** The weight of an edge in a layer; layer 0 is the given graph. */
  function weight(edge, layer) {
    if (layer) return edges.layers[layer - 1].values[edge] * edges.unit;
    return edges.given ? edges.given[edge] : 1;
  }

  // The edges at every node, as in a compressed sparse row matrix.
  const starts = new Uint32Array(ids.length + 1), incident = new Uint32Array(2 * edges.count);
  for (const ends of [edges.source, edges.target]) for (const node of ends) starts[node + 1]++;
  for (let node = 0; node < ids.length; node++) starts[node + 1] += starts[node];
  const next = starts.slice();
  for (let edge = 0; edge < edges.count; edge++) {
    incident[next[edges.source[edge]]++] = edge;
    incident[next[edges.target[edge]]++] = edge;
  }

  // --- elements: text is only ever set as text ---------------------------------------------------------------------

  function make(space, tag, attributes, children) {
    const element = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }
  const h = (tag, attributes, ...children) => make("http://www.w3.org/1999/xhtml", tag, attributes, children);
  const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

  // --- numbers and names as text -----------------------------------------------------------------------------------

  const whole = new Intl.NumberFormat("en");
  const fixed = (value, digits = 3) => Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "–";
  const percent = (part, all) => all ? `${(100 * part / all).toFixed(part && part < all / 100 ? 2 : 1)}\u00a0%` : "0\u00a0%";
  const short3 = (value) => fixed(value, Math.abs(value) < .0995 && value ? 3 : 2);
  const plural = (count, one, many = `${one}s`) => `${whole.format(count)} ${count === 1 ? one : many}`;
  const short = (text, length) => text.length > length ? `${text.slice(0, length - 1)}…` : text;
  /** A name with its beginning and its end: long ids often begin alike. */
  const middle = (text, length) => text.length > length ? `${text.slice(0, Math.ceil(length / 3))}…${text.slice(Math.ceil(length / 3) + 1 - length)}` : text;
  const longest = ids.reduce((most, id) => Math.max(most, id.length), 0), ID = Math.min(22, Math.max(10, longest));
  const className = (node) => !classOf || classOf[node] === NO_CLASS ? "–" : classes[classOf[node]];
  const described = (node) => {
    const confidence = confidenceOf && Number.isFinite(confidenceOf[node]) ? `, confidence ${fixed(confidenceOf[node], 2)}` : "";
    return classOf ? `${className(node)}${confidence}` : "";
  };

  // Eight colours, then the same in other shapes.
  const SHAPES = [
    "M0,-1A1,1 0 1 1 0,1A1,1 0 1 1 0,-1Z", "M-.9,-.9H.9V.9H-.9Z", "M0,-1.25L1.25,0L0,1.25L-1.25,0Z", "M0,-1.2L1.15,.85H-1.15Z",
  ];
  const colour = (code) => code === NO_CLASS || code === undefined ? "var(--edge)" : `var(--c${code % 8})`;
  const shape = (code) => SHAPES[code === NO_CLASS || code === undefined ? 0 : Math.floor(code / 8) % SHAPES.length];
  const dot = (code) => s("svg", { class: "dot", viewBox: "-1.1 -1.1 2.2 2.2", "aria-hidden": "true" }, s("path", { d: shape(code), style: `fill: ${colour(code)}` }));

  // --- state -------------------------------------------------------------------------------------------------------

  const state = {
    tab: "edges", threshold: data.threshold, layer: layers + 1,
    sort: { edges: { column: "rank", sign: 1 }, missing: { column: "rank", sign: 1 } },
    chosen: { edges: edges.count ? 0 : -1, missing: -1 },
  };
  const tables = { edges, missing };
  const current = () => tables[state.tab];
  /** The shown rows, in order. */
  let shown = new Uint32Array(0);

  // --- the columns of the table ------------------------------------------------------------------------------------

  let places = null;
  /** The place of every node in the alphabet of ids, numbers by size. */
  function alphabet() {
    if (!places) {
      const collator = new Intl.Collator("en", { numeric: true });
      const order = Uint32Array.from(ids, (_, i) => i).sort((a, b) => collator.compare(ids[a], ids[b]) || a - b);
      places = new Uint32Array(ids.length);
      order.forEach((node, place) => { places[node] = place; });
    }
    return places;
  }
  const through = (ends, values) => Float64Array.from(ends, (node) => values[node] === NO_CLASS ? NaN : values[node]);

  function columnsOf(table) {
    const columns = [{ name: "rank", label: "rank", width: 58, order: () => table.rank, text: (i) => whole.format(table.rank[i]), first: 1 }];
    for (const end of ["source", "target"]) {
      columns.push({ name: end, label: end, width: 20 + 7.3 * ID, kind: "text", order: () => through(table[end], alphabet()), text: (i) => middle(ids[table[end][i]], rowHeight > 40 ? 11 : ID), full: (i) => ids[table[end][i]], first: 1 });
    }
    const score = ({ name, label, values }) => {
      const main = values === table.main;
      columns.push({ name, label, width: main ? 124 : 92, main, order: () => values, text: (i) => fixed(values[i]), value: (i) => values[i], first: -1 });
    };
    table.scores.filter(({ values }) => values === table.main).forEach(score);
    for (const end of classOf ? ["source", "target"] : []) {
      columns.push({ name: `class_${end}`, label: `class of ${end}`, width: 136, kind: "class", order: () => through(table[end], classOf), text: (i) => className(table[end][i]), code: (i) => classOf[table[end][i]], first: 1 });
    }
    table.scores.filter(({ values }) => values !== table.main).forEach(score);
    if (table.layers.length) {
      const last = table.layers[table.layers.length - 1];
      columns.push({ name: last.name, label: "last weight", width: 96, order: () => last.values, text: (i) => fixed(last.values[i] * table.unit, 2), first: 1 });
    }
    for (const end of confidenceOf ? ["source", "target"] : []) {
      columns.push({ name: `confidence_${end}`, label: `confidence of ${end}`, width: 150, order: () => through(table[end], confidenceOf), text: (i) => fixed(confidenceOf[table[end][i]], 2), first: -1 });
    }
    return columns;
  }
  for (const table of [edges, missing]) table.columns = columnsOf(table);

  /** All rows of a table in an order, kept: filters go through it and need no sorting. */
  function ordered(table, { column, sign }) {
    table.orders ||= {};
    const key = `${column} ${sign}`;
    if (!table.orders[key]) {
      const values = table.columns.find((one) => one.name === column).order();
      const order = Uint32Array.from({ length: table.count }, (_, i) => i);
      order.sort((a, b) => {
        const x = values[a], y = values[b];
        if (x !== x || y !== y) return (x !== x) - (y !== y) || a - b;  // what is not a number comes last
        return sign * (x - y) || a - b;
      });
      table.orders = { ...(Object.keys(table.orders).length < 6 ? table.orders : {}), [key]: order };
    }
    return table.orders[key];
  }

  // --- filters -----------------------------------------------------------------------------------------------------

  const number = (id, otherwise) => byId(id).value === "" || !Number.isFinite(byId(id).valueAsNumber) ? otherwise : byId(id).valueAsNumber;

  /** The nodes that a text finds: the one with this id, or else all that contain it. */
  function search(text) {
    if (!text) return null;
    const found = new Uint8Array(ids.length), lower = text.toLowerCase();
    let exact = false, count = 0;
    for (let node = 0; node < ids.length; node++) if (ids[node] === text) { exact = true; found[node] = 1; count++; }
    if (!exact) for (let node = 0; node < ids.length; node++) if (ids[node].toLowerCase().includes(lower)) { found[node] = 1; count++; }
    return { found, exact, count };
  }

  function filter() {
    const table = current(), { source, target, main } = table;
    // The scores are float32: a bound is rounded in the same way.
    const low = Math.fround(number("low", -Infinity)), high = Math.fround(number("high", Infinity));
    const confident = Math.fround(number("confidence", 0)), between = byId("between").value;
    const kind = byId("class").value === "" ? -1 : Number(byId("class").value);
    const text = byId("search").value.trim(), nodes = search(text);
    const order = ordered(table, state.sort[state.tab]);
    const rows = new Uint32Array(table.count);
    let count = 0;
    for (const i of order) {
      const a = source[i], b = target[i];
      if (main[i] < low || main[i] > high) continue;
      if (nodes && !nodes.found[a] && !nodes.found[b]) continue;
      if (kind >= 0 && classOf[a] !== kind && classOf[b] !== kind) continue;
      if (between && (classOf[a] !== classOf[b]) !== (between === "between")) continue;
      if (confident > 0 && !(confidenceOf[a] >= confident && confidenceOf[b] >= confident)) continue;
      rows[count++] = i;
    }
    shown = rows.subarray(0, count);
    const all = plural(table.count, state.tab === "edges" ? "edge" : "missing edge");
    let said = count === table.count ? all : `${whole.format(count)} of ${all}`;
    if (nodes) said += nodes.exact ? `; node ${short(text, 30)}` : `; ${plural(nodes.count, "id")} with “${short(text, 30)}”`;
    byId("found").textContent = said;
    byId("export").disabled = !count;
    const nothing = state.tab === "edges" ? "The graph has no edges." : "The audit proposes no missing edges.";
    byId("empty").textContent = table.count ? "No row passes the filters." : nothing;
    byId("empty").hidden = count > 0;
    byId("scroll").scrollTop = 0;
    box.setAttribute("aria-rowcount", count + 1);
    drawRows();
  }

  // --- the table: only the rows in sight exist ---------------------------------------------------------------------

  const box = byId("scroll"), head = byId("table").tHead, body = byId("table").tBodies[0];
  const above = h("tr", { class: "space", "aria-hidden": "true" }, h("td", {})), under = h("tr", { class: "space", "aria-hidden": "true" }, h("td", {}));
  let pool = [], rowHeight = 32;

  function drawHead() {
    const table = current(), sort = state.sort[state.tab];
    const cells = table.columns.map(({ name, label, width, kind }) => {
      const order = sort.column === name ? (sort.sign > 0 ? "ascending" : "descending") : null;
      const button = h("button", { type: "button", class: "sort", onclick: () => sortBy(name) }, label);
      return h("th", { scope: "col", role: "columnheader", class: kind ? "text" : null, style: `width: ${width}px`, "aria-sort": order }, button);
    });
    byId("table").style.minWidth = `${table.columns.reduce((sum, { width }) => sum + width, 0)}px`;
    byId("table").className = state.tab === "missing" ? "good" : "";
    box.setAttribute("aria-label", state.tab === "edges" ? "Edges by suspicion" : "Missing edges by plausibility");
    box.setAttribute("aria-colcount", table.columns.length);
    const focus = [...head.querySelectorAll(".sort")].indexOf(document.activeElement);
    head.replaceChildren(h("tr", { role: "row", "aria-rowindex": 1 }, cells));
    if (focus >= 0) head.querySelectorAll(".sort")[focus].focus({ preventScroll: true });
    const options = table.columns.flatMap(({ name, label, first }) => [first, -first].map((sign) =>
      h("option", { value: `${name} ${sign}` }, `${label} ${sign > 0 ? "↑" : "↓"}`)));
    byId("sort").replaceChildren(...options);
    byId("sort").value = `${sort.column} ${sort.sign}`;
    pool = [];
  }

  function sortBy(name) {
    const { first } = current().columns.find((one) => one.name === name), sort = state.sort[state.tab];
    state.sort[state.tab] = { column: name, sign: sort.column === name ? -sort.sign : first };
    drawHead();
    filter();
  }

  function newRow() {
    const cells = current().columns.map(({ name, kind, main }) => {
      const td = h("td", { role: "gridcell", class: `k-${main ? "main" : name}${kind ? " text" : ""}` });
      if (main) td.append(h("span", { class: "score" }));
      if (kind === "class") td.append(h("span", {}), "");
      return td;
    });
    return h("tr", { role: "row" }, cells);
  }

  function fillRow(row, place) {
    const i = shown[place];
    row.dataset.place = place;
    row.id = `row-${place}`;
    row.setAttribute("aria-rowindex", place + 2);
    row.setAttribute("aria-selected", i === state.chosen[state.tab]);
    current().columns.forEach((column, number) => {
      const cell = row.cells[number], text = column.text(i);
      if (column.main) {
        const value = column.value(i);
        cell.firstChild.textContent = text;
        cell.firstChild.style.setProperty("--part", current().part(value));
      } else if (column.kind === "class") {
        cell.firstChild.replaceChildren(dot(column.code(i)));
        cell.lastChild.textContent = text;
        cell.title = text;
      } else {
        cell.textContent = text;
        if (column.full) cell.title = column.full(i);
      }
    });
  }

  function drawRows() {
    const spare = 6, visible = Math.ceil(box.clientHeight / rowHeight) + 2 * spare;
    const from = Math.max(0, Math.min(shown.length - visible, Math.floor(box.scrollTop / rowHeight) - spare));
    const count = Math.min(visible, shown.length - from);
    while (pool.length < count) pool.push(newRow());
    for (let k = 0; k < count; k++) fillRow(pool[k], from + k);
    above.firstChild.style.height = `${from * rowHeight}px`;
    under.firstChild.style.height = `${(shown.length - from - count) * rowHeight}px`;
    const wanted = [above, ...pool.slice(0, count), under];
    if (body.children.length !== wanted.length || body.children[1] !== wanted[1]) body.replaceChildren(...wanted);
    const chosen = shown.indexOf(state.chosen[state.tab]);
    if (chosen >= from && chosen < from + count) box.setAttribute("aria-activedescendant", `row-${chosen}`);
    else box.removeAttribute("aria-activedescendant");
  }

  let waiting = false;
  const soon = (draw) => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  box.addEventListener("scroll", () => soon(drawRows), { passive: true });
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-place]");
    if (row) choose(state.tab, shown[row.dataset.place], true);
  });
  box.addEventListener("keydown", (event) => {
    if (event.target !== box || !shown.length) return;
    const now = shown.indexOf(state.chosen[state.tab]), screen = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 2);
    const to = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + screen, PageUp: now - screen, Home: 0, End: shown.length - 1, Enter: Math.max(now, 0) }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(shown.length - 1, to));
    const top = place * rowHeight, covered = head.offsetHeight > 2 ? head.offsetHeight : 0;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + rowHeight > box.scrollTop + box.clientHeight - covered) box.scrollTop = top + rowHeight - box.clientHeight + covered;
    choose(state.tab, shown[place], event.key === "Enter");
  });

  function choose(tab, i, go) {
    state.chosen = { edges: -1, missing: -1, [tab]: i };
    drawRows();
    drawEdge();
    if (go && matchMedia("(max-width: 1000px)").matches) byId("edge").scrollIntoView({ block: "start" });
  }

  // --- the histogram and the threshold -----------------------------------------------------------------------------

  const BINS = 50;
  const bins = new Uint32Array(BINS);
  for (const value of edges.main) if (value === value) bins[Math.min(BINS - 1, Math.floor(edges.part(value) * BINS))]++;
  const isRemoved = (edge) => edges.main[edge] >= Math.fround(state.threshold);

  function drawHistogram() {
    const svg = byId("histogram"), width = svg.clientWidth || 400, height = 112, left = 34, right = 8, top = 14, bottom = 2;
    const x = (part) => left + part * (width - left - right), most = Math.max(1, ...bins);
    const y = (count) => height - bottom - (height - top - bottom) * Math.log1p(count) / Math.log1p(most);
    const ticks = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].filter((tick) => tick <= most);
    const told = ticks.length > 4 ? ticks.filter((_, i) => i % 2 === (ticks.length - 1) % 2) : ticks;
    const name = (tick) => tick >= 1e6 ? `${tick / 1e6}M` : tick >= 1e3 ? `${tick / 1e3}k` : String(tick);
    const grid = told.map((tick) => [s("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), s("text", { x: left - 5, y: y(tick) + 4, "text-anchor": "end" }, name(tick))]);
    const cut = edges.part(state.threshold);
    const bars = Array.from(bins, (count, bin) => count ? s("rect", {
      class: bin / BINS >= cut - 1e-6 ? "bar out" : "bar", x: x(bin / BINS) + .5, width: Math.max(1, (width - left - right) / BINS - 1), y: y(count), height: height - bottom - y(count),
    }) : null);
    const at = x(cut), end = cut > .65;
    const line = [s("line", { class: "line", x1: at, x2: at, y1: 0, y2: height - bottom }), s("text", { x: at + (end ? -5 : 5), y: 10, "text-anchor": end ? "end" : "start" }, `removed from ${short3(state.threshold)} →`)];
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...grid.flat(), ...bars.filter(Boolean), ...line);
    const slider = byId("threshold");  // its thumb, 16 px wide, moves under the axis
    for (const element of [slider, slider.nextElementSibling]) {
      element.style.width = `${width - left - right + 16}px`;
      element.style.marginLeft = `${left - 8}px`;
    }
  }

  function drawThreshold() {
    let count = 0, sum = 0;
    for (let edge = 0; edge < edges.count; edge++) if (isRemoved(edge)) { count++; sum += edges.main[edge]; }
    const expected = count && data.probability ? `; about ${whole.format(Math.round(sum))} of them (${percent(sum, count)}) are expected to be false` : "";
    byId("removed").textContent = `Suspicion of at least ${short3(state.threshold)}: ${plural(count, "edge")} (${percent(count, edges.count)})${expected}.`;
    if (document.activeElement !== byId("number")) byId("number").value = count;
    byId("threshold").setAttribute("aria-valuetext", byId("removed").textContent);
    byId("histogram").setAttribute("aria-label", `Histogram of the suspicion of ${plural(edges.count, "edge")}, on a logarithmic scale; ${whole.format(count)} at or above the threshold.`);
    byId("export-removed").disabled = !count;
    byId("export-kept").disabled = count === edges.count;
    drawHistogram();
  }

  // --- the neighbourhood of an edge --------------------------------------------------------------------------------

  const other = (edge, node) => edges.source[edge] === node ? edges.target[edge] : edges.source[edge];

  /** Both ends, their neighbours as far as there is room, and all edges between these nodes. */
  function neighbourhood(a, b, room) {
    const lists = [a, b].map((node) => {
      const found = new Map();
      for (let k = starts[node]; k < starts[node + 1]; k++) found.set(other(incident[k], node), incident[k]);
      found.delete(a);
      found.delete(b);
      return found;
    });
    const kept = new Map([[a, "a"], [b, "b"]]);
    const omitted = [a, b].map((node, side) => {
      const mine = lists[side], his = lists[1 - side];
      const order = [...mine.keys()].sort((x, y) => his.has(y) - his.has(x) || mine.get(x) - mine.get(y));
      for (const one of order.slice(0, room)) kept.set(one, his.has(one) ? "ab" : "ab"[side]);
      return { node, all: order.length, kept: Math.min(room, order.length) };
    });
    const links = new Map();
    for (const node of kept.keys()) {
      for (let k = starts[node]; k < starts[node + 1]; k++) {
        if (kept.has(other(incident[k], node))) links.set(incident[k], { edge: incident[k], source: edges.source[incident[k]], target: edges.target[incident[k]] });
      }
    }
    return { nodes: [...kept].map(([id, side]) => ({ id, side, end: id === a || id === b })), links: [...links.values()], omitted };
  }

  let drawing = null;

  function drawEdge() {
    const tab = state.chosen.missing >= 0 ? "missing" : "edges", table = tables[tab], i = state.chosen[tab];
    byId("edge-body").hidden = i < 0;
    drawing = null;
    if (i < 0) {
      byId("edge-title").textContent = edges.count ? "Choose an edge to see its neighbourhood" : "No edge to draw";
      return;
    }
    const a = table.source[i], b = table.target[i];
    byId("edge-title").replaceChildren(ids[a], h("span", { "aria-hidden": "true" }, tab === "edges" ? " — " : " ⋯ "), h("span", { class: "hide" }, " to "), ids[b]);
    const facts = table.scores.map(({ label, values }) => [label, fixed(values[i])]);
    facts.unshift(["rank", `${whole.format(table.rank[i])} of ${whole.format(tab === "edges" ? data.total : table.count)}`]);
    const items = facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
    for (const node of classOf ? [a, b] : []) {
      const sure = confidenceOf && Number.isFinite(confidenceOf[node]) ? ` ${fixed(confidenceOf[node], 2)}` : "";
      items.push(h("div", { class: "half" }, h("dt", {}, `class of ${middle(ids[node], 20)}${sure && ", confidence"}`), h("dd", {}, dot(classOf[node]), className(node), sure)));
    }
    if (tab === "edges" && layers) {
      const weights = Array.from({ length: layers + 1 }, (_, layer) => weight(i, layer)), most = edges.unit * 65535;
      const bars = h("span", { class: "spark", "aria-hidden": "true", style: `--count: ${weights.length}` }, weights.map((value) => h("i", { style: `height: ${100 * value / most}%` })));
      items.push(h("div", { class: "whole" }, h("dt", {}, "weight by layer"), h("dd", {}, bars, `${fixed(weights[0], 2)} given → ${fixed(weights[layers], 2)} after layer ${layers}`)));
    }
    byId("facts").replaceChildren(...items);

    const room = innerWidth <= 640 ? 10 : 16;
    drawing = { ...neighbourhood(a, b, room), tab, i, a, b };
    if (tab === "missing") drawing.links.push({ edge: -1, source: a, target: b });
    layOut();
    for (const id of ["before", "after"]) drawGraph(id);
    const codes = [...new Set(drawing.nodes.map((node) => classOf ? classOf[node.id] : undefined))].sort((x, y) => x - y);
    const keys = classOf ? codes.map((code) => h("li", {}, dot(code), code === NO_CLASS ? "no class" : classes[code])) : [];
    const line = (style) => s("svg", { class: "key", viewBox: "0 0 35 10", "aria-hidden": "true" }, s("line", { x1: 1, x2: 34, y1: 5, y2: 5, style }));
    keys.push(h("li", {}, line("stroke: var(--edge); stroke-width: 3"), "trusted"), h("li", {}, line("stroke: var(--false); stroke-width: 3"), "suspicious"),
      h("li", {}, line("stroke: var(--false); stroke-width: 2; stroke-dasharray: 1 5; stroke-linecap: round"), "removed"));
    if (tab === "missing") keys.push(h("li", {}, line("stroke: var(--c2); stroke-width: 3; stroke-dasharray: 5 5"), "missing"));
    byId("legend").replaceChildren(...keys);
    drawLayer();
  }

  /** Positions by d3-force, the ends apart from each other, the same in both drawings. */
  function layOut() {
    const { nodes, links } = drawing, svg = byId("before");
    const width = drawing.width = svg.clientWidth || 480, height = drawing.height = svg.clientHeight || 260;
    const side = { a: -1, b: 1, ab: 0 }, reach = Math.min(width, height) / 3;
    const simulation = d3.forceSimulation(nodes)
      .force("link", d3.forceLink(links.map(({ source, target }) => ({ source, target }))).id((node) => node.id).distance(reach * .75).strength(.25))
      .force("charge", d3.forceManyBody().strength(-reach * 2.2))
      .force("collide", d3.forceCollide(14))
      .force("x", d3.forceX((node) => side[node.side] * reach * (node.end ? 1 : 1.5)).strength((node) => node.end ? 1 : .12))
      .force("y", d3.forceY(0).strength((node) => node.end ? 1 : .12))
      .stop();
    simulation.tick(250);
    const margin = { x: 34, top: 16, bottom: 24 };
    for (const [axis, from, to] of [["x", margin.x, width - margin.x], ["y", margin.top, height - margin.bottom]]) {
      const values = nodes.map((node) => node[axis]), low = Math.min(...values), high = Math.max(...values);
      const scale = Math.min(2, (to - from) / Math.max(1, high - low)), middle = (from + to) / 2;
      for (const node of nodes) node[axis] = middle + (node[axis] - (low + high) / 2) * scale;
    }
    const at = new Map(nodes.map((node) => [node.id, node]));
    drawing.links = links.map((link) => ({ ...link, from: at.get(link.source), to: at.get(link.target) }));
    drawing.links.sort((x, y) => isChosen(x) - isChosen(y) || y.edge - x.edge);  // the chosen edge on top
  }
  const isChosen = (link) => link.edge === (drawing.tab === "edges" ? drawing.i : -1);

  /** Names that would lie on others are shown only under the pointer. */
  function placeNames() {
    const taken = [];
    const wanted = [...drawing.nodes].sort((x, y) => y.end - x.end);
    for (const node of wanted) {
      const half = middle(ids[node.id], 12).length * (node.end ? 3.7 : 3.1) + 2, y = node.y + (node.end ? 21 : 17);
      const mine = { left: node.x - half, right: node.x + half, top: y - 9, bottom: y + 3 };
      const hit = (one) => mine.left < one.right && mine.right > one.left && mine.top < one.bottom && mine.bottom > one.top;
      const covered = drawing.nodes.some((one) => one !== node && hit({ left: one.x - 6, right: one.x + 6, top: one.y - 6, bottom: one.y + 6 }));
      const outside = mine.left < 0 || mine.right > drawing.width;
      node.quiet = !node.end && (taken.some(hit) || covered || outside);
      node.anchor = outside ? (mine.left < 0 ? "start" : "end") : "middle";
      if (!node.quiet) taken.push(mine);
    }
  }

  function drawGraph(id) {
    const svg = d3.select(`#${id}`).attr("viewBox", `0 0 ${drawing.width} ${drawing.height}`);
    svg.selectAll("*").remove();
    const links = svg.append("g").selectAll("g").data(drawing.links).join("g");
    links.append("line").attr("class", "link");
    links.append("line").attr("class", "hit");
    links.on("mouseenter", (_, link) => say(linkText(link))).on("mouseleave", () => say(""))
      .on("click", (_, link) => { if (link.edge >= 0) pick(link.edge); });
    const nodes = svg.append("g").selectAll("g").data(drawing.nodes).join("g")
      .attr("class", (node) => node.end ? "node end" : "node");
    nodes.append("path").attr("d", (node) => shape(classOf?.[node.id])).style("fill", (node) => colour(classOf?.[node.id]))
      .attr("transform", (node) => `scale(${node.end ? 8 : 5.5})`).attr("vector-effect", "non-scaling-stroke");
    nodes.append("text").attr("y", (node) => node.end ? 21 : 17).text((node) => middle(ids[node.id], 12));
    nodes.on("mouseenter", (event, node) => { event.currentTarget.classList.add("over"); say(`${ids[node.id]}${classOf ? `: ${described(node.id)}` : ""}; ${plural(starts[node.id + 1] - starts[node.id], "edge")}. Click to list them.`); })
      .on("mouseleave", (event) => { event.currentTarget.classList.remove("over"); say(""); })
      .on("click", (event, node) => { if (!event.defaultPrevented) find(ids[node.id]); });
    nodes.call(d3.drag().clickDistance(3).on("drag", (event, node) => {
      node.x = Math.max(10, Math.min(drawing.width - 10, event.x));
      node.y = Math.max(10, Math.min(drawing.height - 10, event.y));
      move();
    }));
    move();
  }

  function move() {
    placeNames();
    for (const id of ["before", "after"]) {
      const svg = d3.select(`#${id}`);
      svg.selectAll("line").attr("x1", (link) => link.from.x).attr("y1", (link) => link.from.y).attr("x2", (link) => link.to.x).attr("y2", (link) => link.to.y);
      svg.selectAll(".node").attr("transform", (node) => `translate(${node.x},${node.y})`).classed("quiet", (node) => node.quiet)
        .select("text").style("text-anchor", (node) => node.anchor);
    }
  }

  const linkText = (link) => link.edge < 0
    ? `${ids[link.source]} and ${ids[link.target]}: not joined; plausibility ${fixed(missing.main[drawing.i])}.`
    : `${ids[link.source]} — ${ids[link.target]}: suspicion ${fixed(edges.main[link.edge])}, rank ${whole.format(edges.rank[link.edge])}${layers ? `, last weight ${fixed(weight(link.edge, layers), 2)}` : ""}.`;

  /** What stands under the drawings when nothing is pointed at. */
  function hintText() {
    const left = drawing.omitted.filter(({ all, kept }) => kept < all)
      .map(({ node, all, kept }) => `${kept} of the ${whole.format(all)} other neighbours of ${middle(ids[node], 24)}`);
    const cut = left.length ? ` Shown: ${left.join(" and ")}, common ones first, then by suspicion.` : "";
    return `Colour of a line: suspicion. Width: weight. Point at a node or an edge; click it to go there; drag to move.${cut}`;
  }
  const say = (text) => { byId("hint").textContent = text || hintText(); };

  /** Both drawings at the chosen layer: 0 is the given graph, the last step the cleaned one. */
  function drawLayer() {
    const slider = byId("layer"), last = layers + 1, { layer } = state;
    const cleaned = layer === last;
    const name = cleaned ? `Cleaned: suspicion below ${short3(state.threshold)} kept` : layer ? `Weights after layer ${layer} of ${layers}` : "As given";
    Object.assign(slider, { max: last, value: layer });
    slider.setAttribute("aria-valuetext", name);
    byId("after-title").textContent = name;
    const wide = Math.max(1, slider.clientWidth - 16) / last, step = Math.ceil(20 / wide);
    const label = (k) => k === 0 ? "given" : k === last ? "cleaned" : k % step === 0 && k * wide > 38 && (last - k) * wide > 56 ? String(k) : "";
    byId("ticks").replaceChildren(...Array.from({ length: last + 1 }, (_, k) => h("span", { class: k === layer ? "on" : null, style: `left: ${100 * k / last}%` }, label(k))));
    if (!drawing) return;
    const most = edges.unit * 65535;
    for (const [id, at] of [["before", 0], ["after", layer]]) {
      let absent = 0;
      const clean = at === last;
      d3.select(`#${id}`).selectAll(".link").each(function (link) {
        const suspicion = link.edge < 0 ? 0 : edges.part(edges.main[link.edge]);
        const value = link.edge < 0 ? (clean ? 1 : 0) : weight(link.edge, clean ? 0 : at);
        const gone = link.edge >= 0 && (clean ? isRemoved(link.edge) : value <= .002 * most)  // too thin to draw;
        if (gone) absent++;
        const part = link.edge >= 0 && isRemoved(link.edge) ? 70 + 30 * suspicion : 40 * suspicion;  // a step at the threshold
        const mixed = link.edge < 0 ? "var(--c2)" : `color-mix(in srgb, var(--false) ${part.toFixed(0)}%, var(--edge))`;
        this.style.stroke = mixed;
        this.style.strokeWidth = gone ? 1.5 : link.edge < 0 && !clean ? 1.5 : .6 + (isChosen(link) ? 5 : 3) * value / most;
        this.style.opacity = gone ? .55 : isChosen(link) ? 1 : .8;
        this.setAttribute("class", `link${gone ? " gone" : ""}${link.edge < 0 && !clean ? " absent" : ""}${isChosen(link) ? " chosen" : ""}`);
      });
      const title = at === 0 ? "as given" : clean ? "cleaned" : `after layer ${at}`;
      byId(id).setAttribute("aria-label", `Neighbourhood of ${ids[drawing.a]} and ${ids[drawing.b]}, ${title}: ${plural(drawing.nodes.length, "node")}, ${plural(drawing.links.filter((link) => link.edge >= 0).length, "edge")}, ${absent} of weight 0 or removed.`);
    }
    say("");
    if (byId("drawn").open) drawList();
  }

  function drawList() {
    if (!drawing) return;
    const found = drawing.links.filter((link) => link.edge >= 0).sort((x, y) => x.edge - y.edge);
    const names = ["source", "target", "suspicion", ...(layers ? ["given", ...edges.layers.map((_, k) => `layer ${k + 1}`)] : []), "cleaned"];
    const rows = found.map(({ edge }) => h("tr", {},
      h("td", { class: "text" }, ids[edges.source[edge]]), h("td", { class: "text" }, ids[edges.target[edge]]), h("td", {}, fixed(edges.main[edge])),
      layers ? Array.from({ length: layers + 1 }, (_, layer) => h("td", {}, fixed(weight(edge, layer), 2))) : [], h("td", {}, isRemoved(edge) ? "removed" : "kept")));
    byId("drawn").lastElementChild.replaceChildren(h("table", {}, h("thead", {}, h("tr", {}, names.map((name, k) => h("th", { scope: "col", class: k < 2 ? "text" : null }, name)))), h("tbody", {}, rows)));
  }

  // --- moving through the page -------------------------------------------------------------------------------------

  function showTab(tab) {
    state.tab = tab;
    for (const name of ["edges", "missing"]) {
      byId(`tab-${name}`).setAttribute("aria-selected", name === tab);
      byId(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
    }
    byId("panel").setAttribute("aria-labelledby", `tab-${tab}`);
    for (const id of ["low", "high"]) byId(id).placeholder = fixed(current()[id], 2);
    byId("low-label").textContent = tab === "edges" ? "Suspicion from" : "Plausibility from";
    body.replaceChildren();
    drawHead();
    filter();
  }

  /** Choose an edge of the drawing, in the table too if its rows have it. */
  function pick(edge) {
    if (state.tab !== "edges") showTab("edges");
    choose("edges", edge, false);
    const place = shown.indexOf(edge);
    if (place >= 0) box.scrollTop = Math.max(0, (place - 3) * rowHeight);
  }

  function find(id) {
    byId("search").value = id;
    filter();
    if (matchMedia("(max-width: 1000px)").matches) byId("list").scrollIntoView({ block: "start" });
  }

  const filters = ["low", "high", "confidence", "class", "between", "search"];
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const id of filters) byId(id).addEventListener("input", filter);
  byId("sort").addEventListener("change", () => {
    const [column, sign] = byId("sort").value.split(" ");
    state.sort[state.tab] = { column, sign: Number(sign) };
    drawHead();
    filter();
  });
  byId("reset").addEventListener("click", () => {
    for (const id of filters) byId(id).value = "";
    state.sort[state.tab] = { column: "rank", sign: 1 };
    drawHead();
    filter();
  });
  for (const name of ["edges", "missing"]) {
    byId(`tab-${name}`).addEventListener("click", () => showTab(name));
    byId(`tab-${name}`).addEventListener("keydown", (event) => {
      if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
      const to = event.key === "Home" ? "edges" : event.key === "End" ? "missing" : name === "edges" ? "missing" : "edges";
      event.preventDefault();
      showTab(to);
      byId(`tab-${to}`).focus();
    });
    byId(`tab-${name}`).querySelector(".count").textContent = whole.format(tables[name].count);
  }
  byId("threshold").addEventListener("input", () => {
    state.threshold = byId("threshold").valueAsNumber;
    soonThreshold();
  });
  // The most suspicious edges, so many: the threshold is the suspicion of the last of them. Equal ones go together.
  byId("number").addEventListener("input", () => {
    const number = Math.min(edges.count, Math.max(0, Math.round(byId("number").valueAsNumber) || 0));
    const order = ordered(edges, { column: "suspicion", sign: -1 });
    state.threshold = number ? edges.main[order[number - 1]] : edges.high + 1e-6;
    byId("threshold").value = state.threshold;
    soonThreshold();
  });
  byId("number").addEventListener("change", drawThreshold);
  byId("number").addEventListener("blur", drawThreshold);
  let moving = false;
  function soonThreshold() {
    if (!moving) { moving = true; requestAnimationFrame(() => { moving = false; drawThreshold(); drawLayer(); }); }
  }
  byId("layer").addEventListener("input", () => { stop(); state.layer = byId("layer").valueAsNumber; drawLayer(); });
  let playing = 0;
  function stop() {
    clearInterval(playing);
    playing = 0;
    byId("play").textContent = "▶";
    byId("play").setAttribute("aria-label", "Play the layers");
  }
  byId("play").addEventListener("click", () => {
    if (playing) { stop(); return; }
    state.layer = 0;
    drawLayer();
    byId("play").textContent = "❚❚";
    byId("play").setAttribute("aria-label", "Pause");
    playing = setInterval(() => {
      state.layer++;
      drawLayer();
      if (state.layer > layers) stop();
    }, layers > 16 ? 250 : 600);
  });
  byId("drawn").addEventListener("toggle", drawList);

  // --- CSV ---------------------------------------------------------------------------------------------------------

  /** A field of a CSV file. A text that a spreadsheet would take for a formula gets an apostrophe in front. */
  function field(value) {
    if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(6))) : "";
    const formula = /^[=\t\r＝＋－＠]/.test(value) || /^[+\-@](?![\w.]*$)/.test(value);
    const text = formula ? `'${value}` : value;
    return /[",\n\r]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function csv(table, rows) {
    const classNamed = (node) => !classOf || classOf[node] === NO_CLASS ? "" : classes[classOf[node]];
    const columns = [["rank", (i) => table.rank[i]], ["source", (i) => ids[table.source[i]]], ["target", (i) => ids[table.target[i]]]];
    for (const { name, values } of table.scores) columns.push([name, (i) => values[i]]);
    if (table.given) columns.push(["weight", (i) => table.given[i]]);
    for (const { name, values } of table.layers) columns.push([name, (i) => Number((values[i] * table.unit).toPrecision(4))]);
    for (const end of ["source", "target"]) {
      if (classOf) columns.push([`class_${end}`, (i) => classNamed(table[end][i])]);
      if (confidenceOf) columns.push([`confidence_${end}`, (i) => confidenceOf[table[end][i]]]);
    }
    const lines = [columns.map(([name]) => field(name)).join(",")];
    for (const i of rows) lines.push(columns.map(([, value]) => field(value(i))).join(","));
    return `${lines.join("\r\n")}\r\n`;
  }

  function download(name, table, rows) {
    const link = h("a", { download: name, href: URL.createObjectURL(new Blob([csv(table, rows)], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  const every = (keep) => Uint32Array.from({ length: edges.count }, (_, i) => i).filter(keep);
  byId("export").addEventListener("click", () => download(state.tab === "edges" ? "edges.csv" : "missing-edges.csv", current(), shown));
  byId("export-removed").addEventListener("click", () => download("removed-edges.csv", edges, every(isRemoved)));
  byId("export-kept").addEventListener("click", () => download("kept-edges.csv", edges, every((edge) => !isRemoved(edge))));

  // --- start -------------------------------------------------------------------------------------------------------

  const nodesOfEdges = starts.reduce((count, start, node) => count + (node < ids.length && starts[node + 1] > start ? 1 : 0), 0);
  const part = data.total > edges.count ? `The ${whole.format(edges.count)} most suspicious of ${plural(data.total, "edge")}` : plural(edges.count, "edge");
  const proposed = missing.count ? `; ${plural(missing.count, "missing edge")} proposed` : "";
  byId("summary").textContent = `${part} between ${plural(nodesOfEdges, "node")}${proposed}.${data.probability ? " Suspicion is the estimated probability that an edge is false." : ""}`;
  byId("class").replaceChildren(h("option", { value: "" }, "any"), ...classes.map((name, code) => h("option", { value: code }, name)));
  for (const [name, has] of [["classes", classOf], ["confidence", confidenceOf]]) {
    for (const element of document.querySelectorAll(`.of-${name}`)) element.hidden = !has;
  }
  Object.assign(byId("threshold"), { min: edges.low, max: edges.high, step: data.probability ? .01 : (edges.high - edges.low) / 200, value: state.threshold });
  const axis = document.querySelector(".axis");
  axis.firstElementChild.textContent = fixed(edges.low, edges.low ? 2 : 0);
  axis.lastElementChild.textContent = fixed(edges.high, edges.high === 1 ? 0 : 2);
  const measure = () => { rowHeight = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 32; };
  measure();
  showTab("edges");
  drawThreshold();
  drawEdge();
  let size = innerWidth;
  addEventListener("resize", () => {
    drawRows();
    if (innerWidth === size) return;
    size = innerWidth;
    measure();
    drawRows();
    drawHistogram();
    drawEdge();
  });
})();
