"use strict";
// The page of spark-channel: one stream of events fills it, and one request changes a limit.

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const RETRY_MILLISECONDS = 2000, SILENT_MILLISECONDS = 3000;
const TOKEN_KEY = "spark-channel " + location.pathname;

const state = {
  token: "", canChange: false, jobs: new Map(), limits: [], chosen: null, heard: 0,
  samples: [], changes: [], tasks: new Map(), stream: null, polls: false, silent: 0,
};

// ---- texts

function short(value) {
  if (value === null || value === undefined) return "unlimited";
  if (value < 1000) return value < 100 && value % 1 ? value.toFixed(1) : String(Math.round(value));
  for (const unit of ["k", "M", "G", "T", "P"]) {
    value /= 1000;
    if (value < 999.5 || unit === "P") return (value < 99.95 ? String(Number(value.toPrecision(3))) : value.toFixed(0)) + unit;
  }
  return "";
}
function duration(seconds) {
  if (seconds < 60) return seconds < 10 ? seconds.toFixed(1) + " s" : Math.round(seconds) + " s";
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600);
  const rest = String(Math.floor(whole / 60) % 60).padStart(hours ? 2 : 1, "0") + ":" + String(whole % 60).padStart(2, "0");
  return hours ? hours + ":" + rest : rest;
}
function amount(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kMGT]?)B?\s*$/i.exec(text);
  if (!match) return null;
  const units = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12 };
  const value = Math.round(Number(match[1]) * units[match[2].toLowerCase()]);
  return value >= 1 && Number.isSafeInteger(value) ? value : null;
}
// The table first: a reader looks for it. The address, and the job's own name, are in grey below.
const titleOf = (job) => job.ends.map((end) => end[0]).filter(Boolean).join(" → ") || job.name || job.kind + " " + job.job;
const addressOf = (job) => [job.name && job.name !== titleOf(job) ? job.name : "", job.ends.map((end) => end[1]).filter(Boolean).join(" → ")].filter(Boolean).join(" · ");
const inBytes = (job) => job.limit_rows === null && job.limit_bytes !== null;
const ended = (job) => ["done", "ended", "failed", "gone"].includes(job.phase);
const paused = (job) => !ended(job) && job.note.startsWith("paused");
const phaseOf = (job) => paused(job) ? "paused" : job.phase === "gone" ? "lost" : job.phase;
const isStill = (job) => ended(job) || paused(job);
const timeOfDay = (seconds) => new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayOf = (seconds) => { const day = new Date(1000 * seconds).toLocaleDateString(); return day === new Date().toLocaleDateString() ? "" : day; };
const ago = (milliseconds) => "last seen " + duration(Math.max(0, Math.round((Date.now() - milliseconds) / 1000))).replace(".0 s", " s") + " ago";
const lastSeen = (job) => ago(job.seen);

// As in plain_text.py: names and messages from outside hide, move and turn round nothing.
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\u{e0000}-\u{e007f}]/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const shown = (text) => String(text).replace(UNSAFE, (character) => {
  if (character in SHORT) return SHORT[character];
  const code = character.codePointAt(0).toString(16);
  return code.length < 3 ? "\\x" + code.padStart(2, "0") : code.length < 5 ? "\\u" + code.padStart(4, "0") : "\\U" + code.padStart(8, "0");
});
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = shown(text);
  if (className) made.className = className;
  return made;
}
function setText(node, text) {
  const line = shown(text);
  if (node.textContent !== line) node.textContent = line;
}
function announce(text) { setText(byId("announce"), text); }

// ---- the stream of events: fetch, since EventSource cannot send a header, and a url with a token would be logged

