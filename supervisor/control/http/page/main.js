// The page: what is shown, the keys, the commands, and the frame in which the parts stand.
import { html, render, Component } from "./vendor/preact-htm.js";
import { ApiError, get, inPath, letIn, newKey, post } from "./api.js";
import { AbortDialog } from "./abort.js";
import { Details } from "./details.js";
import { count, duration, money, plural, tokensOf } from "./format.js";
import { Help } from "./help.js";
import { Indicator } from "./icon.js";
import { Model, VISUAL, isTask, sessionOf } from "./model.js";
import { PlanView } from "./plan.js";
import { Player } from "./player.js";
import { Remote } from "./remote.js";
import { RunsView } from "./runs.js";
import { JOURNAL_WINDOW, Stream } from "./stream.js";
import { Tree } from "./tree.js";
import { Waiting } from "./waiting.js";

const HISTORY_MAX = 60_000;
const PAINT_MS = 125; // words change at most eight times a second
const BUILD = document.querySelector('meta[name="build"]').content;
const DETAILS_PX = [280, 640];

class App extends Component {
  constructor() {
    super();
    this.live = new Model();
    this.past = null; // the state at `at`, while the page shows the past
    this.at = null;
    this.history = [];
    this.begin = 0; // number of the record before the history
    this.remote = new Remote(this);
    this.remotePermissions = new Map();
    this.pending = new Map(); // commands that were sent and not recorded yet, by what they are about
    this.speed = 1;
    this.playing = false;
    this.theme = 0;
    this.ui = {
      view: "sessions", tab: "tree", selected: null, item: null, run: null, filter: "", only: null, collapsed: new Set(), folds: 0, hideEnded: false, unit: "cost",
      span: 60, end: null, dialog: null, allWaiting: false, notice: null,
    };
    this.frames = { updates: [], draws: [] };
    this.stream = new Stream({ reset: (...given) => this.reset(...given), records: (list) => this.take(list), changed: () => this.changed() });
    window.page = this; // for measurements and tests
  }

  get model() {
    return this.past || this.live;
  }

