"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const state = { table: "", dataset: "", metric: "", rule: "", group: "", filter: "", story: "", attack: "", measure: "auc", hidden: new Set(), graph: {}, sort: {}, paper: false, everywhere: false };

  // --- elements: text is only ever set as text ------------------------------------------------------------------

  function make(space, tag, attributes, children) {
    const element = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }
  const h = (tag, attributes, ...children) => make("http://www.w3.org/1999/xhtml", tag, attributes, children);
  const s = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

  // --- numbers as text ------------------------------------------------------------------------------------------

  const fixed = (value, digits) => value === null ? "not a number" : value.toFixed(digits).replace("-", "−");
  const signed = (value, digits) => value === null ? "not a number" : (value >= 0 ? "+" : "") + fixed(value, digits);
  const figure = ([mean, std], digits) => fixed(mean, digits) + (mean === null || std === null ? "" : ` ± ${std.toFixed(digits)}`);
  const short = (value) => value === null ? "not a number" : Number(value.toPrecision(4)).toString().replace("-", "−");
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  function duration(seconds) {
    if (seconds < 120) return `${seconds.toFixed(1)} s`;
    return seconds < 7200 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
  }

  // --- selection --------------------------------------------------------------------------------------------------

  const table = () => data.tables.find((one) => one.name === state.table);
  const ruleText = () => `settings chosen on ${state.rule}`;
  const line = (row, dataset = state.dataset) => table().cells[state.rule][dataset][row.name];
  const wanted = (text) => state.filter.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
  const measured = (one, dataset) => Object.values(one.cells).some((of) => Object.values(of[dataset]).flat().some((cell) => cell.ours));

  // --- rows: in groups, of which one or all are shown -------------------------------------------------------------

  const MAIN = "main", ALL = "all", FEW = 12;  // a table with more rows than this opens with the main ones
  const inGroup = (row) => state.group === ALL || (state.group === MAIN ? data.story.rows.includes(row.name) : row.group === state.group);
  const has = (row, dataset = state.dataset) => line(row, dataset).some((cell) => cell.ours || cell.paper);
  const shownRows = () => table().rows.filter(inGroup);
  function groupsOf({ rows }) {
    const groups = Object.keys(data.groups).filter((name) => rows.some((row) => row.group === name));
    if (groups.length < 2) return [ALL];
    return [...(rows.some((row) => data.story.rows.includes(row.name)) ? [MAIN] : []), ALL, ...groups];
  }
  const groupLabel = (name) => ({ [MAIN]: "main models", [ALL]: "all" })[name] || data.groups[name];

  // The main rows have colours of their own, the others the free colours of their group. A row and its frozen twin share
  // colour and marker, the same in every table; the twin is dashed and hollow.
  const MAIN_COLOURS = [0, 3, 1, 6, 7, 2];
  const looks = {};
  const everyRow = data.tables.flatMap((one) => one.rows);
  data.story.rows.forEach((name, i) => { looks[name] = { colour: MAIN_COLOURS[i % MAIN_COLOURS.length], strong: false, frozen: false }; });
  looks[data.story.rows[data.story.rows.length - 1]].floor = true;
  for (const row of everyRow) {
    if (!(row.name in looks)) {
      const same = everyRow.filter((one) => one.group === row.group).map((one) => looks[one.name]).filter((look) => look && !look.frozen);
      const free = [...MAIN_COLOURS, 4, 5].sort().filter((colour) => !same.some((look) => look.colour === colour));
      looks[row.name] = { colour: free.length ? free[0] : same.length % 8, strong: false, frozen: false };
    }
    looks[row.name].strong ||= Boolean(row.twin);
    if (row.twin) looks[row.twin] = { colour: looks[row.name].colour, strong: false, frozen: true };
  }

  function options(select, entries, chosen) {
    select.replaceChildren(...entries.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  }

  /** Keep each selected option if it still exists, otherwise take the first. */
  function updateControls() {
    const pick = (name, possible) => { if (!possible.includes(state[name])) state[name] = possible[0]; };
    const names = data.tables.map((one) => one.name);
    const full = data.tables.filter((one) => one.datasets.some((dataset) => measured(one, dataset))).map((one) => one.name);
    if (!names.includes(state.table)) state.table = full[0] || names[0];
    const { datasets, figure: own, rules, cells } = table();
    if (!datasets.includes(state.dataset)) state.dataset = datasets.find((dataset) => measured(table(), dataset)) || datasets[0];
    pick("rule", rules);
    const found = new Set(Object.values(cells[state.rule]).flatMap((of) => Object.values(of).flat()).flatMap((cell) => Object.keys(cell.ours || {})));
    const metrics = [own, ...Object.keys(data.metrics).filter((name) => name !== own && found.has(name))];
    pick("metric", metrics);
    const groups = groupsOf(table());
    if (!groups.includes(state.group)) state.group = table().rows.filter((row) => has(row)).length > FEW ? groups[0] : ALL;
    options(byId("group"), groups.map((name) => [name, groupLabel(name)]), state.group);
    byId("group-label").hidden = groups.length < 2;
    options(byId("table"), data.tables.map((one) => [one.name, one.title]), state.table);
    options(byId("dataset"), datasets.map((name) => [name, name]), state.dataset);
    options(byId("metric"), metrics.map((name) => [name, data.metrics[name].label]), state.metric);
    options(byId("rule"), rules.map((rule) => [rule, rule]), state.rule);
    byId("rule-label").hidden = rules.length < 2;
  }

  // --- tables ---------------------------------------------------------------------------------------------------

  /** columns: {label, kind: "text" | "number" | "prose"}; rows: lists of {text or node, value}, the first of which heads its row. */
  function drawTable(id, caption, columns, rows, empty) {
    const place = byId(id);
    const shown = rows.filter((row) => wanted(row[0].find || row[0].text));
    if (!shown.length) {
      place.replaceChildren(h("p", { class: "empty" }, rows.length ? `No model name contains “${state.filter}”.` : empty));
      return;
    }
    const sort = state.sort[id];
    if (sort && columns[sort.column]) {
      const of = (row) => row[sort.column].value ?? row[sort.column].text;
      shown.sort((a, b) => {
        const [x, y] = [of(a), of(b)];
        if (x === null || y === null || x === "" || y === "") return (y !== null && y !== "") - (x !== null && x !== "");  // missing values come last
        return sort.sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
      });
    }
    function toggleSort(column) {
      const first = columns[column].kind === "number" ? -1 : 1;
      if (!sort || sort.column !== column) state.sort[id] = { column, sign: first };
      else if (sort.sign === first) state.sort[id] = { column, sign: -first };
      else delete state.sort[id];
      render();
      byId(id).querySelectorAll(".sort")[column].focus({ preventScroll: true });
    }
    const heads = columns.map(({ label, kind }, column) => {
      const order = sort && sort.column === column ? (sort.sign > 0 ? "ascending" : "descending") : null;
      const button = h("button", { type: "button", class: "sort", onclick: () => toggleSort(column) }, label);
      return h("th", { scope: "col", class: kind === "number" ? null : "text", "aria-sort": order }, button);
    });
    const cell = (entry, column) => entry.node
      || h("td", { class: columns[column].kind === "number" ? null : columns[column].kind }, entry.text);
    const label = (element, column) => { element.dataset.label = columns[column].label; return element; };  // for a narrow window
    const body = shown.flatMap((row, r) => {
      const [first, ...rest] = row;
      const opens = !sort && row.group && (r === 0 || shown[r - 1].group !== row.group);
      return [
        ...(opens ? [h("tr", { class: "group" }, h("th", { colspan: columns.length, scope: "colgroup" }, h("span", {}, row.group)))] : []),
        h("tr", {}, h("th", { scope: "row" }, first.text), rest.map((entry, i) => label(cell(entry, i + 1), i + 1))),
      ];
    });
    const whole = h("table", { class: columns.some(({ kind }) => kind === "prose") ? "cards" : null }, h("caption", {}, h("span", {}, caption)), h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body));
    const before = place.firstElementChild ? place.firstElementChild.scrollLeft : 0;
    place.replaceChildren(h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, whole));
    place.firstElementChild.scrollLeft = before;
  }

  const change = (difference, better, digits) => h("span", { class: `below ${better * difference > 0 ? "up" : better * difference < 0 ? "down" : ""}` }, signed(difference, digits));

  /** The accuracy of the mean probability of the trials. */
  function ensembleOf(cell, digits) {
    const found = cell.ensemble && cell.ensemble[state.metric];
    return found === undefined || found === null ? null : h("span", { class: "below" }, `ensemble ${fixed(found, digits)}`);
  }

  function drawResults() {
    const { title, columns, unit, figure: own } = table();
    const { digits, better, label } = data.metrics[state.metric];
    const groups = Object.keys(data.groups);
    const rows = shownRows().filter((row) => has(row));
    if (state.group === ALL) rows.sort((a, b) => groups.indexOf(a.group) - groups.indexOf(b.group));
    const hidden = table().rows.length - rows.length;
    byId("results-title").textContent = title;
    byId("results-intro").textContent = table().intro;
    byId("results-note").textContent = state.metric === own || table().intro ? "" : "The paper does not report this metric.";
    const group = (row, entries) => Object.assign(entries, { group: state.group === ALL && data.groups[row.group] });
    const body = rows.map((row) => {
      const cells = line(row);
      const ours = cells.filter((cell) => cell.ours);
      const entries = cells.map((cell, i) => {
        const found = cell.ours && cell.ours[state.metric];
        const paper = state.metric === own && cell.paper;
        if (!found) return {
          value: paper ? paper[0] : null,
          node: paper ? h("td", { class: "paper-only" }, h("span", { class: "tag" }, "paper"), figure(paper, digits)) : h("td", { class: "empty" }, "–"),
        };
        const mark = ["", "best", "second"][found[2]];
        const button = h("button", { type: "button", class: "cell", onclick: () => showDetail(row, i) },
          h("span", { class: "ours" }, fixed(found[0], digits), found[1] === null ? null : h("span", { class: "std" }, ` ± ${found[1].toFixed(digits)}`),
            mark ? h("span", { class: "hide" }, mark === "best" ? " best" : " second best") : null),
          ensembleOf(cell, digits),
          paper ? h("span", { class: "below" }, `paper ${figure(paper, digits)}`) : null,
          paper ? change(cell.difference, better, digits) : null,
          cell.diverged ? h("span", { class: "below diverged" }, cell.diverged) : null);
        return { value: found[0], node: h("td", { class: `figure ${mark}` }, button) };
      });
      const trials = ours.map((cell) => cell.trials), tried = ours.map((cell) => cell.tried);
      const range = (counts) => counts.length ? [...new Set([Math.min(...counts), Math.max(...counts)])].join(" to ") : "";
      const searches = [...new Set(ours.map((cell) => cell.search))].join(", ");
      return group(row, [{ text: row.label, find: `${row.label} ${row.name}` }, ...entries,
        { text: range(trials), value: trials.length ? Math.min(...trials) : null },
        { node: h("td", {}, range(tried), tried.length && searches !== "none" ? h("span", { class: "below" }, ` ${searches} search`) : null), value: tried.length ? Math.max(...tried) : null }]);
    });
    const number = (text) => ({ label: text, kind: "number" });
    drawTable("results-table", `${state.dataset}: ${label}, mean ± sample standard deviation; ${ruleText()}. Columns: ${unit}.${hidden ? ` ${body.length} of ${table().rows.length} models.` : ""}`,
      [{ label: "model", kind: "text" }, ...columns.map(number), number("trials"), number("tried")], body, "The store has no results of these models for this dataset.");
  }

  function drawGain() {
    const { columns, figure: own } = table();
    const rows = shownRows();
    const { digits, better, label } = data.metrics[own];
    const compared = (text, row, of) => line(row).some(of) ? [[
      { text, find: `${text} ${row.name}` },
      ...line(row).map((cell) => {
        const gain = of(cell);
        return gain
          ? { value: gain.difference, node: h("td", { title: `${gain.trials} trials` }, change(gain.difference, better, digits), h("span", { class: "below" }, ` ${gain.p}`)) }
          : { value: null, text: "" };
      }),
    ]] : [];
    const draw = (id, body, empty) => drawTable(id, `${state.dataset}: difference in ${label}.`,
      [{ label: "model", kind: "text" }, ...columns.map((rate) => ({ label: rate, kind: "number" }))], body, empty);
    draw("gain-table", rows.filter((row) => row.twin).flatMap((row) => compared(row.label, row, (cell) => cell.gain)),
      "The store has none of these models and its frozen twin with equal seeds for this dataset.");
    const body = rows.flatMap((row) => row.against.flatMap(([name, other]) => compared(`${row.label} − ${other}`, row, (cell) => cell.compared && cell.compared[name])));
    byId("compared").hidden = !body.length;
    if (body.length) draw("compared-table", body, "");
  }

  function drawPublished() {
    const shown = data.published.filter((one) => one.table === state.table);
    byId("published").hidden = !shown.length;
    if (!shown.length) return;
    const several = new Set(shown.map((one) => one.rule)).size > 1;
    const body = shown.map((one) => [
      { text: one.dataset, find: `${one.dataset} ${one.row} asgnn` }, { text: one.column, value: one.rate }, ...(several ? [{ text: one.rule }] : []),
      { text: figure(one.ours, one.digits), value: one.ours[0] },
      { text: one.ensemble === null ? "" : fixed(one.ensemble, one.digits), value: one.ensemble },
      { text: one.paper[0] === null ? "" : figure(one.paper, one.digits), value: one.paper[0] },
      { text: fixed(one.best, one.digits), value: one.best }, { text: one.by },
      { value: one.difference, node: h("td", {}, change(one.difference, 1, one.digits)) },
    ]);
    const column = (kind) => (label) => ({ label, kind });
    drawTable("published-table", `${shown[0].row}, all datasets of this table; best published: the highest accuracy found for the graph.`, [
      column("text")("dataset"), column("number")("rate"), ...(several ? [column("text")("rule")] : []),
      ...["ours", "ensemble", "paper’s ASGNN", "best published"].map(column("number")), column("text")("by"), column("number")("difference"),
    ], body, "");
  }

  function drawGenerality() {
    const found = data.generality;
    byId("generality").hidden = !found;
    if (!found) return;
    byId("generality-title").textContent = found.title;
    byId("generality-intro").textContent = found.intro;
    byId("generality-assumed").replaceChildren(...found.assumed.map((text) => h("li", {}, text)));
    const body = found.lines.map((one) => {
      const top = Math.max(...Object.values(one.cells).map(([middle]) => middle));
      return [
        { text: one.metric.includes("AUC") ? `${one.graph} (ROC-AUC)` : one.graph },
        { value: one.difference, node: one.difference === null ? h("td", {}) : h("td", {}, change(one.difference, 1, 2), h("span", { class: "below" }, ` ${one.best}`), ...(one.below ? [h("br"), h("span", { class: "below diverged" }, "more than 1 below")] : [])) },
        { value: one.portfolio, node: one.portfolio === null ? h("td", {}) : h("td", {}, change(one.portfolio, 1, 2), one.portfolioBelow ? h("span", { class: "below diverged" }, " below") : null) },
        { value: one.lam ? one.lam[0] : null, text: one.lam ? figure(one.lam, 2) : "" },
        ...found.rows.map(({ name }) => {
          const cell = one.cells[name];
          return cell ? { value: cell[0], node: h("td", { class: cell[0] === top ? "best" : null, title: cell[2] }, h("span", { class: "ours" }, fixed(cell[0], 2), cell[1] === null ? null : h("span", { class: "std" }, ` ± ${cell[1].toFixed(2)}`))) } : { text: "–", value: null };
        }),
      ];
    });
    const number = (label) => ({ label, kind: "number" });
    drawPlain("generality-table", "Test accuracy, % (ROC-AUC where it says so), mean ± sample standard deviation over the trials.", [
      { label: "graph", kind: "text" }, number("ASGNN − best other"), number("portfolio − GCN"), number("learned λ"), ...found.rows.map((row) => number(row.label)),
    ], body, "");
  }

  function showDetail(row, i) {
    const { columns, unit } = table();
    const cell = line(row)[i];
    const entries = [
      ["settings", cell.settings],
      ["chosen by", cell.search === "none" ? "no search" : `${cell.rule}, among ${cell.tried} settings of the ${cell.search} search`],
      ["trials", cell.trials === cell.wanted ? `${cell.trials}` : `${cell.trials} of ${cell.wanted}; the others are not in the store`],
      ...(cell.diverged ? [["divergence", cell.diverged]] : []),
      ...Object.entries(cell.ours).map(([name, found]) => [data.metrics[name].label, figure(found, data.metrics[name].digits)]),
      ...Object.entries(cell.ensemble).map(([name, found]) => [`${data.metrics[name]?.label || name}, mean probability of the trials`, fixed(found, 2)]),
      ...(cell.gain ? [["gain over a frozen structure", `${signed(cell.gain.difference, data.metrics[table().figure].digits)}, ${cell.gain.p}, ${cell.gain.trials} trials`]] : []),
      ["time of the trials", duration(cell.seconds)],
      ["machine, version", cell.machines.join("; ")],
    ];
    byId("detail-title").textContent = `${row.label}, ${state.dataset}, ${columns[i]} ${unit}`;
    byId("detail-list").replaceChildren(...entries.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
    byId("detail").showModal();
    byId("detail-title").focus();  // not the button at the end: a long dialog would scroll down
  }

  function drawWorse() {
    const here = (one) => one.table === state.table && one.dataset === state.dataset && (one.rule === state.rule || one.rule === "none");
    const shown = data.worse.filter((one) => state.everywhere || here(one));
    const places = state.everywhere ? [["table", (one) => one.table], ["dataset", (one) => one.dataset], ["rule", (one) => one.rule]] : [];
    const body = shown.map((one) => [
      { text: one.row }, ...places.map(([, of]) => ({ text: of(one) })), { text: one.column, value: one.rate },
      { text: figure(one.ours, one.digits), value: one.ours[0] }, { text: figure(one.paper, one.digits), value: one.paper[0] },
      { text: signed(one.difference, one.digits), value: one.difference }, { text: one.explanation },
    ]);
    const column = (kind) => (label) => ({ label, kind });
    const columns = [...["model", ...places.map(([name]) => name)].map(column("text")), ...["rate", "ours", "paper", "difference"].map(column("number")), column("prose")("explanation")];
    const where = state.everywhere ? "in all tables and datasets" : `on ${state.dataset} in this table; ${ruleText()}`;
    drawTable("worse-table", `${shown.length} ${shown.length === 1 ? "cell" : "cells"} ${where}`, columns, body, `No such cell ${where}.`);
  }

  function drawSettings() {
    const { columns, rates } = table();
    const rows = shownRows();
    const body = rows.flatMap((row) => line(row).map((cell, i) => [cell, i]).filter(([cell]) => cell.ours).map(([cell, i]) => [
      { text: row.label, find: `${row.label} ${row.name}` }, { text: columns[i], value: rates[i] }, { text: cell.settings },
      { text: cell.search }, { text: `${cell.tried}`, value: cell.tried }, { text: duration(cell.seconds), value: cell.seconds },
    ]));
    drawTable("settings-table", `${state.dataset}; ${ruleText()}`, [
      { label: "model", kind: "text" }, { label: "rate", kind: "number" }, { label: "settings", kind: "prose" },
      { label: "search", kind: "text" }, { label: "tried", kind: "number" }, { label: "time of the trials", kind: "number" },
    ], body, "The store has no results for this dataset.");
  }

  function drawMachines() {
    const body = data.machines.map((one) => [
      { text: one.machine }, { text: one.version }, { text: `${one.trainings}`, value: one.trainings }, { text: duration(one.seconds), value: one.seconds },
    ]);
    const total = data.machines.reduce((sum, one) => sum + one.seconds, 0);
    drawPlain("machines-table", `Total: ${duration(total)}`, [
      { label: "machine", kind: "text" }, { label: "version of asgnn", kind: "text" }, { label: "trainings", kind: "number" }, { label: "time", kind: "number" },
    ], body, "");
  }

  // --- charts ---------------------------------------------------------------------------------------------------

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  const MARKERS = [
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-3.5,-3.5h7v7h-7z", "M0,-4.5l4.2,7.5h-8.4z", "M0,-5l5,5l-5,5l-5,-5z",
    "M0,4.5l4.2,-7.5h-8.4z", "M-4,-1.5h2.5v-2.5h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5z", "M-4.5,-1.5l4.5,-3.5l4.5,3.5l-1.8,5.5h-5.4z", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
  ];
  const colour = (look) => `var(--c${look.colour})`;
  const strokeOf = (look) => `stroke:${colour(look)};stroke-width:${look.strong ? 3 : 1.6}${look.frozen || look.floor ? ";stroke-dasharray:6 4" : look.dotted ? ";stroke-dasharray:1 4" : ""}`;
  const markerOf = (look) => `stroke:${colour(look)};stroke-width:1.4;fill:${look.frozen || look.dotted ? "var(--paper)" : colour(look)}`;

  function legend(entries, group) {
    const items = entries.map(({ name, label, look }) => h("li", {}, h("button", {
      type: "button", "aria-pressed": String(!state.hidden.has(`${group}:${name}`)), "data-name": name,
      onclick: (event) => {
        const key = `${group}:${name}`;
        if (!state.hidden.delete(key)) state.hidden.add(key);
        const list = event.currentTarget.closest("[id]").id;
        render();
        const again = byId(list)?.querySelector(`.legend button[data-name="${CSS.escape(name)}"]`);
        if (again) again.focus({ preventScroll: true });
      },
    }, s("svg", { viewBox: "-15 -6 30 12", "aria-hidden": "true" },
      s("path", { d: "M-15,0H15", style: strokeOf(look) }), look.plain || look.floor ? null : s("path", { d: MARKERS[look.colour], style: markerOf(look) })), label)));
    return h("ul", { class: "legend" }, items);
  }

  /** Axes, and a tooltip with `tooltip(i)` for the column nearest to the pointer or selected with the arrow keys. */
  function frame({ caption, note, xs, until, xLabels, xTitle, yTitle, low, high, height, width, band, tooltip, describe }) {
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    const yTicks = ticks(low - pad, high + pad, height > 240 ? 6 : 4);
    const bottom = Math.min(low - pad, yTicks[0] ?? low), top = Math.max(high + pad, yTicks[yTicks.length - 1] ?? high);
    const texts = yTicks.map((value) => Math.abs(value) >= 1e6 ? `${short(value / 1e6)}M` : Math.abs(value) >= 1e4 ? `${short(value / 1e3)}k` : short(value));
    const left = (yTitle ? 26 : 10) + 7 * Math.max(...texts.map((text) => text.length), 1), right = 12, above = 8, below = 40;
    const inset = band ? (width - left - right) / xs.length / 2 : 8;
    const [first, last] = [xs[0], until ?? xs[xs.length - 1]];
    const x = (value) => last === first ? (left + width - right) / 2 : left + inset + (value - first) / (last - first) * (width - left - right - 2 * inset);
    const y = (value) => above + (top - value) / (top - bottom) * (height - above - below);
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0", "aria-label": describe });
    yTicks.forEach((value, i) => svg.append(
      s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      s("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, texts[i])));
    xLabels.forEach(([value, text]) => svg.append(s("text", { x: x(value), y: height - below + 18, "text-anchor": "middle" }, text)));
    svg.append(s("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle" }, xTitle));
    if (yTitle) svg.append(s("text", { transform: `translate(11 ${(above + height - below) / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle));
    const guide = s("line", { class: "guide", y1: above, y2: height - below, visibility: "hidden" });
    const tip = h("div", { class: "tip", role: "status", hidden: true });
    svg.append(guide);
    let at = -1;
    const leave = () => { at = -1; tip.hidden = true; guide.setAttribute("visibility", "hidden"); };
    function show(i) {
      at = i;
      const rows = tooltip(i);
      if (!rows.length) { leave(); return; }
      guide.setAttribute("visibility", "visible");
      guide.setAttribute("x1", x(xs[i]));
      guide.setAttribute("x2", x(xs[i]));
      const [head, ...rest] = rows;
      tip.replaceChildren(h("strong", {}, head), ...rest.map(({ look, label, text }) => h("div", {},
        h("span", {}, h("span", { class: "swatch", style: `background:${colour(look)}` }), label), h("span", {}, text))));
      tip.hidden = false;
      const box = svg.getBoundingClientRect(), around = svg.parentElement.getBoundingClientRect();
      const px = x(xs[i]) / width * box.width, room = around.width;
      tip.style.left = `${Math.max(0, px + tip.offsetWidth + 14 > room ? px - tip.offsetWidth - 10 : px + 12)}px`;
      tip.style.top = `${box.top - around.top + above}px`;
    }
    const nearest = (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) / box.width * width;
      return xs.reduce((best, value, i) => Math.abs(x(value) - px) < Math.abs(x(xs[best]) - px) ? i : best, 0);
    };
    svg.addEventListener("pointermove", (event) => show(nearest(event)));
    svg.addEventListener("pointerdown", (event) => show(nearest(event)));
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) { event.preventDefault(); show(at < 0 ? (step > 0 ? 0 : xs.length - 1) : Math.min(xs.length - 1, Math.max(0, at + step))); }
      if (event.key === "Escape") leave();
    });
    const whole = h("figure", {}, caption ? h("figcaption", {}, caption, note ? h("small", {}, ` ${note}`) : null) : null, svg, tip);
    return { whole, svg, x, y, bounds: { above, base: height - below, left, right: width - right } };
  }

  /** The least and largest value of several charts, which then have the same scale. */
  function rangeOf(lines) {
    const all = lines.flatMap(({ values, bands }) => [...values, ...bands.flatMap(({ low, high }) => [...low, ...high])]).filter((value) => value !== null && value !== undefined);
    return all.length ? [Math.min(...all), Math.max(...all)] : null;
  }

  /** lines: {name, label, look, values, bands: [{low, high, opacity}], text(i)}; null breaks a line. */
  function lineChart({ lines, mark, range, ...axes }) {
    const all = lines.flatMap(({ values, bands }) => [...values, ...bands.flatMap(({ low, high }) => [...low, ...high])]).filter((value) => value !== null);
    if (!all.length) return null;
    const { xs } = axes;
    const [low, high] = range || [Math.min(...all), Math.max(...all)];
    const tooltip = (i) => {
      const here = lines.filter(({ values }) => values[i] !== null && values[i] !== undefined).sort((a, b) => b.values[i] - a.values[i]);
      return here.length ? [axes.head(i), ...here.map((one) => ({ look: one.look, label: one.label, text: one.text(i) }))] : [];
    };
    const { whole, svg, x, y, bounds } = frame({ ...axes, low, high, tooltip,
      describe: `${axes.yTitle} against ${axes.xTitle}: ${lines.map(({ label }) => label).join("; ")}. Use the arrow keys to read the values.` });
    if (mark && mark.at >= xs[0] && mark.at <= xs[xs.length - 1]) {
      const flip = x(mark.at) > (bounds.left + bounds.right) / 2;
      svg.append(s("line", { class: "trained", x1: x(mark.at), x2: x(mark.at), y1: bounds.above, y2: bounds.base }),
        s("text", { x: x(mark.at) + (flip ? -5 : 5), y: bounds.above + 10, "text-anchor": flip ? "end" : "start" }, mark.label));
    }
    const runs = (values) => values.reduce((found, value, i) => {
      if (value === null || value === undefined) found.push([]); else found[found.length - 1].push(i);
      return found;
    }, [[]]).filter((run) => run.length);
    const point = (i, value) => `${x(xs[i]).toFixed(1)},${y(value).toFixed(1)}`;
    for (const { look, bands } of lines) for (const { low, high, opacity } of bands) for (const run of runs(low)) {
      const outline = [...run.map((i) => point(i, high[i])), ...[...run].reverse().map((i) => point(i, low[i]))];
      svg.append(s("path", { class: "band", d: `M${outline.join("L")}Z`, style: `fill:${colour(look)};opacity:${opacity}` }));
    }
    for (const { look, values, name } of lines) for (const run of runs(values)) {
      svg.append(s("path", { class: "curve", "data-name": name, d: `M${run.map((i) => point(i, values[i])).join("L")}`, style: strokeOf(look) }));
      if (!look.plain && (!look.floor || run.length === 1)) svg.append(...run.map((i) => s("path", { d: MARKERS[look.colour], transform: `translate(${point(i, values[i])})`, style: markerOf(look) })));
    }
    return whole;
  }

  const hiddenIn = (group) => (one) => !state.hidden.has(`${group}:${one.name}`);
  const widthOf = (element, least) => Math.max(least, element.clientWidth || 640);
  /** As many columns as fit: the CSS grid, and the width of one. */
  function layout(place, least, most) {
    const count = Math.max(1, Math.min(most, Math.floor((place.clientWidth + 24) / (least + 24))));
    return [`repeat(${count}, minmax(0, 1fr))`, Math.max(260, (place.clientWidth - 24 * (count - 1)) / count)];
  }
  const nothing = (text) => h("p", { class: "empty" }, text);

  /** The lines of some rows of a table; `band` is the opacity of the bands, 0 for none. */
  function curvesOf({ of = table(), rule = state.rule, rows, dataset, metric = state.metric, paper = () => false, band = 0.09 }) {
    const { digits } = data.metrics[metric];
    return rows.flatMap((row) => {
      const cells = of.cells[rule][dataset][row.name], look = looks[row.name];
      const ours = cells.map((cell) => cell.ours && cell.ours[metric] || [null, null]);
      const edge = (sign) => ours.map(([middle, std]) => middle === null ? null : middle + sign * (std || 0));
      const found = [{ name: row.name, label: row.label, look, values: ours.map(([middle]) => middle),
        bands: band ? [{ low: edge(-1), high: edge(1), opacity: look.strong ? 0.16 : band }] : [], text: (i) => figure(ours[i], digits) }];
      if (paper(row) && metric === of.figure && cells.some((cell) => cell.paper)) found.push({
        name: row.name, label: `${row.label}, paper`, look: { ...look, strong: false, frozen: false, dotted: true },
        values: cells.map((cell) => cell.paper ? cell.paper[0] : null), bands: [], text: (i) => figure(cells[i].paper, digits) });
      return found.filter(({ values }) => values.some((value) => value !== null));
    });
  }

  const flipAxes = ({ columns, rates, unit }) => ({ xs: rates, xLabels: rates.map((at, i) => [at, columns[i]]), xTitle: unit, head: (i) => `${columns[i]} ${unit}` });

  /** The main models on every graph, all with the same scale, for one attack. */
  function drawStory() {
    const { tables, rows: names, paper } = data.story;
    if (!tables.includes(state.story)) state.story = tables[0];
    byId("story-table").closest(".pick").hidden = tables.length < 2;
    if (!tables.length) { byId("story-charts").replaceChildren(nothing("The store has no accuracies of the paper’s models.")); return; }
    const one = (name) => data.tables.find((of) => of.name === name);
    options(byId("story-table"), tables.map((name) => [name, one(name).unit]), state.story);
    const linesOf = (of, dataset) => {
      const rows = names.map((name) => of.rows.find((row) => row.name === name)).filter(Boolean);
      const of_ = { of, rule: of.rules[0], dataset, metric: of.figure, band: 0 };
      const printed = of.rows.filter((row) => row.name === paper);
      const theirs = curvesOf({ ...of_, rows: printed, paper: () => true }).filter(({ look }) => look.dotted)
        .map((curve) => ({ ...curve, name: "paper", label: "ASGNN, the paper’s figures", look: { colour: 0, dotted: true, wide: true } }));
      return [...curvesOf({ ...of_, rows }), ...theirs];
    };
    const every = tables.flatMap((name) => one(name).datasets.flatMap((dataset) => linesOf(one(name), dataset)));
    const visible = hiddenIn("story");
    const of = one(state.story), range = rangeOf(every.filter(visible));
    const known = of.datasets.filter((dataset) => linesOf(of, dataset).some(({ name }) => name !== "paper"));
    const entries = [...new Map(known.flatMap((dataset) => linesOf(of, dataset)).map((curve) => [curve.name, curve])).values()];
    const place = byId("story-charts");
    const [grid, width] = layout(place, 250, Math.min(4, known.length));
    const { label } = data.metrics[of.figure];
    byId("story-note").textContent = `${label[0].toUpperCase()}${label.slice(1)}, against ${of.unit}; settings chosen on ${of.rules[0]}. All charts have the same scale.`;
    byId("story-legend").replaceChildren(legend(entries, "story"));
    place.style.gridTemplateColumns = grid;
    place.replaceChildren(...known.map((dataset) => lineChart({ ...flipAxes(of), yTitle: "", lines: linesOf(of, dataset).filter(visible), range, width, height: width < 340 ? 300 : 250, caption: dataset })).filter(Boolean));
  }

  function drawCurves() {
    const { datasets } = table(), rows = shownRows();
    const axes = { ...flipAxes(table()), yTitle: data.metrics[state.metric].label };
    const visible = hiddenIn("rows");
    const place = byId("curves"), small = byId("curves-all");
    const linesOf = (dataset) => curvesOf({ rows, dataset, paper: () => state.paper });
    const lines = linesOf(state.dataset), range = rangeOf(datasets.flatMap(linesOf).filter(visible));
    const names = rows.filter((row) => lines.some(({ name }) => name === row.name)).map((row) => ({ name: row.name, label: row.label, look: looks[row.name] }));
    const width = widthOf(place, 280);
    const chart = lineChart({ ...axes, lines: lines.filter(visible), range, width, height: width < 500 ? 300 : 420, caption: state.dataset });
    place.replaceChildren(...(lines.length ? [legend(names, "rows"), chart || nothing("All lines are hidden.")] : [nothing("The store has no such results for this dataset.")]));
    const others = datasets.filter((dataset) => dataset !== state.dataset);
    const [grid, room] = layout(small, 300, others.length);
    small.replaceChildren(...others.map((dataset) => lineChart({ ...axes, yTitle: "", lines: linesOf(dataset).filter(visible), range, width: room, height: 220, caption: dataset })).filter(Boolean));
    small.style.gridTemplateColumns = grid;
  }

  const placeOf = (one) => `${one.dataset}, ${one.graph}`;

  /** Opens on an attacked graph, of the chosen dataset if there is one: there are false edges to see. */
  function drawLayers(kind, draw, empty) {
    const place = byId(kind), found = data.layers.filter((one) => one.kind === kind);
    if (!found.length) { place.replaceChildren(nothing(empty)); return; }
    const graphs = [...new Set(found.map(placeOf))];
    const most = (of) => of.reduce((best, one) => !best || one.rate > best.rate ? one : best, null);
    const chosen = graphs.includes(state.graph[kind]) ? state.graph[kind] : placeOf(most(found.filter((one) => one.dataset === state.dataset)) || most(found));
    const select = h("select", { onchange: (event) => { state.graph[kind] = event.target.value; render(); byId(kind).querySelector("select").focus(); } });
    options(select, graphs.map((graph) => [graph, graph]), chosen);
    const shown = found.filter((one) => placeOf(one) === chosen);
    const [grid, width] = layout(place, 420, Math.min(2, shown.length));
    place.style.gridTemplateColumns = grid;
    const { entries, charts } = draw(shown, width, found);
    const head = h("div", { class: "pick" }, h("label", {}, "Graph ", select));
    const keys = h("div", { class: "pick", id: `${kind}-legend` }, legend(entries, kind));
    place.replaceChildren(head, keys, ...charts.filter(Boolean));
  }

  /** The axis of `count` values, as long as that of `most` values. */
  const layerAxes = (count, most = count) => {
    const xs = Array.from({ length: count }, (_, i) => i);  // 0 is the start
    return { xs, until: most - 1, xLabels: ticks(0, most - 1, 8).filter(Number.isInteger).map((at) => [at, `${at}`]), xTitle: "layer", head: (i) => i ? `after layer ${i}` : "at the start" };
  };
  const trialsText = (count) => count === 1 ? "one trial" : `mean of ${count} trials`;

  function drawObjective() {
    const names = ["total", ...new Set(data.layers.filter((one) => one.kind === "objective").flatMap((one) => Object.keys(one.lines.terms)).filter((name) => name !== "total"))];
    const looksOf = Object.fromEntries(names.map((name, i) => [name, { colour: name === "total" ? 7 : (i - 1) % 7, strong: name === "total", plain: true }]));
    const linesOf = (one) => names.filter((name) => one.lines.terms[name]).map((name) => ({ name, label: name, look: looksOf[name], values: one.lines.terms[name], bands: [], text: (i) => short(one.lines.terms[name][i]) }));
    const visible = hiddenIn("objective");
    drawLayers("objective", (shown, width, found) => ({
      entries: names.map((name) => ({ name, label: name, look: looksOf[name] })),
      charts: shown.map((one) => lineChart({ ...layerAxes(one.lines.terms.total.length), lines: linesOf(one).filter(visible), yTitle: "objective", width, height: 300,
        range: rangeOf(found.filter(({ label }) => label === one.label).flatMap(linesOf).filter(visible)),
        caption: one.label, note: trialsText(one.trials), mark: one.trained ? { at: one.trained, label: `trained with ${one.trained}` } : null })),
    }), "The store has no objective by layer.");
  }

  function drawWeights() {
    const parts = [{ name: "clean", label: "edges of the clean graph", look: { colour: 6, strong: true, plain: true } },
      { name: "added", label: "edges added by the attack", look: { colour: 7, strong: true, plain: true, frozen: true } }];
    drawLayers("weights", (shown, width, found) => {
      const countOf = (one) => Math.max(...Object.values(one.lines).map(({ q50 }) => q50.length));
      const most = Math.max(...found.map(countOf));
      return {
        entries: parts,
        charts: shown.map((one) => {
          const lines = parts.filter(({ name }) => one.lines[name]).map((part) => {
            const of = one.lines[part.name];
            return { ...part, values: of.q50, bands: [{ low: of.q05, high: of.q95, opacity: 0.1 }, { low: of.q25, high: of.q75, opacity: 0.2 }],
              text: (i) => `${fixed(of.q50[i], 3)} (${fixed(of.q25[i], 3)} to ${fixed(of.q75[i], 3)}), mean ${fixed(of.mean[i], 3)}` };
          });
          return lineChart({ ...layerAxes(countOf(one), most), lines: lines.filter(hiddenIn("weights")), range: [0, 1], yTitle: "edge weight", width, height: 300, caption: one.label, note: trialsText(one.trials) });
        }),
      };
    }, "The store has no edge weights by layer.");
  }

  // --- records ----------------------------------------------------------------------------------------------------

  /** Without the filter, which is for models. */
  function drawPlain(...of) {
    const filter = state.filter;
    state.filter = "";
    drawTable(...of);
    state.filter = filter;
  }

  function drawChallenge() {
    for (const [i, { title, columns, rows }] of (data.challenge || []).entries()) {
      const value = (of) => of === null ? { text: "–", value: null } : { text: fixed(of, 1), value: of };
      drawPlain(`challenge-${i}`, `${title}: test accuracy that is left, %`,
        [{ label: "model", kind: "text" }, { label: "", kind: "text" }, ...columns.map((label) => ({ label, kind: "number" })), { label: "worst attack", kind: "text" }],
        rows.map((row) => [{ text: row.model }, { text: row.role === "model" ? "" : row.role }, ...row.figures.map(value), { text: row.worst }]), "");
    }
  }

  function drawEdges() {
    const found = data.edges;
    if (!found) return;
    const number = (label) => ({ label, kind: "number" });
    const value = (of) => of === null || of === undefined ? { text: "–", value: null } : { text: fixed(of, 3), value: of };
    drawPlain("edges-scores", `All ${found.judged}: means, and on how many of them the ROC-AUC is the best or at most 0.01 below.`,
      [{ label: "score", kind: "text" }, number("best or close"), number("lowest ROC-AUC"), ...Object.values(found.measures).map(number)],
      found.scores.map((one) => [{ text: one.score }, { text: `${one.close} of ${one.graphs}`, value: one.close / one.graphs }, value(one.worst),
        ...Object.keys(found.measures).map((name) => value(one.means[name]))]), "");
    const attacks = [...new Set(found.rows.map((row) => row.attack))];
    if (!attacks.includes(state.attack)) state.attack = attacks[0];
    options(byId("edges-attack"), attacks.map((name) => [name, name]), state.attack);
    options(byId("edges-measure"), Object.entries(found.measures), state.measure);
    const here = found.rows.filter((row) => row.attack === state.attack);
    const scores = found.scores.map(({ score }) => score), graphs = [...new Set(here.map(({ graph }) => graph))];
    const rates = [...new Map(here.map(({ rate, column }) => [rate, column])).entries()].sort(([a], [b]) => a - b);
    const of = (graph, rate, score) => here.find((row) => row.graph === graph && row.rate === rate && row.score === score)?.[state.measure] ?? null;
    const published = (graph, rate) => state.measure === "auc" ? found.published.find(([g, a, r]) => g === graph && a === state.attack && r === rate)?.[3] ?? null : null;
    const entry = (score, i) => ({ name: score, label: score, look: { colour: [7, 6, 1, 3, 2, 4, 5, 0][i % 8], strong: i === 0 } });
    const visible = hiddenIn("edges");
    const linesOf = (graph) => [...scores.map(entry), { name: "published", label: found.publishedLabel, look: { colour: 0, dotted: true } }].map((one) => {
      const values = rates.map(([rate]) => one.name === "published" ? published(graph, rate) : of(graph, rate, one.name));
      return { ...one, values, bands: [], text: (i) => fixed(values[i], 3) };
    }).filter(({ values }) => values.some((one) => one !== null));
    const entries = [...new Map(graphs.flatMap(linesOf).map((one) => [one.name, one])).values()];
    const every = found.rows.map((row) => row[state.measure]).filter((one) => one !== null);
    const range = every.length ? [Math.min(...every), Math.max(...every)] : null;
    const place = byId("edges-charts");
    const [grid, width] = layout(place, 250, Math.min(4, graphs.length));
    place.style.gridTemplateColumns = grid;
    byId("edges-legend").replaceChildren(legend(entries, "edges"));
    place.replaceChildren(...(rates.length > 1 ? graphs : []).map((graph) => lineChart({ xs: rates.map(([rate]) => rate), xLabels: rates, xTitle: "flips", yTitle: "", head: (i) => rates[i][1],
      lines: linesOf(graph).filter(visible), range, width, height: 250, caption: graph })).filter(Boolean));
    byId("edges-legend").hidden = rates.length < 2;
    const several = here.some((row) => published(row.graph, row.rate) !== null);
    drawPlain("edges-table", `${state.attack}: ${found.measures[state.measure]} of finding added edges.`,
      [{ label: "graph", kind: "text" }, number("flips"), ...scores.map(number), ...(several ? [number("LEO")] : [])],
      graphs.flatMap((graph) => rates.filter(([rate]) => here.some((row) => row.graph === graph && row.rate === rate)).map(([rate, column]) => {
        const values = scores.map((score) => of(graph, rate, score));
        const top = Math.max(...values.filter((one) => one !== null));
        const design = here.some((row) => row.graph === graph && row.rate === rate && row.design);
        return [{ text: design ? `${graph} †` : graph }, { text: column, value: rate },
          ...values.map((one) => one === top ? { value: one, node: h("td", { class: "best" }, h("span", { class: "ours" }, fixed(one, 3))) } : value(one)),
          ...(several ? [value(published(graph, rate))] : [])];
      })), "");
  }

  /** For each graph and kind of voters a curve, beside the floors; at each number of flips with the anchor chosen for so many, or the next larger number. */
  function drawCertificates() {
    const { columns, rows } = data.records.certificates;
    const at = (label) => columns.indexOf(label);
    const flips = columns.map((label, i) => [label.match(/^(\d+) flips$/), i]).filter(([found]) => found);
    const xs = flips.map(([found]) => Number(found[1]));
    const places = xs.map((_, i) => i);  // evenly spaced: most changes are at few flips
    const percent = (row, i) => row[i][1] === null ? null : 100 * row[i][1];
    const linesOf = (graph) => {
      const here = rows.filter((row) => row[0][0] === graph);
      const voters = [...new Set(here.map((row) => row[at("by")][0]))];
      const chosen = (of) => flips.map(([, i], k) => percent(of.filter((row) => row[at("chosen for, flips")][1] >= xs[k]).sort((a, b) => a[at("chosen for, flips")][1] - b[at("chosen for, flips")][1])[0], i));
      const floor = (label) => flips.map(() => percent(here[0], at(label)));
      return [...voters.map((by, i) => ({ name: by, label: `votes of ${by}`, look: { colour: [1, 3, 2][i % 3], strong: true }, values: chosen(here.filter((row) => row[at("by")][0] === by)) })),
        ...["edge-free model", "MLP"].map((label, i) => ({ name: label, label, look: { colour: [7, 0][i], dotted: true, floor: true }, values: floor(label) }))]
        .map((one) => ({ ...one, bands: [], text: (i) => fixed(one.values[i], 1) }));
    };
    const graphs = [...new Set(rows.map((row) => row[0][0]))], visible = hiddenIn("certificates");
    const place = byId("certificates-charts");
    const [grid, width] = layout(place, 250, Math.min(3, graphs.length));
    place.style.gridTemplateColumns = grid;
    byId("certificates-legend").replaceChildren(legend([...new Map(graphs.flatMap(linesOf).map((one) => [one.name, one])).values()], "certificates"));
    place.replaceChildren(...graphs.map((graph) => lineChart({ xs: places, xLabels: places.map((i) => [i, String(xs[i])]), xTitle: "flips", yTitle: "certified accuracy, %",
      head: (i) => `${xs[i]} flips`, lines: linesOf(graph).filter(visible), width, height: 250, caption: graph })).filter(Boolean));
  }

  function drawRecords() {
    if (data.records.certificates) drawCertificates();
    for (const [kind, { columns, rows }] of Object.entries(data.records)) {
      const kindOf = (i) => rows.every((row) => row[i][1] === null || typeof row[i][1] === "number") ? "number" : "text";
      drawPlain(`record-${kind}-table`, `${rows.length} rows`, columns.map((label, i) => ({ label, kind: kindOf(i) })),
        rows.map((row) => row.map(([text, value]) => ({ text, value }))), "");
    }
  }

  function drawScalars() {
    const { datasets, columns, rates, unit } = table();
    const place = byId("scalars");
    const learned = shownRows().filter((row) => line(row).some((cell) => cell.scalars && Object.keys(cell.scalars).length));
    const names = [...new Set(learned.flatMap((row) => line(row)).flatMap((cell) => Object.keys(cell.scalars || {})))];
    if (!names.length) { place.replaceChildren(nothing("No reported trial on this dataset has learned scalars.")); return; }
    const shown = learned.filter(hiddenIn("scalars"));
    const [grid, width] = layout(place, 320, 3);
    const charts = names.map((name) => {
      const of = (row, i, dataset = state.dataset) => (line(row, dataset)[i].scalars?.[name] || []).filter((value) => value !== null);
      const all = shown.flatMap((row) => datasets.flatMap((dataset) => columns.flatMap((_, i) => of(row, i, dataset))));  // one scale for all
      const [sign, meaning] = data.scalars[name] || [name, ""];
      if (!all.length) return null;
      const tooltip = (i) => {
        const here = shown.filter((row) => of(row, i).length);
        return here.length ? [`${sign} at ${columns[i]}`, ...here.map((row) => ({ look: looks[row.name], label: row.label,
          text: `${short(mean(of(row, i)))} (${short(Math.min(...of(row, i)))} to ${short(Math.max(...of(row, i)))})` }))] : [];
      };
      const { whole, svg, x, y, bounds } = frame({ caption: sign === name ? name : `${sign} (${name})`, note: meaning, xs: rates, xLabels: rates.map((at, i) => [at, columns[i]]), xTitle: unit, yTitle: "", band: true,
        low: Math.min(...all), high: Math.max(...all), height: 220, width, tooltip, describe: `The scalar ${sign} (${name}) of each trial against ${unit}. Use the arrow keys to read the values.` });
      const slot = (bounds.right - bounds.left) / columns.length * 0.8 / shown.length;
      shown.forEach((row, r) => columns.forEach((_, i) => {
        const values = of(row, i), look = looks[row.name], middle = x(rates[i]) + (r - (shown.length - 1) / 2) * slot;
        if (!values.length) return;
        svg.append(...values.map((value, k) => s("circle", { class: "dot", r: 2.4, cx: middle + ((k * 7) % 5 - 2) * Math.min(1.6, slot / 8), cy: y(value), style: `${markerOf(look)};stroke-width:1;opacity:.75` })),
          s("path", { class: "mean", d: `M${middle - slot * 0.4},${y(mean(values))}h${slot * 0.8}`, style: `stroke:${colour(look)};stroke-width:2` }));
      }));
      return whole;
    }).filter(Boolean);
    place.replaceChildren(legend(learned.map((row) => ({ name: row.name, label: row.label, look: looks[row.name] })), "scalars"),
      h("div", { class: "charts", style: `grid-template-columns:${grid}` }, charts));
  }

  // --- page ------------------------------------------------------------------------------------------------------

  const KEPT = ["table", "dataset", "metric", "rule", "group"];  // in the address of the page

  function render() {
    updateControls();
    for (const draw of [drawStory, drawResults, drawGain, drawPublished, drawGenerality, drawChallenge, drawEdges, drawRecords, drawCurves, drawWorse, drawObjective, drawWeights, drawScalars, drawSettings, drawMachines]) draw();
    byId("assumed-of").textContent = table().title;
    byId("assumed").replaceChildren(...table().assumed.map((text) => h("li", {}, text)));
    const kept = new URLSearchParams(KEPT.map((name) => [name, state[name]]));
    try { history.replaceState(null, "", `#${kept}`); } catch { /* not allowed in some frames */ }
  }

  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) if (KEPT.includes(name)) state[name] = value;
  for (const name of KEPT) byId(name).addEventListener("change", (event) => {
    state[name] = event.target.value;
    if (name === "table") state.metric = state.group = "";  // each table starts with its own
    render();
  });
  for (const [id, name] of [["story-table", "story"], ["edges-attack", "attack"], ["edges-measure", "measure"]]) byId(id)?.addEventListener("change", (event) => {
    state[name] = event.target.value;
    render();
  });
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value.trim(); render(); });
  byId("curves-paper").addEventListener("change", (event) => { state.paper = event.target.checked; render(); });
  byId("worse-all").addEventListener("change", (event) => {
    state.everywhere = event.target.checked;
    delete state.sort["worse-table"];  // its columns have changed
    render();
  });
  addEventListener("beforeprint", () => { for (const folded of document.querySelectorAll("details")) folded.open = true; });
  let width = innerWidth, timer = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar changes only the height
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(render, 150);
  });
  render();
})();