class Refusal extends Error {}
async function listen() {
  if (state.stream) state.stream.abort();
  const stream = state.stream = new AbortController();
  while (!stream.signal.aborted) {
    const query = new URLSearchParams({ ...(state.chosen && { job: state.chosen }), ...(state.polls && { once: "1" }) });
    let again = RETRY_MILLISECONDS;
    // A proxy may keep an answer until it is whole: then each state is asked for by itself.
    clearTimeout(state.silent);
    if (!state.polls) state.silent = setTimeout(() => { state.polls = true; listen(); }, SILENT_MILLISECONDS);
    try {
      const answer = await fetch("events?" + query, {
        headers: { "X-Spark-Channel-Token": state.token, Accept: "text/event-stream" }, // Jupyter's proxy passes such answers on as they come
        signal: stream.signal, cache: "no-store", credentials: "same-origin",
      });
      if (answer.status === 401 || answer.status === 403) return askForToken("The token was not accepted. It changes each time the page is started.");
      if (!answer.ok) throw new Refusal((await answer.text()).slice(0, 200));
      await readEvents(answer.body, stream);
      if (!state.polls) again = 0;
    } catch (error) {
      if (stream.signal.aborted) return;
      state.polls = false;
      connection("lost", (error instanceof Refusal ? error.message : "connection lost") + ", trying again");
    }
    clearTimeout(state.silent);
    await new Promise((resolve) => setTimeout(resolve, again));
  }
}
async function readEvents(body, stream) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done || stream.signal.aborted) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const kind = lines[0].slice("event: ".length), data = JSON.parse(lines[1].slice("data: ".length));
      if (kind === "hello") hello(data); else show(data);
    }
  }
}
function connection(className, text) {
  byId("connection").className = document.body.className = className;
  const seen = className === "lost" && state.heard ? ", " + ago(state.heard) : "";
  setText(byId("connection"), text + seen);
}
function hello(data) {
  clearTimeout(state.silent);
  state.canChange = data.can_change;
  byId("watching").hidden = data.can_change;
  state.jobs.clear();
  state.tasks.clear();
  state.samples = [];
  byId("tasks").replaceChildren();
  byId("login").hidden = true;
  byId("main").hidden = false;
}
function askForToken(why) {
  clearTimeout(state.silent);
  connection("lost", "not connected");
  byId("main").hidden = true;
  byId("login").hidden = false;
  setText(byId("login-why"), why);
  byId("token").focus();
}

// ---- what came