  componentDidMount() {
    addEventListener("keydown", (event) => this.onKey(event));
    addEventListener("resize", () => this.changed());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    document.fonts?.ready.then(() => this.restyle());
    setInterval(() => this.eachSecond(), 1000);
    const frame = () => {
      this.onFrame();
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    this.start();
  }

  async start() {
    try {
      await letIn();
    } catch (error) {
      this.linkError = error.message; // a browser that was let in before needs no link
    }
    await this.stream.open();
  }

  // -------------------------------------------------------------------------------------------------------- records
  reset(nodes, state, begin) {
    this.live = new Model();
    this.live.seed(nodes, state.now);
    this.live.seq = begin;
    this.begin = begin;
    this.history = [];
    this.remote.clear();
    this.pending.clear();
    if (this.past) this.present();
    this.changed();
  }

  take(records) {
    const model = this.live;
    for (const one of records) {
      model.apply(one);
      this.history.push(one);
      if (one.entity_type === "turn" && (one.event === "PermissionRequested" || one.event === "PermissionAnswered")) this.askPermissions = true;
      if (one.entity_type === "turn" || one.entity_type === "task") this.acknowledge(one);
    }
    const most = this.isJournal() ? JOURNAL_WINDOW : HISTORY_MAX;
    if (this.history.length > most * 1.1) {
      this.history.splice(0, this.history.length - most);
      this.begin = this.history[0].seq - 1;
    }
    this.dirty = true;
  }

  /** A command has had its effect: its record has come. */
  acknowledge(r) {
    for (const [id] of this.pending) {
      const subject = this.live.permissions.get(id) || this.live.tasks.get(id);
      if (isTask(id) ? r.entity_id === id && r.outcome !== "fact" : !subject && id.startsWith(`${r.entity_id}:`)) this.pending.delete(id);
    }
  }

  /** Select what is worth looking at, once it is known. */
  selectFirst() {
    if (this.ui.selected !== null || !this.canAsk()) return;
    const rows = this.rows().map((one) => one.node);
    const living = rows.filter((one) => one.kind === "session" && one.ended === null);
    const found = living.find((one) => one.visual === "STALLED") || living.find((one) => this.model.openPermission(one)) || living[0] || rows[0];
    if (found) this.select(found.id);
  }

  recordsOf(id, most) {
    const found = [];
    const until = this.past ? this.past.seq : Infinity;
    for (let i = this.history.length - 1; i >= 0 && found.length < most; i--) {
      const r = this.history[i];
      if (r.seq <= until && (r.entity_id === id || r.entity_id.startsWith(`${id}:`))) found.push(r);
    }
    return found;
  }

  /** Chain of causes in the records that the page has, from the root, for moments of the past. */
  localChain(id) {
    let r = this.recordsOf(id, 1)[0];
    const found = [];
    while (r && found.length < 200) {
      found.unshift(r);
      r = r.cause_id ? this.recordAt(r.cause_id) : null;
    }
    return found;
  }

  recordAt(seq) {
    const at = this.history[seq - this.begin - 1];
    return at?.seq === seq ? at : this.history.find((one) => one.seq === seq) || null;
  }

  chain() {
    const id = this.ui.selected;
    if (id === null) return null;
    if (!this.isPresent()) return this.localChain(id).slice(-40);
    const path = `/causes/${inPath(id)}`;
    return this.remote.kept.get(path)?.value?.steps.map((one) => one.record) || null;
  }

  // ----------------------------------------------------------------------------------------------------------- time
  isJournal() {
    return this.stream.state?.live === false;
  }

  isPresent() {
    return this.past === null;
  }

  now() {
    if (this.at !== null) return this.at;
    if (this.isJournal()) return this.live.at;
    return this.isLost() ? Math.max(this.live.at, this.stream.now() - this.stream.silentS()) : this.stream.now();
  }

  extent() {
    const from = this.history[0]?.timestamp ?? this.now() - 60;
    return { from, to: Math.max(from + 1, this.isJournal() ? this.live.at : this.stream.now()) };
  }

  /** Show the state as it was at a moment: folded on from the moment shown if that is earlier, else from the first record. */
  seek(t) {
    const { to } = this.extent();
    if (t >= to) return this.present();
    const model = this.past && this.at !== null && t >= this.at && this.past !== this.live ? this.past : new Model();
    if (model !== this.past) model.seq = this.begin;
    let low = 0;
    let high = this.history.length;
    while (low < high) {
      const mid = (low + high) >> 1;
      if (this.history[mid].timestamp <= t) low = mid + 1;
      else high = mid;
    }
    let i = low; // numbers of records may be missing, so the place is looked for
    while (i > 0 && this.history[i - 1].seq > model.seq) i--;
    for (; i < low; i++) model.apply(this.history[i]);
    model.tick(t);
    this.past = model;
    this.at = t;
    return this.changed();
  }

  present() {
    this.past = null;
    this.at = null;
    this.playing = false;
    this.changed();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.changed();
  }

  step(by) {
    const until = this.past ? this.past.seq : this.live.seq;
    const one = this.history.find((r) => r.seq === until + by) || (by > 0 ? null : this.history.at(-1));
    if (one) this.seek(one.timestamp);
  }

  onFrame() {
    const at = performance.now();
    if (this.playing) {
      const t = this.at + (Math.min(250, at - (this.playedAt || at)) / 1000) * this.speed;
      this.playedAt = at;
      if (t >= this.extent().to) {
        this.present();
      } else {
        this.seek(t);
      }
    } else this.playedAt = 0;
    if (document.hidden) return;
    if (this.dirty && at - (this.paintedAt || 0) >= PAINT_MS) return this.paint();
    if (this.isPresent() && !this.isJournal() && !this.isLost() && at - (this.drawnAt || 0) > 32) {
      const begin = performance.now();
      this.tree?.draw();
      this.drawnAt = at;
      note(this.frames.draws, performance.now() - begin);
    } else if (this.playing) this.tree?.draw();
  }

  eachSecond() {
    if (document.hidden) return;
    const now = this.now();
    if (this.isPresent() && !this.isJournal()) {
      this.live.tick(now);
      this.remote.signs(this.live, now);
      if (this.askPermissions && this.canAsk()) {
        this.askPermissions = false;
        get("/permissions").then(({ items }) => {
          this.remotePermissions = new Map(items.map((one) => [one.id, one]));
          this.changed();
        }).catch(() => (this.askPermissions = true));
      }
    }
    this.selectFirst();
    this.changed();
  }

  // ---------------------------------------------------------------------------------------------------- the connection
  isLost() {
    return this.stream.status === "lost" || this.stream.status === "ended";
  }

  canAsk() {
    return ["live", "journal"].includes(this.stream.status);
  }

  canCommand() {
    return this.stream.status === "live" && this.isPresent();
  }

  emptyText() {
    if (this.ui.filter || this.ui.only || this.ui.hideEnded) return "Nothing fits the filter.";
    if (this.stream.status === "opening") return "Reading the journal…";
    return "No session has been started here yet.";
  }

  // -------------------------------------------------------------------------------------------------------- commands
  async command(id, doing, send) {
    this.pending.set(id, doing);
    this.changed();
    try {
      await send();
      setTimeout(() => {
        this.pending.delete(id);
        this.changed();
      }, 3000);
    } catch (error) {
      this.pending.delete(id);
      this.notify(error instanceof ApiError ? error.message : String(error), true);
    }
    this.changed();
  }

  answer(permission, allow) {
    return this.command(permission.id, allow ? "allowing…" : "denying…", () => post(`/permissions/${inPath(permission.id)}`, { allow, because: "answered on the page" }));
  }

  approve(task, yes) {
    return this.command(task.id, yes ? "approving…" : "rejecting…", () => post(`/tasks/${yes ? "approve" : "reject"}`, { tasks: [task.id], reason: yes ? "" : "rejected on the page" }, { key: newKey() }));
  }

  askAbort(session, item) {
    this.set({ selected: session, item, dialog: "abort" });
  }

  showAbort(abort) {
    this.select(abort.session, abort.scope === "tool" ? abort.target : null, true);
    this.set({ view: "sessions", span: Math.max(8, (this.now() - abort.t) * 2.5), end: null });
  }

  notify(text, bad = false) {
    this.set({ notice: { text, bad } });
  }

  // ----------------------------------------------------------------------------------------------------------- drawing
  changed() {
    this.dirty = true;
    if (this.asked || performance.now() - (this.paintedAt || 0) < 12) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      if (this.dirty) this.paint();
    });
  }

  paint() {
    const begin = performance.now();
    this.dirty = false;
    this.paintedAt = begin;
    this.forceUpdate(() => {
      this.tree?.draw();
      this.player?.draw();
      note(this.frames.updates, performance.now() - begin);
    });
  }

  set(patch) {
    Object.assign(this.ui, patch);
    this.changed();
  }

  restyle() {
    this.theme++;
    this.tree?.restyle();
    this.changed();
  }

  window() {
    const now = this.now();
    const { span, end } = this.ui;
    const begin = this.extent().from - span * 0.02;
    const to = end ?? Math.max(now + span * 0.08, begin + span);
    return { from: to - span, to };
  }

  zoom(factor, around = null) {
    const { from, to } = this.window();
    const span = Math.min(Math.max(this.ui.span * factor, 0.5), Math.max(60, (this.extent().to - this.extent().from) * 1.2));
    if (this.ui.end === null && around === null) return this.set({ span });
    const pivot = around ?? (from + to) / 2;
    return this.set({ span, end: pivot + span * ((to - pivot) / (to - from)) });
  }

  // --------------------------------------------------------------------------------------------------------------- rows
  /** The rows of the tree, filtered and folded: runs, the newest first, and below them their sessions. */
  rows() {
    const { model, ui } = this;
    const filters = ui.filter || ui.only || ui.hideEnded;
    const key = `${model.shape} ${ui.filter} ${ui.only} ${ui.hideEnded} ${ui.folds} ${filters ? Math.floor(model.version / 20) : 0}`;
    if (this.cached?.key === key && this.cached.model === model) return this.cached.rows;
    const words = ui.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (one) => (!ui.only || one.visual === ui.only) && (!ui.hideEnded || one.ended === null) && words.every((word) => `${one.id} ${one.agent || one.name} ${one.visual || one.state} ${one.outcome || ""}`.toLowerCase().includes(word));
    const wanted = new Set();
    if (filters) {
      for (const s of model.sessions.values()) if (fits(s)) for (let at = s; at && !wanted.has(at.id); at = at.parent && model.sessions.get(at.parent)) wanted.add(at.id).add(at.run);
      for (const run of model.runs.values()) if (!ui.only && fits(run) && (words.length || !ui.hideEnded || run.ended === null)) wanted.add(run.id);
    }
    const seen = (list) => (filters ? list.filter((one) => wanted.has(one.id)) : list);
    const rows = [];
    const walk = (list, depth) => {
      list.forEach((node, i) => {
        const kids = seen(node.kind === "run" ? below.get(node.id) || [] : node.children);
        const folded = ui.collapsed.has(node.id) && !words.length;
        rows.push({ node, depth, kids: kids.length, folded, pos: i + 1, of: list.length, context: filters ? !fits(node) : false });
        if (kids.length && !folded) walk(kids, depth + 1);
      });
    };
    const below = new Map();
    const free = [];
    for (const s of model.roots) {
      if (!s.run) free.push(s);
      else if (below.has(s.run)) below.get(s.run).push(s);
      else below.set(s.run, [s]);
    }
    walk(seen([...[...model.runs.values()].reverse(), ...free]), 0);
    this.cached = { key, model, rows };
    return rows;
  }

  select(id, item = null, opens = false) {
    const { model, ui } = this;
    const node = model.sessions.get(id);
    for (let above = node && (node.parent ?? node.run); above; above = model.sessions.get(above)?.parent ?? model.sessions.get(above)?.run) if (ui.collapsed.delete(above)) ui.folds++;
    const session = node ? id : model.sessions.has(sessionOf(id)) ? sessionOf(id) : id;
    const patch = { selected: session, item: session === id ? item : id };
    const run = node?.run || model.tasks.get(id)?.run || (model.runs.has(id) ? id : null);
    if (run) patch.run = run;
    if (opens && matchMedia("(max-width: 760px)").matches) patch.tab = "details";
    this.set(patch);
    if (ui.view === "plan" && node?.task === undefined && !isTask(id)) this.set({ view: "sessions" });
    this.tree?.reveal(session);
  }

  shownRun() {
    const { runs, tasks } = this.model;
    return runs.get(this.ui.run) || runs.get(tasks.get(this.ui.selected)?.run) || [...runs.values()].at(-1) || null;
  }

  taskNodes(run) {
    return this.isPresent() ? this.remote.read(`/runs/${run.id}`, 20, run.tasks.reduce((sum, one) => sum + (one.last?.seq || 0), 0)).value : null;
  }

  taskNode(task) {
    const run = this.model.runs.get(task.run);
    return (run && this.taskNodes(run)?.graph.find((one) => one.id === task.id)) || null;
  }

  move(by) {
    const rows = this.rows();
    const i = rows.findIndex((one) => one.node.id === this.ui.selected);
    const row = rows[Math.max(0, Math.min(rows.length - 1, i + by))];
    if (row) this.select(row.node.id);
    if (document.activeElement === document.body) document.querySelector(".tree-body")?.focus();
  }

  fold(id, folded) {
    if (folded) this.ui.collapsed.add(id);
    else this.ui.collapsed.delete(id);
    this.set({ folds: this.ui.folds + 1 });
  }

  side(by) {
    const row = this.rows().find((one) => one.node.id === this.ui.selected);
    if (!row) return;
    if (by < 0 && row.kids && !row.folded) this.fold(row.node.id, true);
    else if (by < 0) this.select(row.node.parent || row.node.run || row.node.id);
    else if (row.kids && row.folded) this.fold(row.node.id, false);
    else if (row.kids) this.move(1);
  }

  trouble() {
    const all = this.rows().map((one) => one.node).filter((one) => one.kind === "session");
    const at = all.findIndex((one) => one.id === this.ui.selected);
    for (let i = 1; i <= all.length; i++) {
      const s = all[(at + i) % all.length];
      if (s.ended === null && (s.visual === "STALLED" || s.visual === "UNKNOWN" || s.stage || this.model.openPermission(s))) return this.select(s.id);
    }
    return this.notify("Nothing is stalled, asks, or is ending.");
  }

  along(by) {
    const s = this.model.sessions.get(this.ui.selected);
    const items = s?.turns.flatMap((turn) => turn.calls) || [];
    if (!items.length) return;
    const i = items.findIndex((one) => one.id === this.ui.item);
    const call = items[i < 0 ? (by > 0 ? 0 : items.length - 1) : Math.max(0, Math.min(items.length - 1, i + by))];
    this.set({ item: call.id });
    const { from, to } = this.window();
    if (call.start < from || call.start > to) this.set({ end: call.start + this.ui.span / 2 });
  }

  section(name) {
    this.set({ tab: "details" });
    requestAnimationFrame(() => requestAnimationFrame(() => {
      const found = document.getElementById(`section-${name}`);
      found?.scrollIntoView({ block: "start" });
      found?.focus({ preventScroll: true });
    }));
  }

  // --------------------------------------------------------------------------------------------------------------- keys
  act(name) {
    const { ui } = this;
    const s = this.model.sessions.get(ui.selected);
    switch (name) {
      case "abort":
        if (!s || s.ended !== null) return this.notify(s ? `${s.id} has ended already.` : "Select a session: it is what an abort is about.");
        if (!this.canCommand()) return this.notify("No command can be given now: the page shows the past, or the supervisor does not answer.");
        return this.set({ dialog: "abort" });
      case "unit": return this.set({ unit: { cost: "tokens", tokens: "calls", calls: "cost" }[ui.unit] });
      case "all": {
        const { from, to } = this.extent();
        return this.set({ span: Math.max(5, (to - from) * 1.1), end: null });
      }
      case "present": return this.present();
      case "play":
        if (this.playing) this.playing = false;
        else {
          const { from, to } = this.extent();
          if (this.at === null || this.at >= to - 0.1) this.seek(this.at === null && !this.isJournal() ? Math.max(from, to - 60) : from);
          this.playing = true;
        }
        return this.changed();
      case "waiting":
        this.set({ allWaiting: true });
        return requestAnimationFrame(() => requestAnimationFrame(() => document.querySelector(".waiting .card-act button")?.focus()));
    }
    return undefined;
  }

  onKey(event) {
    const { target } = event;
    const types = /^(input|textarea|select)$/i.test(target.tagName) && !["range", "radio", "checkbox"].includes(target.type);
    if (event.key === "Escape" && !this.ui.dialog) {
      if (types) target.blur();
      if (this.ui.filter || this.ui.only) this.set({ filter: "", only: null });
      document.querySelector(".tree-body")?.focus();
      return;
    }
    if (types || this.ui.dialog || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.type === "range" && event.key.startsWith("Arrow")) return;
    if (target.closest?.("button, a, summary") && (event.key === " " || event.key === "Enter")) return;
    if (target.closest?.(".plan, .said, .ends, .scroll-x") && event.key.startsWith("Arrow")) return;
    const keys = {
      j: () => this.move(1), ArrowDown: () => this.move(1), k: () => this.move(-1), ArrowUp: () => this.move(-1), J: () => this.move(10), K: () => this.move(-10),
      PageDown: () => this.move(20), PageUp: () => this.move(-20), g: () => this.move(-1e9), Home: () => this.move(-1e9), G: () => this.move(1e9), End: () => this.move(1e9),
      h: () => this.side(-1), ArrowLeft: () => this.side(-1), l: () => this.side(1), ArrowRight: () => this.side(1),
      H: () => this.foldAll(true), L: () => this.foldAll(false), n: () => this.trouble(), i: () => this.act("waiting"), a: () => this.act("abort"),
      w: () => this.section("why"), o: () => this.section("output"), "[": () => this.along(-1), "]": () => this.along(1),
      "/": () => document.getElementById("filter")?.focus(), e: () => this.set({ hideEnded: !this.ui.hideEnded }), u: () => this.act("unit"),
      s: () => this.set({ view: "sessions" }), p: () => this.set({ view: this.ui.view === "plan" ? "sessions" : "plan" }), r: () => this.set({ view: this.ui.view === "runs" ? "sessions" : "runs" }),
      "+": () => this.zoom(1 / 1.5), "=": () => this.zoom(1 / 1.5), "-": () => this.zoom(1.5), 0: () => this.act("all"), f: () => this.set({ end: null }),
      " ": () => this.act("play"), ",": () => this.step(-1), ".": () => this.step(1), "?": () => this.set({ dialog: "help" }),
      Enter: () => document.querySelector(".details")?.focus(),
    };
    if (!Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  }

  foldAll(folded) {
    this.ui.collapsed = new Set(folded ? [...this.model.runs.keys(), ...[...this.model.sessions.values()].filter((one) => one.children.length).map((one) => one.id)] : []);
    this.set({ folds: this.ui.folds + 1 });
  }

  // -------------------------------------------------------------------------------------------------------------- frame
  waitingText() {
    const asks = this.model.waiting().length;
    const aborts = this.model.underway().length;
    return [asks && `${asks} ${asks === 1 ? "waits" : "wait"} for you`, aborts && `${plural(aborts, "abort")} under way`].filter(Boolean).join(", ");
  }

  render() {
    const { stream, ui } = this;
    if (stream.status === "denied") return html`<main class="gate"><h1>supervisor</h1><p>${this.linkError || stream.why}</p><p class="soft">In a terminal, in the directory of the supervisor: <code>supervisor ui</code></p></main>`;
    const now = this.now();
    const lost = this.isLost();
    return html`<div class="frame" data-view=${ui.view} data-tab=${ui.tab} data-lost=${lost} data-past=${!this.isPresent()}>
      <${Top} app=${this} now=${now} />
      <${Banner} app=${this} />
      <${Waiting} app=${this} now=${now} />
      <main class="main">
        ${ui.view === "plan" ? html`<${PlanView} app=${this} now=${now} />` : ui.view === "runs" ? html`<${RunsView} app=${this} now=${now} />` : html`<${Tree} app=${this} />`}
        <${Splitter} app=${this} />
        <${Details} app=${this} now=${now} />
      </main>
      <${Player} app=${this} now=${now} />
      <nav class="tabs" aria-label="Parts">${[["tree", "sessions", "Sessions"], ["timeline", "sessions", "Timeline"], ["details", null, "Details"], ["plan", "plan", "Plan"], ["runs", "runs", "Runs"]].map(([tab, view, name]) => html`<button key=${tab} aria-pressed=${ui.tab === tab} onClick=${() => this.set(view ? { tab, view } : { tab })}>${name}</button>`)}</nav>
      <p class="vh" role="status" aria-live="polite">${lost ? "The connection to the supervisor is lost." : this.waitingText()}</p>
      ${ui.dialog === "abort" && html`<${AbortDialog} app=${this} />`}${ui.dialog === "help" && html`<${Help} app=${this} />`}
    </div>`;
  }
}

