// The timeline: a lane for each row of the tree, on one canvas. It only draws: what it shows can be reached by keyboard in
// the tree, and read in the details.
import { clock, duration } from "./format.js";
import { STAGES, sessionOf } from "./model.js";

export const AXIS = 32;
const STEPS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800];
const TONE = { SPAWNING: "yellow", RUNNING: "green", STALLED: "orange", MERGING: "blue", DEAD: "red", IDLE: "gray", UNKNOWN: "dim" };
const STAGE_TONE = { request: "text-3", cancel: "yellow", terminate: "orange", kill: "red", abandon: "red" };
const COLOURS = ["bg", "panel", "raised", "line", "line-2", "text", "text-2", "text-3", "selected", "hover", "turn", "turn-line", "call", "call-text", "yellow", "green", "orange", "blue", "red", "gray", "dim"];
const BAR = 14;
const WORDS = '500 11px "Inter", system-ui, sans-serif';
const CODE = '400 10.5px "JetBrains Mono", ui-monospace, monospace';
const WEEK_S = 7 * 86400;

export class Lanes {
  constructor(canvas) {
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.hits = [];
    this.restyle();
  }

  restyle() {
    const css = getComputedStyle(document.documentElement);
    this.c = Object.fromEntries(COLOURS.map((name) => [name, css.getPropertyValue(`--${name}`).trim()]));
    this.hatches = {};
  }

