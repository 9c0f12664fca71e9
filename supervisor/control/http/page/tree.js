// The tree: runs and sessions, only the rows in sight as elements, and the timeline beside it in the same scroll position.
import { html, Component } from "./vendor/preact-htm.js";
import { age, count, money, staleness, tokensOf } from "./format.js";
import { Indicator } from "./icon.js";
import { AXIS, Lanes } from "./lanes.js";

const UNITS = { cost: "Cost", tokens: "Tokens", calls: "Calls" };

export class Tree extends Component {
  constructor() {
    super();
    this.scroll = 0;
    this.hover = -1;
    this.pointer = null;
  }

  componentDidMount() {
    this.props.app.tree = this;
    this.lanes = new Lanes(this.canvas);
    this.sizes = new ResizeObserver(() => this.props.app.changed());
    this.sizes.observe(this.body);
    this.sizes.observe(this.canvas);
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  componentWillUnmount() {
    this.sizes.disconnect();
    this.props.app.tree = null;
  }

  rowHeight() {
    return parseFloat(getComputedStyle(this.body || document.documentElement).getPropertyValue("--row")) || 28;
  }

  /** Paint the timeline. */
  draw() {
    const { app } = this.props;
    if (!this.lanes || !this.canvas.clientWidth) return;
    const { from, to } = app.window();
    this.lanes.draw({
      model: app.model, rows: app.rows(), row: this.row, scroll: this.scroll, now: app.now(), from, to, selected: app.ui.selected, item: app.ui.item,
      hover: this.hover, pointer: this.pointer, chain: app.chain(),
    });
  }

  restyle() {
    this.lanes?.restyle();
    this.draw();
  }

  reveal(id) {
    const i = this.props.app.rows().findIndex((one) => one.node.id === id);
    if (i < 0 || !this.body) return;
    const top = i * this.row;
    const room = this.body.clientHeight;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + this.row > this.body.scrollTop + room) this.body.scrollTop = top + this.row - room;
  }

  onScroll = () => {
    this.scroll = this.body.scrollTop;
    this.props.app.changed();
  };

  // -------------------------------------------------------------------------------------------- pointer in the lanes
  wheel(event) {
    const { app } = this.props;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) app.zoom(Math.exp(event.deltaY / 300), this.lanes.time(event.offsetX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.lanes.width);
    else this.body.scrollTop += event.deltaY;
  }

  pan(share) {
    const { app } = this.props;
    const { from, to } = app.window();
    app.set({ end: to + (to - from) * share });
  }