function Top({ app, now }) {
  const { model, ui, stream } = app;
  const name = (stream.state?.directory || "").replace(/\/\.sdd$/, "").split("/").filter(Boolean).at(-1) || "supervisor";
  const scope = [...model.scopes.values()].filter((one) => (one.limits.cost_usd ?? null) !== null && model.runs.get(one.id)?.ended === null).at(-1);
  const tokens = tokensOf(model.total);
  return html`<header class="top">
    <h1 title=${stream.state?.directory}>${name}</h1>
    <span class="status" data-status=${app.isPresent() ? stream.status : "past"}>${app.isPresent() ? { opening: "opening", live: "live", lost: "no connection", ended: "has ended", journal: "journal" }[stream.status] : "the past"}</span>
    <div class="counts" role="group" aria-label="Filter by state">${Object.keys(VISUAL).map((state) => html`<button key=${state} class="count" data-none=${!model.counts[state]} aria-pressed=${ui.only === state} title=${`${state}: ${VISUAL[state].means}`} onClick=${() => app.set({ only: ui.only === state ? null : state, view: "sessions" })}><${Indicator} state=${state} quiet /><b>${model.counts[state]}</b><span>${state.toLowerCase()}</span></button>`)}</div>
    <dl class="totals"><div><dt>Cost</dt><dd>$${money(model.total.cost_usd)}</dd></div>${scope && html`<div><dt>${scope.id}</dt><dd>$${money(scope.used.cost_usd || 0)}<span> of ${money(scope.limits.cost_usd)}</span></dd></div>`}${tokens > 0 && html`<div><dt>Tokens</dt><dd>${count(tokens)}</dd></div>`}</dl>
    <div class="views" role="group" aria-label="View">${[["sessions", "Sessions"], ["plan", "Plan"], ["runs", "Runs"]].map(([view, text]) => html`<button key=${view} aria-pressed=${ui.view === view} onClick=${() => app.set({ view })}>${text}</button>`)}</div>
    <button class="plain keys" aria-label="Keys and signs" onClick=${() => app.set({ dialog: "help" })}>?</button>
  </header>`;
}