function show(news) {
  connection("live", "live");
  state.heard = Date.now();
  for (const job of news.jobs) state.jobs.set(job.job, job);
  const order = new Set(news.order);
  for (const [name, job] of [...state.jobs]) {
    if (order.has(name)) { job.seen = state.heard; continue; }
    if (name !== state.chosen) state.jobs.delete(name);
    else if (!ended(job)) state.jobs.set(name, { ...job, phase: "gone" }); // with the program that ran it
  }
  state.limits = news.limits;
  showJobs(news.order);
  showShared();
  const detail = news.detail;
  if (detail && detail.job === state.chosen) {
    if (detail.since !== null) {
      state.samples = state.samples.filter((sample) => sample[0] <= detail.since && detail.since > 0).concat(detail.samples);
    }
    state.changes = detail.changes;
    showTasks(detail);
    showSignals(detail.signals);
  }
  showJob();
}
// A read and a write of one execution of Spark are one card; the limited one comes first, then the write.
function cards(order) {
  const names = order.filter((name) => state.jobs.has(name)).reverse();
  if (state.jobs.has(state.chosen) && !names.includes(state.chosen)) names.push(state.chosen);
  const found = new Map();
  for (const job of names.map((name) => state.jobs.get(name))) {
    const key = job.execution || job.job;
    found.set(key, [...(found.get(key) || []), job]);
  }
  const rank = (job) => (isLimited(job) ? 0 : 2) + (job.target ? 0 : 1);
  const made = [...found.values()].map((parts) => parts.sort((a, b) => rank(a) - rank(b)));
  return made.sort((a, b) => a.every(ended) - b.every(ended));
}
const isLimited = (job) => job.limit_rows !== null || job.limit_bytes !== null;
function showJobs(order) {
  const list = byId("jobs"), select = byId("jobs-select"), found = cards(order);
  byId("no-jobs").hidden = found.length > 0;
  byId("jobs-choice").hidden = !found.length;
  const known = new Map([...list.children].map((item) => [item.dataset.card, item]));
  const entries = new Map([...select.children].map((entry) => [entry.dataset.card, entry]));
  found.forEach((parts, place) => {
    const key = parts[0].execution || parts[0].job;
    const item = known.get(key) || newCard(key), entry = entries.get(key) || element("option");
    known.delete(key);
    entries.delete(key);
    entry.dataset.card = key;
    fillCard(item, parts);
    entry.value = item.dataset.lead = (parts.find((job) => job.job === state.chosen) || parts[0]).job;
    setText(entry, titleOf(parts[0]) + " · " + phaseOf(parts[0]));
    if (list.children[place] !== item) list.insertBefore(item, list.children[place] || null);
    if (select.children[place] !== entry) select.insertBefore(entry, select.children[place] || null);
    if (entry.value === state.chosen && !entry.selected) entry.selected = true;
  });
  for (const gone of [...known.values(), ...entries.values()]) gone.remove();
  if (!state.chosen && found.length) choose(found[0][0].job);
}
function newCard(key) {
  const item = element("li"), button = element("button"), title = element("span", "", "name");
  item.dataset.card = key;
  button.type = "button";
  title.append(element("span"), element("span", "", "badge"));
  button.append(title, element("span", "", "address"));
  button.addEventListener("click", () => { choose(item.dataset.lead); byId("detail").focus({ preventScroll: true }); });
  item.append(button);
  return item;
}
function fillCard(item, parts) {
  const button = item.firstChild, [title, badge] = button.firstChild.children, lead = parts[0];
  setText(title, titleOf(lead));
  setText(badge, phaseOf(lead));
  badge.className = "badge " + phaseOf(lead);
  button.className = isStill(lead) ? "still" : "";
  setText(button.children[1], addressOf(lead));
  while (button.children.length > parts.length + 2) button.lastChild.remove();
  while (button.children.length < parts.length + 2) button.append(element("span", "", "line"));
  parts.forEach((job, place) => setText(button.children[place + 2], (parts.length > 1 ? job.kind + (place ? " " + titleOf(job) : "") + ": " : "") + lineOf(job)));
  if (parts.some((job) => job.job === state.chosen)) button.setAttribute("aria-current", "true"); else button.removeAttribute("aria-current");
}
function lineOf(job) {
  if (ended(job)) return short(job.rows) + " rows in " + duration(job.seconds) + (job.phase === "gone" ? ", " + lastSeen(job) : "");
  const speed = inBytes(job) ? short(job.bytes_per_second) + "B/s" : short(job.rows_per_second) + " rows/s";
  return (job.percent === null ? "" : Math.floor(job.percent) + " % · ") + short(job.rows) + " rows · " + speed;
}
function showParts(job) {
  const parts = job.execution ? cards([...state.jobs.keys()]).find((each) => each.includes(job)) || [job] : [job], node = byId("parts");
  node.hidden = parts.length < 2;
  while (node.children.length > parts.length) node.lastChild.remove();
  parts.forEach((part, place) => {
    let button = node.children[place];
    if (!button) { button = element("button", "", "second"); button.type = "button"; button.addEventListener("click", () => choose(button.dataset.job)); node.append(button); }
    button.dataset.job = part.job;
    setText(button, part.kind + " " + titleOf(part) + (isLimited(part) ? ", limited" : ""));
    button.setAttribute("aria-pressed", String(part === job));
  });
}
function choose(name) {
  if (name === state.chosen) return;
  state.chosen = name;
  state.samples = [];
  state.changes = [];
  byId("control").replaceChildren();
  listen();
}

// ---- one job