  onDown = (event) => {
    this.drag = { x: event.clientX, y: event.clientY, moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  };

  onMove = (event) => {
    const { app } = this.props;
    if (this.drag) {
      const dx = event.clientX - this.drag.x;
      if (Math.abs(dx) + Math.abs(event.clientY - this.drag.y) > 4) this.drag.moved = true;
      if (this.drag.moved) {
        this.pan(-dx / this.lanes.width);
        this.body.scrollTop -= event.clientY - this.drag.y;
        Object.assign(this.drag, { x: event.clientX, y: event.clientY });
      }
      return;
    }
    this.pointer = event.offsetX;
    this.hover = event.offsetY > AXIS ? Math.floor((event.offsetY - AXIS + this.scroll) / this.row) : -1;
    const hit = this.lanes.at(event.offsetX, event.offsetY);
    this.note = hit ? { x: event.offsetX, y: event.offsetY, text: hit.text } : null;
    app.changed();
  };

  onUp = (event) => {
    const { app } = this.props;
    const { moved } = this.drag || { moved: true };
    this.drag = null;
    if (moved) return;
    const hit = this.lanes.at(event.offsetX, event.offsetY);
    const row = app.rows()[Math.floor((event.offsetY - AXIS + this.scroll) / this.row)];
    if (hit) app.select(hit.session, hit.id, true);
    else if (row && event.offsetY > AXIS) app.select(row.node.id, null, true);
  };

  onLeave = () => {
    this.pointer = null;
    this.hover = -1;
    this.note = null;
    this.props.app.changed();
  };

  render({ app }) {
    const rows = app.rows();
    const { ui } = app;
    this.row = this.rowHeight();
    const room = this.body?.clientHeight || 800;
    const first = Math.max(0, Math.floor(this.scroll / this.row) - 2);
    const shown = rows.slice(first, Math.ceil((this.scroll + room) / this.row) + 2);
    const now = app.now();
    const { from, to } = app.window();
    return html`<div class="sessions">
      <section class="tree" aria-label="Sessions">
        <div class="tree-head">
          <label class="filter"><span class="vh">Filter sessions</span><input id="filter" type="search" placeholder="Filter" value=${ui.filter} onInput=${(e) => app.set({ filter: e.target.value })} autocomplete="off" spellcheck="false" /><kbd aria-hidden="true">/</kbd></label>
          <span class="head-now"><span>Right now</span><button class="chip" aria-pressed=${ui.hideEnded} onClick=${() => app.set({ hideEnded: !ui.hideEnded })}>hide ended</button></span>
          <span class="head-age" title="Seconds since the last sign of life">Heard</span>
          <button class="head-use" title="Cost, tokens or calls, with everything below" onClick=${() => app.act("unit")}>${UNITS[ui.unit]}</button>
        </div>
        <div class="tree-body" ref=${(one) => (this.body = one)} role="treegrid" aria-label="Runs and sessions" aria-rowcount=${rows.length || -1} aria-colcount="4" tabindex="0" aria-activedescendant=${ui.selected && shown.some((one) => one.node.id === ui.selected) ? domId(ui.selected) : undefined} onScroll=${this.onScroll}>
          ${rows.length === 0 && html`<div role="row" class="empty-row"><span role="gridcell" aria-colindex="1">${app.emptyText()}</span></div>`}
          <div class="rows" role="presentation" style=${{ height: `${rows.length * this.row}px` }}>
            ${shown.map((row, i) => html`<${Row} key=${row.node.id} app=${app} row=${row} top=${(first + i) * this.row} index=${first + i} now=${now} />`)}
          </div>
        </div>
      </section>
      <section class="lanes" aria-label="Timeline">
        <canvas ref=${(one) => (this.canvas = one)} role="img" aria-label="Timeline of the sessions beside it; the details of the selected session say the same in words" onPointerDown=${this.onDown} onPointerMove=${this.onMove} onPointerUp=${this.onUp} onPointerLeave=${this.onLeave}></canvas>
        ${this.note && html`<div class="note" style=${{ left: `${Math.min(this.note.x + 12, Math.max(0, (this.lanes?.width || 0) - 330))}px`, top: `${this.note.y + 14}px` }}>${this.note.text}</div>`}
        <div class="zoom" role="group" aria-label="Zoom of the timeline">
          <button aria-label="Zoom out" onClick=${() => app.zoom(1.5)}>−</button><span>${spanText(to - from)}</span><button aria-label="Zoom in" onClick=${() => app.zoom(1 / 1.5)}>+</button>
          <button onClick=${() => app.act("all")}>all</button>${ui.end !== null && html`<button class="strong" onClick=${() => app.set({ end: null })}>follow</button>`}
        </div>
      </section>
    </div>`;
  }
}

const domId = (id) => `row-${encodeURIComponent(id).replaceAll("%", "_")}`;
const spanText = (s) => (s < 60 ? `${s < 10 ? s.toFixed(1) : Math.round(s)} s` : s < 3600 ? `${Math.round(s / 60)} min` : s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`);

function Row({ app, row, top, index, now }) {
  const { node, depth } = row;
  const selected = app.ui.selected === node.id;
  const common = {
    id: domId(node.id), role: "row", class: "row", "data-kind": node.kind, "aria-level": depth + 1, "aria-posinset": row.pos, "aria-setsize": row.of, "aria-rowindex": index + 1,
    "aria-selected": selected ? "true" : "false", "aria-expanded": row.kids ? String(!row.folded) : undefined, style: { transform: `translateY(${top}px)` },
    onClick: () => app.select(node.id, null, true), "data-context": row.context, "data-ended": node.ended !== null,
  };
  const twist = html`<span class="twist" data-open=${!row.folded} style=${{ marginLeft: `${Math.min(depth, 12) * 14}px` }} onClick=${(e) => { e.stopPropagation(); app.fold(node.id, !row.folded); }}>${row.kids ? html`<svg viewBox="0 0 10 10" width="10" height="10" aria-hidden="true"><path d="M3 2l4 3-4 3" fill="none" stroke="currentColor" stroke-width="1.5" /></svg>` : ""}</span>`;
  return node.kind === "run" ? html`<div ...${common}>${runCells(app, node, twist, now)}</div>` : html`<div ...${common}>${sessionCells(app, node, twist, now)}</div>`;
}

function runCells(app, run, twist, now) {
  const done = run.tasks.filter((one) => one.state === "CLOSED" || one.state === "CANCELLED").length;
  const waits = run.tasks.filter((one) => one.sessions.length === 0 && one.end === null).length;
  const text = run.tasks.length ? `${done} of ${run.tasks.length} tasks${waits && run.ended === null ? `, ${waits} to come` : ""}` : "";
  return html`<span role="gridcell" aria-colindex="1" class="cell-name">${twist}<span class="run-id">${run.id}</span><b>${run.name}</b></span>
    <span role="gridcell" aria-colindex="2" class="cell-now" data-tone=${run.ended !== null && run.state !== "completed" ? "bad" : "soft"}>${run.state}${text && ` · ${text}`}</span>
    <span role="gridcell" aria-colindex="3" class="cell-age">${age(now - (run.ended ?? run.since))}</span>
    <span role="gridcell" aria-colindex="4" class="cell-use">${used(app, run.used)}</span>`;
}

function sessionCells(app, s, twist, now) {
  const doing = app.model.doing(s);
  const silentS = now - s.heard;
  const level = app.model.mayBeSilent(s) ? "quiet" : s.visual === "STALLED" ? "stale" : staleness(silentS);
  return html`<span role="gridcell" aria-colindex="1" class="cell-name">${twist}<${Indicator} state=${s.visual} /><b>${s.name}</b></span>
    <span role="gridcell" aria-colindex="2" class="cell-now" data-tone=${doing.tone} data-code=${!!doing.code} data-level=${level}>${doing.text}</span>
    <span role="gridcell" aria-colindex="3" class="cell-age" data-level=${level}>${age(s.ended !== null ? now - s.ended : silentS)}</span>
    <span role="gridcell" aria-colindex="4" class="cell-use">${used(app, s.total)}</span>`;
}

function used(app, amounts) {
  switch (app.ui.unit) {
    case "tokens": return tokensOf(amounts) ? count(tokensOf(amounts)) : "";
    case "calls": return amounts.tool_calls ? count(amounts.tool_calls) : "";
    default: return amounts.cost_usd ? money(amounts.cost_usd) : "";
  }
}