function Banner({ app }) {
  const { stream, ui } = app;
  const texts = [];
  const since = duration(stream.silentS());
  if (stream.status === "lost") texts.push(["bad", `No connection to the supervisor for ${since}. What you see is how it was then. ${stream.why ? `(${stream.why}) ` : ""}The page goes on by itself when the supervisor answers.`]);
  if (stream.status === "ended") texts.push(["", "The supervisor has ended its sessions. The page goes on by itself when a supervisor runs here again."]);
  if (stream.state && stream.state.build !== BUILD) texts.push(["", html`The supervisor was upgraded to ${stream.state.version}, and this page is older. <button onClick=${() => location.reload()}>Reload</button>`]);
  if (stream.state && !stream.state.identified && stream.state.live) texts.push(["", "The supervisor cannot tell which program this browser is, so the page may only read. Start the browser outside of the supervisor and of containers."]);
  if (app.begin > 0 && app.isJournal()) texts.push(["", `The journal is long: the page shows its last ${count(JOURNAL_WINDOW)} records.`]);
  if (!app.isPresent() && !app.isJournal()) texts.push(["", html`This is the past. Commands can be given at the present only. <button onClick=${() => app.present()}>Back to live</button>`]);
  if (ui.notice) texts.push([ui.notice.bad ? "bad" : "", html`${ui.notice.text} <button class="plain" aria-label="Dismiss" onClick=${() => app.set({ notice: null })}>×</button>`]);
  return texts.length ? html`<div class="banners" role="alert">${texts.map(([kind, text], i) => html`<p key=${i} data-kind=${kind}>${text}</p>`)}</div>` : null;
}