  fit() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(w * ratio) || this.canvas.height !== Math.round(h * ratio)) {
      this.canvas.width = Math.round(w * ratio);
      this.canvas.height = Math.round(h * ratio);
    }
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.width = w;
    this.height = h;
  }

  x(t) {
    return ((t - this.from) / (this.to - this.from)) * this.width;
  }

  /** x within the canvas, a little beyond its borders at most: far coordinates are drawn wrongly. */
  within(t) {
    return Math.max(-6, Math.min(this.width + 6, this.x(t)));
  }

  time(x) {
    return this.from + (x / this.width) * (this.to - this.from);
  }

  draw(view) {
    this.fit();
    if (this.width < 2) return;
    const { ctx, c } = this;
    const { model, rows, row, scroll, now } = view;
    Object.assign(this, { from: view.from, to: view.to, now, item: view.item, hits: [] });
    ctx.fillStyle = c.bg;
    ctx.fillRect(0, 0, this.width, this.height);
    const step = STEPS.find((one) => (one / (this.to - this.from)) * this.width >= 84) || WEEK_S * 4;
    const first = Math.ceil(this.from / step) * step;
    ctx.fillStyle = c.line;
    for (let t = first; t < this.to; t += step) ctx.fillRect(Math.round(this.x(t)), AXIS, 1, this.height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, AXIS, this.width, this.height);
    ctx.clip();
    ctx.textBaseline = "middle";
    const begin = Math.max(0, Math.floor(scroll / row));
    const end = Math.min(rows.length, Math.ceil((scroll + this.height - AXIS) / row));
    for (let i = begin; i < end; i++) {
      const y = AXIS + i * row - scroll;
      const one = rows[i].node;
      if (one.id === view.selected || i === view.hover) {
        ctx.fillStyle = one.id === view.selected ? c.selected : c.hover;
        ctx.fillRect(0, y, this.width, row);
      }
      if (one.kind === "run") this.run(one, y, row);
      else this.session(model, one, y, row);
    }
    if (view.chain?.length > 1) this.chain(view.chain, rows, row, scroll);
    const x = this.x(now);
    if (x < this.width) {
      ctx.globalAlpha = 0.55;
      ctx.fillStyle = c.panel;
      ctx.fillRect(x, AXIS, this.width - x, this.height);
      ctx.globalAlpha = 1;
      ctx.fillStyle = c["line-2"];
      ctx.fillRect(Math.round(x), AXIS, 1, this.height);
    }
    ctx.restore();
    this.axis(first, step, now, view.pointer);
  }

  axis(first, step, now, pointer) {
    const { ctx, c } = this;
    ctx.fillStyle = c.panel;
    ctx.fillRect(0, 0, this.width, AXIS);
    ctx.fillStyle = c.line;
    ctx.fillRect(0, AXIS - 1, this.width, 1);
    ctx.font = WORDS;
    ctx.textBaseline = "middle";
    const nx = this.x(now);
    const label = (t) => (step < 1 ? clock(t, 3).slice(3, 11) : step < 60 ? clock(t) : step < 86400 ? clock(t).slice(0, 5) : new Date(t * 1000).toLocaleDateString(undefined, { month: "short", day: "numeric" }));
    for (let t = first; t < this.to; t += step) {
      const x = this.x(t);
      if (x > this.width - 40 || (nx > 0 && nx < this.width && Math.abs(x + 24 - nx) < 66)) continue;
      ctx.fillStyle = c["line-2"];
      ctx.fillRect(Math.round(x), AXIS - 7, 1, 6);
      ctx.fillStyle = c["text-3"];
      ctx.fillText(label(t), x + 4, AXIS / 2);
    }
    const flag = (x, text, back, fore) => {
      const w = ctx.measureText(text).width + 12;
      const at = Math.max(2, Math.min(this.width - w - 2, x - w / 2));
      ctx.fillStyle = back;
      this.box(at, 7, w, 18, 4);
      ctx.fill();
      ctx.fillStyle = fore;
      ctx.fillText(text, at + 6, 16.5);
    };
    if (pointer !== null && pointer !== undefined) {
      ctx.fillStyle = c["line-2"];
      ctx.fillRect(Math.round(pointer), AXIS, 1, this.height);
      flag(pointer, clock(this.time(pointer), this.to - this.from < 30 ? 3 : 0), c.raised, c.text);
    }
    if (nx > 0 && nx < this.width) flag(nx, clock(now), c.text, c.bg);
  }

  box(x, y, w, h, r) {
    this.ctx.beginPath();
    this.ctx.roundRect(x, y, Math.max(0.5, w), h, Math.min(r, w / 2, h / 2));
  }

  run(run, y, row) {
    const { ctx, c } = this;
    const a = this.within(run.born);
    const b = this.within(run.ended ?? this.now);
    const mid = y + row / 2;
    ctx.fillStyle = c["line-2"];
    ctx.fillRect(a, mid - 1, Math.max(1, b - a), 2);
    for (const x of run.ended === null ? [a] : [a, b]) ctx.fillRect(x - 1, mid - 5, 2, 10);
  }

  session(model, s, y, row) {
    const { ctx, c } = this;
    const top = y + Math.round((row - BAR - 4) / 2);
    const until = s.ended ?? this.now;
    if (until < this.from || s.born > this.to) return this.outside(until < this.from, y + row / 2);
    for (let i = s.segments.length - 1; i >= 0; i--) {
      const { t, visual } = s.segments[i];
      const end = s.segments[i + 1]?.t ?? until;
      if (end < this.from) break;
      if (t > this.to || visual === "DEAD") continue;
      const a = this.within(t);
      ctx.fillStyle = c[TONE[visual]];
      ctx.fillRect(a, top + BAR + 2, Math.max(1, this.within(end) - a), 2);
    }
    for (let i = s.turns.length - 1; i >= 0; i--) {
      const turn = s.turns[i];
      if ((turn.end ?? until) < this.from) break;
      if (turn.start <= this.to) this.turn(turn, s, top, until);
    }
    const abort = s.stop?.abort && model.aborts.get(s.stop.abort);
    if (s.stop) this.stages(s, top, until, abort);
    for (const mark of s.marks) if (mark.t >= this.from && mark.t <= this.to) this.mark(mark, s, top);
    if (s.ended !== null && s.ended >= this.from && s.ended <= this.to) this.end(s, top);
    return undefined;
  }

  outside(isPast, y) {
    const { ctx, c } = this;
    const x = isPast ? 4 : this.width - 4;
    const d = isPast ? 4 : -4;
    ctx.fillStyle = c["line-2"];
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(x + d, y - 3);
    ctx.lineTo(x + d, y + 3);
    ctx.fill();
  }

  turn(turn, s, top, until) {
    const { ctx, c } = this;
    const end = Math.min(turn.end ?? until, until);
    const a = this.within(turn.start);
    const w = Math.max(2, this.within(end) - a);
    ctx.fillStyle = c.turn;
    this.box(a, top, w, BAR, 3);
    ctx.fill();
    if (w > 4) {
      ctx.strokeStyle = this.item === turn.id ? c.text : c["turn-line"];
      ctx.lineWidth = 1;
      this.box(a + 0.5, top + 0.5, w - 1, BAR - 1, 3);
      ctx.stroke();
    }
    this.hits.push({ x: a, w: Math.max(5, w), y: top, id: turn.id, session: s.id, text: `turn ${turn.id} · ${turn.state} · ${duration(end - turn.start)}` });
    const slots = slotsOf(turn.calls, end);
    const height = (BAR - 4) / slots;
    let last = -Infinity;
    for (const call of turn.calls) {
      const callEnd = Math.min(call.end ?? end, end);
      if (callEnd < this.from || call.start > this.to) continue;
      const x = this.within(call.start);
      const cw = Math.max(2, this.within(callEnd) - x);
      const isBad = call.outcome && call.outcome !== "completed";
      if (x + cw < last + 1 && !isBad && slots === 1) continue; // nothing of it would be seen
      last = x + cw;
      const y = top + 2 + call.slot * height;
      ctx.fillStyle = c.call;
      this.box(x, y, cw, Math.max(1.5, height - (slots > 1 ? 1 : 0)), 2);
      ctx.fill();
      if (isBad) {
        ctx.fillStyle = c.red;
        ctx.fillRect(x + cw - 2, y, 2, Math.max(1.5, height));
      }
      if (this.item === call.id) {
        ctx.strokeStyle = c.text;
        ctx.lineWidth = 1.5;
        this.box(x, y - 1, cw, height + 2, 2);
        ctx.stroke();
      }
      if (slots === 1) this.text(call.title, x, cw, top + BAR / 2 + 0.5);
      this.hits.push({ x, w: Math.max(5, cw), y: top, id: call.id, session: s.id, text: `${call.title.slice(0, 160)} · ${call.outcome || "open"} · ${duration((call.end ?? this.now) - call.start)}` });
    }
    for (const one of turn.permissions) if (one.t <= this.to) this.permission(one, s, top, end);
  }

  text(title, x, w, y) {
    const { ctx, c } = this;
    const from = Math.max(x, 0);
    const room = Math.floor((Math.min(x + w, this.width) - from - 10) / 6.35);
    if (room < 4) return;
    const cut = title.indexOf("\n");
    const text = cut < 0 ? title : title.slice(0, cut);
    ctx.font = CODE;
    ctx.fillStyle = c["call-text"];
    ctx.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, from + 5, y);
  }

  hatch(name) {
    if (!this.hatches[name]) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 6;
      const t = tile.getContext("2d");
      t.strokeStyle = this.c[name];
      for (const d of [-6, 0, 6]) {
        t.moveTo(d, 6);
        t.lineTo(d + 6, 0);
      }
      t.stroke();
      this.hatches[name] = this.ctx.createPattern(tile, "repeat");
    }
    return this.hatches[name];
  }

  permission(one, s, top, end) {
    const { ctx, c } = this;
    const a = this.within(one.t);
    const w = Math.max(4, this.within(one.end ?? end) - a);
    if (a + w < 0) return;
    ctx.fillStyle = c.bg;
    ctx.fillRect(a, top, w, BAR);
    ctx.globalAlpha = one.open ? 0.9 : 0.4;
    ctx.fillStyle = this.hatch("yellow");
    ctx.fillRect(a, top, w, BAR);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = c.yellow;
    ctx.lineWidth = 1;
    ctx.strokeRect(a + 0.5, top + 0.5, w - 1, BAR - 1);
    if (w > 76) this.label(one.open ? "asks you" : { allow: "allowed", deny: "denied" }[one.decision] || one.decision, Math.max(a, 0) + 5, top, c.yellow);
    this.hits.push({ x: a, w: Math.max(6, w), y: top, id: one.id, session: s.id, text: `permission: ${one.title.slice(0, 160)} · ${one.open ? "waits for you" : one.decision}` });
  }

  label(text, x, top, tone) {
    const { ctx, c } = this;
    ctx.font = WORDS;
    const w = ctx.measureText(text).width + 6;
    ctx.fillStyle = c.bg;
    ctx.fillRect(x - 3, top + 2, w, BAR - 4);
    ctx.fillStyle = tone;
    ctx.fillText(text, x, top + BAR / 2 + 0.5);
  }

  /** From the order to end until the end: the stage that was reached, in its colour. */
  stages(s, top, until, abort) {
    const { ctx, c } = this;
    const known = s.stage ? s.stage.stage : s.reached;
    if (!abort && (known === "request" || !known)) return;
    const tone = c[STAGE_TONE[known] || "text-3"];
    const begin = abort ? abort.t : s.stop.t;
    const a = this.within(begin);
    const w = Math.max(2, this.within(until) - a);
    if (a + w < 0 || a > this.width) return;
    ctx.fillStyle = c.bg;
    ctx.fillRect(a, top, w, BAR);
    ctx.globalAlpha = 0.16;
    ctx.fillStyle = tone;
    ctx.fillRect(a, top, w, BAR);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = tone;
    ctx.lineWidth = 1;
    ctx.strokeRect(a + 0.5, top + 0.5, w - 1, BAR - 1);
    ctx.fillStyle = tone;
    const reached = STAGES.indexOf(known) + 1;
    for (let i = 0; i < reached; i++) ctx.fillRect(a + 3 + i * 4, top + BAR - 5, 3, 2);
    if (w > 90) this.label(`ending: ${known}`, Math.max(a, 0) + 26, top, tone);
    this.hits.push({ x: a, w: Math.max(5, w), y: top, id: `end:${s.id}`, session: s.id, text: `${s.ended === null ? "is ending" : "ended"} · stage ${known} · ${duration(until - begin)}` });
  }

  mark(mark, s, top) {
    const { ctx, c } = this;
    const x = this.x(mark.t);
    ctx.beginPath();
    if (mark.kind === "crash") {
      ctx.strokeStyle = c.red;
      ctx.lineWidth = 1.6;
      for (const d of [-1, 1]) {
        ctx.moveTo(x - 3, top + 7 - 3 * d);
        ctx.lineTo(x + 3, top + 7 + 3 * d);
      }
      ctx.stroke();
    } else if (mark.kind === "abort") {
      ctx.fillStyle = c.red;
      ctx.fillRect(x - 1, top - 3, 2, BAR + 6);
    } else {
      ctx.fillStyle = mark.kind === "stall" ? c.orange : c["text-2"];
      ctx.moveTo(x - 4, top - 4);
      ctx.lineTo(x + 4, top - 4);
      ctx.lineTo(x, top + 2);
      ctx.fill();
    }
    this.hits.push({ x: x - 5, w: 10, y: top - 5, id: `mark:${mark.seq}`, session: s.id, text: `${mark.kind}: ${mark.text}` });
  }

  end(s, top) {
    const { ctx, c } = this;
    const x = this.x(s.ended) + 6;
    const y = top + BAR / 2;
    ctx.fillStyle = c.bg;
    ctx.strokeStyle = c.red;
    ctx.lineWidth = 1.3;
    ctx.beginPath();
    ctx.arc(x, y, 3.5, 0, 7);
    ctx.fill();
    ctx.stroke();
    const text = s.stop?.abort ? `${s.reached} ${duration(s.took)}` : s.outcome === "completed" ? "" : s.outcome;
    if (!text) return;
    ctx.font = WORDS;
    ctx.fillStyle = c["text-2"];
    ctx.fillText(text, x + 8, y + 0.5);
  }

  /** The causes of what is selected: dashes from lane to lane, at the time of each step. */
  chain(records, rows, row, scroll) {
    const { ctx, c } = this;
    const index = new Map(rows.map((one, i) => [one.node.id, i]));
    let before = null;
    for (const r of records) {
      const i = index.get(sessionOf(r.entity_id)) ?? index.get(r.entity_id);
      if (i === undefined) continue;
      const y = AXIS + i * row - scroll + row / 2;
      const x = Math.round(this.x(r.timestamp)) + 0.5;
      if (before && before.i !== i && x > 0 && x < this.width) {
        ctx.strokeStyle = c["text-2"];
        ctx.setLineDash([2, 3]);
        ctx.beginPath();
        ctx.moveTo(x, before.y);
        ctx.lineTo(x, y);
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.fillStyle = c.text;
        for (const at of [before.y, y]) {
          ctx.beginPath();
          ctx.arc(x, at, 2.5, 0, 7);
          ctx.fill();
        }
      }
      before = { i, y };
    }
  }

  at(x, y) {
    return this.hits.findLast((one) => x >= one.x && x <= one.x + one.w && y >= one.y && y <= one.y + BAR + 4) || null;
  }
}

/** Give each call a slot below those that it runs beside; return the number of slots. */
function slotsOf(calls, end) {
  const free = [];
  for (const call of calls) {
    if (call.slot === undefined) {
      let slot = free.findIndex((until) => until <= call.start);
      if (slot < 0) slot = free.length;
      call.slot = Math.min(slot, 3);
    }
    free[call.slot] = call.end ?? end;
    for (let i = 0; i < call.slot; i++) free[i] ??= -Infinity;
  }
  return Math.max(1, free.length);
}