function showJob() {
  const job = state.jobs.get(state.chosen);
  byId("job").hidden = !job;
  byId("choose").hidden = Boolean(job);
  if (!job) return;
  const phase = phaseOf(job), title = titleOf(job);
  if (byId("phase").textContent && byId("phase").textContent !== phase && byId("title").textContent === shown(title)) announce(title + ": " + phase);
  setText(byId("title"), title);
  setText(byId("ends"), [job.kind, addressOf(job), "id " + job.job].filter(Boolean).join(" · "));
  setText(byId("phase"), phase);
  byId("phase").className = "badge " + phase;
  byId("job").className = isStill(job) ? "still" : "";
  showParts(job);
  byId("error").hidden = !job.error;
  setText(byId("error"), job.error);
  byId("where").hidden = !job.where;
  setText(byId("where"), "The rows are in " + job.where);
  byId("progress-row").hidden = job.percent === null || ended(job);
  if (job.percent !== null) {
    byId("progress").value = job.percent;
    setText(byId("progress-text"), Math.floor(job.percent) + " %" + (job.eta_seconds && !isStill(job) ? ", " + duration(job.eta_seconds) + " left" : ""));
  }
  showFigures(job);
  showControl(byId("control"), state.limits.find((limit) => limit.job === job.job), "control-title", "Limit of this job");
  showChart(job);
  showWaits(job);
  showLag(job);
  showTables(job);
}
function showPairs(list, pairs) {
  const nodes = [...list.children];
  pairs.forEach(([name, value, more], place) => {
    let node = nodes[place];
    if (!node) { node = element("div"); node.append(element("dt"), element("dd")); list.append(node); }
    setText(node.firstChild, name);
    if (node.dataset.value !== value + more) {
      node.dataset.value = value + more;
      node.lastChild.replaceChildren(value, ...(more ? [" ", element("small", more)] : []));
    }
  });
  nodes.slice(pairs.length).forEach((node) => node.remove());
}
function showFigures(job) {
  const bytes = inBytes(job), unit = bytes ? "B/s" : " rows/s";
  const limit = bytes ? job.limit_bytes : job.limit_rows;
  const pairs = [["Rows", short(job.rows), short(job.bytes) + "B"]];
  if (!ended(job)) {
    pairs.push(["Source, now", short(bytes ? job.bytes_per_second : job.rows_per_second) + unit, ""]);
    if (job.target) pairs.push(["Target, now", short(bytes ? job.bytes_written_per_second : job.rows_written_per_second) + unit, ""]);
  }
  pairs.push(["Limit", limit === null ? "none" : short(limit) + unit, limit === null ? "" : job.note || (job.limit_scope === "the whole job" ? "" : job.limit_scope)]);
  pairs.push(["Refused rows", short(job.refused), ""]);
  pairs.push(["Tasks done", job.tasks_done + " of " + job.tasks, job.retries ? job.retries + " retried" : ""]);
  const stop = state.changes.at(-1), held = paused(job) && stop && stop[3].startsWith("paused");
  const remark = job.phase === "gone" ? lastSeen(job) : held ? "stopped" : job.publish_seconds ? "commit " + duration(job.publish_seconds) : "";
  pairs.push([ended(job) ? "Took" : "Time", duration(held ? stop[0] : job.seconds), remark]);
  if (job.started !== null) pairs.push(["Started", timeOfDay(job.started), dayOf(job.started)]);
  if (job.started !== null && ended(job)) pairs.push([job.phase === "gone" ? "Lost" : "Ended", timeOfDay(job.started + job.seconds), dayOf(job.started + job.seconds)]);
  showPairs(byId("figures"), pairs);
}
function showChart(job) {
  const bytes = inBytes(job), source = bytes ? 3 : 1, target = bytes ? 4 : 2, limitAt = bytes ? 2 : 1;
  const end = Math.max(job.seconds, 1);
  const samples = state.samples.filter((sample) => ended(job) || sample[0] < end - 1); // tasks report late
  const isEmpty = ended(job) && samples.length < 2;
  byId("speed").hidden = isEmpty;
  byId("no-speed").hidden = !isEmpty;
  if (isEmpty) return;
  const fixed = bytes ? job.limit_bytes : job.limit_rows;
  const limits = state.changes.length ? state.changes.map((each) => [each[0], each[3] === "paused" ? 0 : each[limitAt]]) : [[0, fixed]];
  let most = 0;
  for (const sample of samples) most = Math.max(most, sample[source], sample[target]);
  const last = limits[limits.length - 1][1] || 0, fits = most ? 1.25 * most : last;
  for (const [, limit] of limits) if (limit !== null && limit <= fits) most = Math.max(most, limit);
  most = nice(Math.max(1, most * 1.05));
  const x = (seconds) => (800 * Math.min(seconds, end) / end).toFixed(1), y = (value) => (240 - 240 * Math.min(value, most) / most).toFixed(1);
  const line = (column) => samples.length < 2 ? "" : samples.map((sample, place) => (place ? "L" : "M") + x(sample[0]) + " " + y(sample[column])).join("");
  let step = "", drawing = false;
  const above = [];
  limits.forEach(([from, limit], place) => {
    const until = place + 1 < limits.length ? limits[place + 1][0] : end;
    if (limit !== null && limit > most) above.push([until, limit]);
    if (limit === null || limit > most) { drawing = false; return; }
    step += (drawing ? "L" : "M") + x(from) + " " + y(limit) + "L" + x(until) + " " + y(limit);
    drawing = true;
  });
  const paths = { grid: "M0 0H800M0 60H800M0 120H800M0 180H800M0 240H800", limit: step, source: line(source), target: job.target ? line(target) : "" };
  const chart = byId("chart");
  for (const [name, data] of Object.entries(paths)) {
    let path = chart.querySelector("." + name);
    if (!path) { path = document.createElementNS(SVG, "path"); path.setAttribute("class", name); chart.append(path); }
    path.setAttribute("d", data);
  }
  axis(byId("axis-y"), [1, .75, .5, .25, 0].map((share) => short(most * share) + (bytes ? "B/s" : "/s")), (span, place) => { span.style.top = 25 * place + "%"; });
  const edge = (share) => job.started === null || share % 1 ? duration(end * share) : timeOfDay(job.started + end * share);
  axis(byId("axis-x"), [0, .25, .5, .75, 1].map(edge), () => {});
  const arrows = byId("above"), shownAbove = above.slice(-3); // a limit above the chart's edge
  while (arrows.children.length > shownAbove.length) arrows.lastChild.remove();
  axis(arrows, shownAbove.map(([, limit]) => "↑ limit " + short(limit) + (bytes ? "B/s" : "/s")), (span, place) => { span.style.right = 100 - 100 * shownAbove[place][0] / end + "%"; });
  const now = bytes ? job.bytes_per_second : job.rows_per_second, unit = bytes ? "bytes" : "rows";
  setText(byId("chart-text"), "The speed is " + short(now) + " " + unit + " per second; the limit is " + (fixed === null ? "none" : short(fixed)) + ".");
}
function axis(node, texts, place) {
  while (node.children.length < texts.length) node.append(element("span"));
  texts.forEach((text, number) => { setText(node.children[number], text); place(node.children[number], number); });
}
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10].map((factor) => factor * power).find((each) => each >= value);
}
const SIDES = { limit: "the limit", source: "the source", target: "the target" };
const ADVICE = {
  limit: "The limit slows the job: it works.",
  source: "The source returns rows slower than the limit allows.",
  target: "The target accepts rows slower than the limit allows.",
};
function showWaits(job) {
  const bars = byId("waits");
  const waits = job.waits || {}, [most] = Object.keys(SIDES).sort((a, b) => (waits[b] || 0) - (waits[a] || 0));
  const gone = "The program that ran this job has ended: its report says how.";
  let text = job.phase === "gone" ? gone : ended(job) ? "The job has ended." : "No task waited in the last 30 seconds.";
  if (!ended(job) && job.waits) text = waits[most] > .5 ? ADVICE[most] : "Nothing alone slows the job.";
  if (paused(job)) text = "The limit is paused: nothing moves until it is resumed.";
  setText(byId("waits-text"), text);
  const held = Object.entries(job.held).map(([name, seconds]) => "slowed down by the " + name + " for " + duration(seconds));
  if (held.length) setText(byId("waits-text"), text + " It was " + held.join(", ") + ".");
  showBars(bars, job.waits && !ended(job) ? Object.entries(SIDES).map(([side, name]) => [name, waits[side], Math.round(100 * waits[side]) + " %"]) : []);
}
function showBars(node, bars) {
  while (node.children.length > bars.length) node.lastChild.remove();
  bars.forEach(([name, value, text], place) => {
    let bar = node.children[place];
    if (!bar) { bar = element("div", undefined, "bar"); bar.append(element("span"), element("meter"), element("span")); node.append(bar); }
    setText(bar.children[0], name);
    bar.children[1].value = value;
    bar.children[1].setAttribute("aria-label", shown(name));
    setText(bar.children[2], text);
  });
}
const LAG = { rows: "Rows", bytes: "Bytes", seconds: "Seconds", wal_kept_bytes: "Log that the source keeps", base_rows_read: "Existing rows read", base_rows: "of existing rows", base_chunks_read: "Chunks read", base_chunks: "of chunks", seconds_ago: "Measured, seconds ago" };
function showLag(job) {
  const known = Object.entries(job.lag).filter(([name]) => LAG[name]);
  byId("lag-section").hidden = !known.length && !job.behind;
  setText(byId("behind"), job.behind);
  showPairs(byId("lag"), known.map(([name, value]) => [LAG[name], name.includes("seconds") ? duration(value) : short(value) + (name.includes("bytes") ? "B" : ""), ""]));
}
function showSignals(signals) {
  const found = Object.entries(signals);
  byId("signals-section").hidden = !found.length;
  showBars(byId("signals"), found.map(([name, [value, bound]]) => [name.replace(":", ": "), bound > 0 ? Math.min(1, value / bound) : 0, bound > 0 ? Math.round(100 * value / bound) + " %" : ""]));
}
function showTasks(detail) {
  byId("tasks-section").hidden = !detail.all_tasks;
  const body = byId("tasks");
  const added = document.createDocumentFragment();
  for (const key of detail.gone) { // others come before them in the list, which has an end
    state.tasks.get(key)?.remove();
    state.tasks.delete(key);
  }
  for (const task of detail.tasks) {
    let row = state.tasks.get(task[0]);
    if (!row) {
      row = element("tr");
      for (let cell = 0; cell < 8; cell++) row.append(element("td", "", cell === 1 || cell === 7 ? "text" : ""));
      state.tasks.set(task[0], row);
      added.append(row);
    }
    const [, number, attempts, phase, read, written, refused, seconds, waits] = task;
    const most = waits.indexOf(Math.max(...waits)), name = ["the limit", "the source", "the target"][most];
    [number, phase, short(read), short(written), short(refused), attempts, duration(seconds), waits[most] > 0 ? name + ", " + duration(waits[most]) : ""]
      .forEach((text, cell) => setText(row.children[cell], String(text)));
    row.className = phase;
  }
  body.append(added);
  filterTasks();
  const shown = state.tasks.size < detail.all_tasks ? ", of which " + state.tasks.size + " are shown" : "";
  setText(byId("tasks-title"), "Tasks (" + detail.all_tasks + shown + ")");
  setText(byId("tasks-caption"), detail.all_tasks + " tasks of the job" + shown);
}
const tableOf = (job) => job.ends[0][0] || titleOf(job);
function showTables(job) {
  const tables = job.part_of ? [...state.jobs.values()].filter((each) => each.part_of === job.part_of) : [];
  const count = (...phases) => tables.filter((each) => phases.includes(each.phase)).length;
  byId("tables-section").hidden = !tables.length;
  const parts = [[tables.filter((each) => !ended(each)).length, "running"], [count("done", "ended"), "done"], [count("failed"), "failed"]];
  setText(byId("tables-title"), "Tables of this replication: " + parts.filter(([number]) => number).map((part) => part.join(" ")).join(", "));
  const body = byId("tables"), known = new Map([...body.children].map((row) => [row.dataset.job, row]));
  tables.sort((a, b) => ended(a) - ended(b) || (tableOf(a) < tableOf(b) ? -1 : 1)).forEach((table, place) => {
    let row = known.get(table.job);
    if (!row) {
      row = element("tr");
      row.dataset.job = table.job;
      const open = element("button", "", "link");
      open.type = "button";
      open.addEventListener("click", () => choose(table.job));
      for (let cell = 0; cell < 6; cell++) row.append(element("td", "", cell < 2 ? "text" : ""));
      row.firstChild.append(open);
    }
    known.delete(table.job);
    const phase = phaseOf(table);
    setText(row.firstChild.firstChild, tableOf(table));
    [phase, short(table.rows), ended(table) ? "" : short(table.rows_per_second), short(table.refused), duration(table.seconds)]
      .forEach((text, cell) => setText(row.children[cell + 1], text));
    row.className = phase;
    if (table.job === job.job) row.setAttribute("aria-current", "true"); else row.removeAttribute("aria-current");
    if (body.children[place] !== row) body.insertBefore(row, body.children[place] || null);
  });
  for (const row of known.values()) row.remove();
}
function filterTasks() {
  const openOnly = byId("open-only").checked;
  for (const row of state.tasks.values()) row.hidden = openOnly && row.className !== "running";
}