/** Border between the panes; it moves with the pointer and with the arrow keys. */
function Splitter({ app }) {
  const root = document.documentElement;
  const size = () => parseFloat(getComputedStyle(root).getPropertyValue("--details")) || 360;
  const put = (px) => {
    root.style.setProperty("--details", `${Math.max(DETAILS_PX[0], Math.min(DETAILS_PX[1], px))}px`);
    app.changed();
  };
  const down = (event) => {
    const begin = event.clientX;
    const before = size();
    const move = (e) => put(before + begin - e.clientX);
    const up = () => removeEventListener("pointermove", move);
    addEventListener("pointermove", move);
    addEventListener("pointerup", up, { once: true });
  };
  const key = (event) => {
    const by = { ArrowLeft: 24, ArrowRight: -24 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    put(size() + by);
  };
  return html`<div class="splitter" role="separator" aria-orientation="vertical" aria-label="Width of the details" aria-valuemin=${DETAILS_PX[0]} aria-valuemax=${DETAILS_PX[1]} aria-valuenow=${Math.round(size())} tabindex="0" onPointerDown=${down} onKeyDown=${key}></div>`;
}

function note(list, ms) {
  list.push(ms);
  if (list.length > 1000) list.shift();
}

const place = document.getElementById("app");
place.textContent = "";
render(html`<${App} />`, place);