// ---- limits

function showShared() {
  const shared = state.limits.filter((limit) => !limit.job), list = byId("shared-limits");
  byId("shared").hidden = !shared.length;
  const known = new Map([...list.children].map((item) => [item.dataset.limit, item]));
  for (const limit of shared) {
    let item = known.get(limit.name);
    if (!item) { item = element("li"); item.dataset.limit = limit.name; list.append(item); }
    known.delete(limit.name);
    showControl(item, limit, "limit-" + limit.name, limit.name, limit.jobs + " jobs, " + limit.clients + " tasks, " + limit.waiting + " wait");
  }
  for (const item of known.values()) item.remove();
}
function showControl(node, limit, id, title, about) {
  node.hidden = !limit;
  if (!limit) { node.replaceChildren(); return; }
  if (node.dataset.of !== limit.name || !node.children.length) {
    node.dataset.of = limit.name;
    delete node.dataset.before;
    node.replaceChildren(...newControl(limit, id, title));
  }
  const bytes = limit.rows_per_second === null, set = bytes ? limit.bytes_per_second : limit.rows_per_second;
  const now = bytes ? limit.effective_bytes_per_second : limit.effective_rows_per_second, unit = bytes ? "B/s" : " rows/s";
  const [, text, row, ask, message] = node.children, [exact, , pause, back] = row.querySelectorAll("input, button");
  const lower = !limit.paused && now !== null && set !== null && now < set ? ", now " + short(now) + unit + (limit.pressure ? ": " + limit.pressure : "") : "";
  setText(text, (limit.paused ? "paused, set to " : "") + short(set) + unit + lower + (about ? " · " + about : ""));
  row.hidden = !state.canChange;
  if (!state.canChange) { ask.hidden = true; setText(message, "Watching only: this link changes no limit. The link that does was printed where the page was started."); return; }
  setText(pause, limit.paused ? "Resume" : "Pause");
  const before = Number(node.dataset.before) || (limit.job === state.chosen ? earlier(bytes, set) : 0);
  back.hidden = !before || before === set;
  if (!back.hidden) { back.dataset.value = String(before); setText(back, "Back to " + short(before)); }
  const touched = exact === document.activeElement || node.dataset.touched;
  if (!touched && set !== null && node.dataset.set !== String(set)) {
    node.dataset.set = String(set);
    exact.value = short(set);
  }
}
// What the limit of the chosen job was before it is what it is now; 0 = it was never another.
function earlier(bytes, set) {
  const values = state.changes.map((each) => each[bytes ? 2 : 1]).filter((value) => value && value !== set);
  return values.length ? values[values.length - 1] : 0;
}
function newControl(limit, id, title) {
  const bytes = limit.rows_per_second === null, unit = bytes ? "bytes" : "rows";
  const heading = element("h3", title), row = element("div", undefined, "control-row"), ask = element("div", undefined, "ask");
  heading.id = id;
  const exact = element("input"), apply = element("button", "Set"), pause = element("button", "Pause", "second"), back = element("button", "", "back");
  const holder = element("div"), label = element("label", "Limit, " + unit + " per second, such as " + (bytes ? "64M" : "20k"));
  Object.assign(exact, { type: "text", id: id + "-exact", autocomplete: "off", inputMode: "text" });
  label.htmlFor = exact.id;
  const question = element("p"), sure = element("button"), cancel = element("button", "Keep the limit", "second");
  for (const button of [apply, pause, back, sure, cancel]) button.type = "button";
  ask.hidden = true;
  ask.append(question, sure, cancel);
  const message = element("p", "", "message");
  message.setAttribute("role", "status");
  question.setAttribute("role", "status");
  holder.append(label, exact);
  row.append(holder, apply, pause, back);
  const node = () => row.parentNode;
  const current = () => state.limits.find((each) => each.name === limit.name) || limit;
  const setTo = async (value) => {
    ask.hidden = true;
    const other = current(), now = bytes ? other.bytes_per_second : other.rows_per_second;
    const speeds = bytes ? { rows_per_second: null, bytes_per_second: value } : { rows_per_second: value, bytes_per_second: other.bytes_per_second === null ? null : Math.round(other.bytes_per_second) };
    if (!await change({ limit: limit.name, action: "set", ...speeds }, message, "Set to " + short(value) + ".")) return;
    if (now !== null && now !== value && node()) node().dataset.before = String(now);
    if (node()) { delete node().dataset.touched; delete node().dataset.set; }
    if (exact === document.activeElement) exact.value = short(value);
  };
  const set = () => {
    const value = amount(exact.value);
    if (value === null) { ask.hidden = true; say(message, "Write a whole number, 1 or more, such as 20000, 20k or 1.5M.", true); return; }
    const now = bytes ? current().bytes_per_second : current().rows_per_second;
    if (now === null || value <= 2 * now) { setTo(value); return; }
    say(message, "", false);
    setText(question, "Raise the limit from " + short(now) + " to " + short(value) + " " + unit + " per second?");
    setText(sure, "Raise to " + short(value));
    sure.dataset.value = String(value);
    ask.hidden = false;
    sure.focus();
  };
  apply.addEventListener("click", set);
  sure.addEventListener("click", () => setTo(Number(sure.dataset.value)));
  cancel.addEventListener("click", () => { ask.hidden = true; delete node().dataset.touched; delete node().dataset.set; say(message, "The limit stays.", false); });
  back.addEventListener("click", () => setTo(Number(back.dataset.value)));
  exact.addEventListener("input", () => { node().dataset.touched = "1"; });
  exact.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); set(); } }); // else the question, which gets the focus, is answered by the same key
  pause.addEventListener("click", () => {
    const action = pause.textContent === "Pause" ? "pause" : "resume";
    change({ limit: limit.name, action }, message, action === "pause" ? "Paused." : "Resumed.");
  });
  return [heading, element("p", "", "quiet"), row, ask, message];
}
function say(message, text, bad) {
  message.className = bad ? "message bad" : "message";
  setText(message, text);
}
async function change(request, message, done) {
  try {
    const answer = await fetch("v1/limit", {
      method: "POST", headers: { "X-Spark-Channel-Token": state.token, "Content-Type": "application/json" },
      body: JSON.stringify(request), cache: "no-store", credentials: "same-origin",
    });
    if (!answer.ok) throw new Error(await answer.text());
    say(message, done, false);
    return true;
  } catch (error) {
    say(message, "Not changed: " + error.message, true);
    return false;
  }
}

// ---- start

function start() {
  const given = location.hash.slice(1);
  if (/^[\w-]{16,}$/.test(given)) {
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(null, "", location.pathname + location.search); // the address may be copied or shown
  }
  state.token = sessionStorage.getItem(TOKEN_KEY) || "";
  byId("login-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = byId("token").value.trim().split("#").pop();
    sessionStorage.setItem(TOKEN_KEY, state.token);
    byId("token").value = "";
    listen();
  });
  byId("open-only").addEventListener("change", filterTasks);
  byId("jobs-select").addEventListener("change", (event) => choose(event.target.value));
  if (state.token) listen(); else askForToken("Open the link that was printed where the page was started.");
}
window.addEventListener("hashchange", () => { if (/^#[\w-]{16,}$/.test(location.hash)) location.reload(); });
start();
