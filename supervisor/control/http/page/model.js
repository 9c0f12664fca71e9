// The fold: records in, the state of everything out. The fold knows no DOM and no clock: the caller says what time it is.
import { clean, line, tokensOf } from "./format.js";
import { VISUAL, gitStatus, visualState } from "./visual.js";

export { VISUAL };
export const STAGES = ["request", "cancel", "terminate", "kill", "abandon"];
const MEASURES = ["input_tokens", "output_tokens", "cost_usd", "turns", "tool_calls", "wall_s"];

/** States of the machines in the order in which they are drawn: the usual way first, then the others. */
export const MACHINES = {
  session: [["Initializing", "BuildingPrompt", "Spawning", "Running", "SessionComplete"], ["Interrupting", "CoolingDown", "Stopped"]],
  turn: [["IDLE", "CLAIMING", "SPAWNING", "RUNNING", "TOOL_USE", "VERIFYING", "COMPLETING", "REAPED"], ["COMPACTING", "FAILED"]],
  agent: [["starting", "working", "idle", "dead"], []],
  task: [["PLANNED", "OPEN", "CLAIMED", "IN_PROGRESS", "DONE", "PENDING_APPROVAL", "CLOSED"], ["BLOCKED", "WAITING_FOR_SUBTASKS", "ORPHANED", "FAILED", "CANCELLED"]],
};

// Bounds of what is kept, so that a page that is open for weeks stays its size.
const TURNS_MAX = 50;
const CALLS_MAX = 100;
const SEGMENTS_MAX = 400;
const MARKS_MAX = 100;
const ENDED_MAX = 4000;
const RUNS_MAX = 500; // runs that have ended, with their tasks

const RUN_ENDS = ["completed", "failed", "cancelled", "archived"];
const nothing = () => Object.fromEntries(MEASURES.map((one) => [one, 0]));
const pushed = (list, one, most) => {
  list.push(one);
  if (list.length > most) list.shift();
};

/** Session of a turn, an agent, a call or a permission: the part of the id before the first colon. */
export const sessionOf = (id) => id.split(":", 1)[0];
/** Run of a task, and of what belongs to it: "r7" of "r7#fix:run". */
const runOf = (id) => id.split("#", 1)[0];
export const isTask = (id) => id.includes("#");

export class Model {
  constructor() {
    this.seq = 0;
    this.at = 0;
    this.version = 0; // changes with every record
    this.shape = 0; // changes when rows come, go, move or end
    this.sessions = new Map();
    this.roots = [];
    this.runs = new Map();
    this.tasks = new Map();
    this.aborts = new Map();
    this.scopes = new Map();
    this.permissions = new Map();
    this.counts = Object.fromEntries(Object.keys(VISUAL).map((one) => [one, 0]));
    this.total = nothing();
    this.endedOrder = [];
    this.endedRuns = [];
  }

  /** Take the living entities of a tree that the supervisor has sent, where the records of their past are left out. */
  seed(nodes, now) {
    const walk = (node, above) => {
      const at = now - (node.silent_s || 0);
      if (node.kind === "session") this.bornSession(node.id, { t: at, state: node.state });
      if (node.kind === "workstream") this.bornRun(node.id, { t: at, state: node.state, name: node.id });
      if (node.kind === "task") this.bornTask(node.id, { t: at, state: node.state, name: node.id.slice(node.id.indexOf("#") + 1) });
      const owner = this.sessions.get(sessionOf(node.id));
      if (node.kind === "agent" && owner) owner.agents.push({ id: node.id, state: node.state, since: at, born: at, pid: null, visits: {} });
      if (node.kind === "turn" && owner) owner.turns.push(newTurn(node.id, at, node.state));
      if (node.kind === "tool" && above && owner) {
        const turn = owner.turns.find((one) => one.id === above);
        if (turn) turn.calls.push(newCall(node.id, above, at, { title: node.note }));
      }
      for (const one of node.children || []) walk(one, node.kind === "tool" ? above : node.id);
    };
    for (const one of nodes) walk(one, null);
    for (const s of this.sessions.values()) this.look(s, now);
  }

  apply(r) {
    if (r.seq <= this.seq) return;
    this.seq = r.seq;
    this.version++;
    if (r.timestamp > this.at) this.at = r.timestamp;
    const meta = r.metadata || {};
    const moves = (r.outcome || "transition") === "transition" || r.outcome === "born";
    switch (r.entity_type) {
      case "session": return this.session(r, meta, moves);
      case "turn": return this.turn(r, meta, moves);
      case "agent": return this.agent(r, meta, moves);
      case "task": return this.task(r, meta, moves);
      case "workstream": return this.run(r, meta, moves);
    }
  }

  // ------------------------------------------------------------------------------------------------------- sessions
  bornSession(id, { t, state, agent = "", limits = {} }) {
    const cut = id.lastIndexOf("/");
    const parent = cut > 0 ? id.slice(0, cut) : null;
    const s = {
      kind: "session", id, name: clean(id.slice(cut + 1), 200), parent, children: [], run: null, task: null, agent, limits, state, since: t, born: t,
      ended: null, outcome: "", heard: t, turns: [], agents: [], marks: [], segments: [], visual: null, own: nothing(), total: nothing(),
      scopes: [], error: "", stall: null, stop: null, stage: null, reached: "", took: null, survivors: 0, visits: {}, server: null,
    };
    this.sessions.set(id, s);
    const above = parent && this.sessions.get(parent);
    if (above) {
      above.children.push(s);
      s.run = above.run;
    } else this.roots.push(s);
    this.shape++;
    return s;
  }

  session(r, meta, moves) {
    let s = this.sessions.get(r.entity_id);
    if (!s) s = this.bornSession(r.entity_id, { t: r.timestamp, state: r.to_status });
    if (r.event === "Born" && r.outcome === "born") Object.assign(s, { agent: meta.agent || "", limits: meta.limits || {}, born: r.timestamp });
    enter(s, r, moves);
    if (moves || r.event === "UrgentMessage") this.heard(s, r.timestamp);
    switch (r.event) {
      case "Usage": this.usage(s, meta); break;
      case "Budgeted":
        s.scopes = (meta.scopes || []).map((one) => one.id);
        this.budgets(meta);
        break;
      case "Stalled":
        s.stall = { t: r.timestamp, step: meta.step || "" };
        pushed(s.marks, { t: r.timestamp, kind: "stall", text: `${r.reason || "no sign of life"}; action: ${meta.step || "none"}`, seq: r.seq }, MARKS_MAX);
        break;
      case "UrgentMessage":
        pushed(s.marks, { t: r.timestamp, kind: "message", text: `${meta.sender || r.actor}: ${line(meta.text)}`, seq: r.seq }, MARKS_MAX);
        break;
      case "SessionExited":
        if (meta.verdict?.error && !s.stop) {
          s.error = clean(meta.verdict.error);
          pushed(s.marks, { t: r.timestamp, kind: "crash", text: line(meta.verdict.error), seq: r.seq }, MARKS_MAX);
        }
        break;
      case "OperatorStop":
      case "FatalError":
        s.stop = { t: r.timestamp, reason: clean(meta.reason || r.reason), outcome: meta.outcome || (r.event === "FatalError" ? "failed" : "ended"), abort: r.abort_id || meta.abort_id || null, by: r.actor };
        s.stage = { stage: meta.now ? "kill" : "request", since: r.timestamp, until: meta.until ?? null };
        if (s.stop.abort) this.aborts.get(s.stop.abort)?.nodes.add(s.id);
        break;
      case "StageBegan":
        s.stage = { stage: meta.stage, since: r.timestamp, until: meta.until ?? null };
        break;
      case "AbortRecord": this.abort(r, meta, s); break;
      case "Ended":
        this.end(s, r.timestamp, { reached: meta.rung || "", took: meta.took_s ?? null, survivors: meta.survivors || 0 });
        break;
    }
    s.server = null;
    this.look(s, r.timestamp);
  }

  end(s, t, how) {
    if (s.ended !== null) return;
    Object.assign(s, how, { ended: t, outcome: s.stop?.outcome || "ended", stage: null });
    this.shape++;
    this.endedOrder.push(s.id);
    if (this.endedOrder.length > ENDED_MAX) this.forget();
  }

  /** Drop the sessions that ended first, if everything below them has ended. */
  forget() {
    for (const id of this.endedOrder.splice(0, ENDED_MAX / 10)) {
      const s = this.sessions.get(id);
      if (!s || s.children.some((one) => this.sessions.has(one.id))) continue;
      this.sessions.delete(id);
      this.counts[s.visual]--;
      this.scopes.delete(id);
      const above = s.parent && this.sessions.get(s.parent);
      if (above) above.children = above.children.filter((one) => one !== s);
      else this.roots = this.roots.filter((one) => one !== s);
    }
  }

  heard(s, t) {
    if (t > s.heard) s.heard = t;
    s.stall = null;
  }

  abort(r, meta, s) {
    const id = meta.id || r.abort_id;
    const old = this.aborts.get(id);
    this.aborts.set(id, {
      id, seq: r.seq, t: r.timestamp, scope: meta.scope, target: meta.target || r.entity_id, reason: clean(meta.reason || r.reason), by: meta.actor || r.actor,
      session: s.id, nodes: old?.nodes || new Set(),
    });
    if (this.aborts.size > 500) this.aborts.delete(this.aborts.keys().next().value);
    pushed(s.marks, { t: r.timestamp, kind: "abort", text: `abort, scope ${meta.scope}: ${line(meta.reason)}`, seq: r.seq }, MARKS_MAX);
  }

  budgets(meta) {
    for (const one of meta.scopes || []) this.scopes.set(one.id, { id: one.id, limits: one.limits || {}, used: one.used || {} });
  }

  /** Each report has the usage of the session so far: what is new counts here, and for everything above. */
  usage(s, meta) {
    this.budgets(meta);
    for (const name of MEASURES) {
      const more = (meta.used?.[name] || 0) - s.own[name];
      s.own[name] += more;
      this.total[name] += more;
      for (let at = s; at; at = at.parent && this.sessions.get(at.parent)) at.total[name] += more;
      const run = s.run && this.runs.get(s.run);
      if (run) run.used[name] += more;
    }
  }

  // ------------------------------------------------------------------------------------------------ turns and agents
  turn(r, meta, moves) {
    const s = this.sessions.get(sessionOf(r.entity_id));
    if (!s) return;
    let turn = s.turns.findLast((one) => one.id === r.entity_id);
    if (!turn) pushed(s.turns, (turn = newTurn(r.entity_id, r.timestamp, r.to_status)), TURNS_MAX);
    enter(turn, r, moves);
    if (moves) this.heard(s, r.timestamp);
    switch (r.event) {
      case "tool_started": {
        const call = newCall(`${turn.id}:c${meta.number}`, turn.id, r.timestamp, meta);
        const seeded = turn.calls.find((one) => one.id === call.id); // the tree had it before its record came
        if (seeded) Object.assign(seeded, call);
        else pushed(turn.calls, call, CALLS_MAX);
        break;
      }
      case "tool_completed": {
        const call = turn.calls.find((one) => one.call === meta.call_id && one.end === null);
        if (call) Object.assign(call, { end: r.timestamp, outcome: meta.outcome || "", reason: clean(meta.reason), abort: meta.abort_id || null });
        break;
      }
      case "ProcessStarted": {
        const call = turn.calls.find((one) => one.id === meta.tool);
        if (call) call.pid = meta.pid;
        break;
      }
      case "PermissionRequested": {
        const one = {
          id: `${turn.id}:p${meta.number}`, session: s.id, turn: turn.id, number: meta.number, title: clean(meta.title), tool: clean(meta.tool_kind), detail: clean(meta.detail),
          t: r.timestamp, due: meta.within_s ? r.timestamp + meta.within_s : null, open: meta.asked !== false && (meta.decision || "ask") === "ask", end: null, decision: "", by: "",
        };
        pushed(turn.permissions, one, CALLS_MAX);
        if (one.open) this.permissions.set(one.id, one);
        break;
      }
      case "PermissionAnswered":
        for (const one of turn.permissions) if (one.number === meta.number) this.close(one, r.timestamp, meta.decision || "answered", meta.by || r.actor);
        break;
      case "AbortRecord":
        this.abort(r, meta, s);
        this.aborts.get(meta.id || r.abort_id).nodes.add(meta.target);
        break;
      case "task_failed": turn.error = clean(meta.verdict?.error || r.reason); break;
    }
    if (turn.state === "REAPED" && turn.end === null) turn.end = r.timestamp;
    if (turn.end !== null || turn.state === "FAILED") {
      for (const one of turn.permissions) if (one.open) this.close(one, r.timestamp, "withdrawn", "");
      for (const one of turn.calls) if (one.end === null) Object.assign(one, { end: r.timestamp, outcome: "unknown" });
    }
    s.server = null;
    this.look(s, r.timestamp);
  }

  close(one, t, decision, by) {
    if (!one.open && one.end !== null) return;
    Object.assign(one, { open: false, end: t, decision, by });
    this.permissions.delete(one.id);
  }

  agent(r, meta, moves) {
    const s = this.sessions.get(sessionOf(r.entity_id));
    if (!s) return;
    let agent = s.agents.findLast((one) => one.id === r.entity_id);
    if (!agent) pushed(s.agents, (agent = { id: r.entity_id, born: r.timestamp, state: "", pid: null, visits: {} }), 20);
    enter(agent, r, moves);
    if (r.event === "process_started") agent.pid = meta.pid ?? null;
    if (moves && r.to_status !== "dead") this.heard(s, r.timestamp);
    s.server = null;
    this.look(s, r.timestamp);
  }

  // ------------------------------------------------------------------------------------------------- runs and tasks
  bornRun(id, { t, state, name }) {
    const run = { kind: "run", id, name: clean(name, 200), state, since: t, born: t, ended: null, tasks: [], used: nothing(), visits: {}, merges: false };
    this.runs.set(id, run);
    this.shape++;
    return run;
  }

  run(r, meta, moves) {
    const run = this.runs.get(r.entity_id) || this.bornRun(r.entity_id, { t: r.timestamp, state: r.to_status, name: meta.name || r.entity_id });
    if (r.event === "Born") Object.assign(run, { name: clean(meta.name || run.name, 200), born: r.timestamp });
    if (r.event === "Plan") run.merges = meta.plan?.workspace === "worktree";
    if (r.event === "Plan") run.agents = new Map((meta.plan?.tasks || []).map((one) => [String(one.id), String(one.agent || "")]));
    const was = run.state;
    enter(run, r, moves);
    if (!RUN_ENDS.includes(run.state)) run.ended = null;
    else if (run.ended === null) {
      run.ended = r.timestamp;
      this.endedRuns.push(run.id);
      if (this.endedRuns.length > RUNS_MAX) this.forgetRun();
    }
    if (run.state !== was) this.shape++;
  }

  /** Drop the run that ended first, with its tasks. */
  forgetRun() {
    const run = this.runs.get(this.endedRuns.shift());
    if (!run || run.ended === null) return; // it goes on
    for (const one of run.tasks) {
      this.tasks.delete(one.id);
      this.scopes.delete(one.id);
    }
    this.runs.delete(run.id);
    this.scopes.delete(run.id);
    for (const s of this.sessions.values()) if (s.run === run.id) s.run = s.task = null;
  }

  bornTask(id, { t, state, name }) {
    const task = { kind: "task", id, name: clean(name, 200), run: runOf(id), state, since: t, born: t, depends: [], sessions: [], reason: "", end: null, outcome: "", visits: {}, failures: 0 };
    this.tasks.set(id, task);
    if (!this.runs.has(task.run)) this.bornRun(task.run, { t, state: "", name: task.run });
    this.runs.get(task.run).tasks.push(task);
    return task;
  }

  task(r, meta, moves) {
    let task = this.tasks.get(r.entity_id);
    if (!task) task = this.bornTask(r.entity_id, { t: r.timestamp, state: r.to_status, name: meta.name || r.entity_id.slice(r.entity_id.indexOf("#") + 1) });
    if (r.event === "Born") Object.assign(task, { depends: (meta.depends_on || meta.waiting_for || []).map((one) => (isTask(one) ? one : `${task.run}#${one}`)), born: r.timestamp });
    enter(task, r, moves);
    if (moves) task.reason = clean(r.reason || meta.reason);
    if (r.to_status === "FAILED" && moves) task.failures++;
    const isOver = task.state === "CLOSED" || task.state === "CANCELLED" || task.state === "FAILED";
    task.end = isOver ? (task.end ?? r.timestamp) : null;
    if (isOver) task.outcome = task.state === "CLOSED" ? "completed" : meta.outcome || task.outcome || task.state.toLowerCase();
    if (r.event === "claimed" && meta.by) {
      if (!task.sessions.includes(meta.by)) pushed(task.sessions, meta.by, 20);
      this.assign(this.sessions.get(meta.by), task);
    }
    for (const id of task.sessions) {
      const s = this.sessions.get(id);
      if (s) this.look(s, r.timestamp);
    }
  }

  /** Put a session, with everything below it, under the run of its task. */
  assign(s, task) {
    if (!s) return;
    s.task = task.id;
    const walk = (one) => {
      one.run = task.run;
      one.children.forEach(walk);
    };
    walk(s);
    this.shape++;
  }

  // -------------------------------------------------------------------------------------------------- visual states
  /** Classify a session again, and note a change for the strip of its lane. */
  look(s, now, since = now) {
    const visual = this.classify(s, now);
    if (visual === s.visual) return;
    if (s.visual) this.counts[s.visual]--;
    this.counts[visual]++;
    s.visual = visual;
    pushed(s.segments, { t: since, visual }, SEGMENTS_MAX);
  }

  classify(s, now) {
    if (s.ended !== null) return "DEAD";
    if (s.server) return s.server;
    const agent = s.agents.at(-1);
    if (!agent) return s.state === "Stopped" ? "DEAD" : now - s.since >= (s.limits.spawn_deadline_s ?? 60) && s.state === "Spawning" ? "DEAD" : "SPAWNING";
    let state = agent.state;
    let status = "";
    const turn = s.turns.at(-1);
    if (s.task && this.tasks.get(s.task)?.state === "DONE") [state, status] = ["working", "merging"];
    else if (state === "working" && turn?.permissions.some((one) => one.open)) state = "idle";
    else if (state === "working" && turn) status = turn.calls.reduce((found, one) => found || (one.end === null ? one.status : ""), "");
    return visualState(state, {
      spawnedAt: agent.born, now, heartbeatAt: s.heard, pid: agent.pid, status, woken: s.stall?.step === "wake",
      stallS: s.limits.stall_threshold_s ?? 300, spawnS: s.limits.spawn_deadline_s ?? 60, mergingS: s.limits.merging_stall_s ?? 600,
    });
  }

  /** What time alone changes. */
  tick(now) {
    for (const s of this.sessions.values()) {
      if (s.ended === null && !s.server && (s.visual === "RUNNING" || s.visual === "SPAWNING" || s.visual === "MERGING")) this.look(s, now);
    }
  }

  /** Take what the supervisor says of its living sessions: signs of life that are in no record, and its visual states. */
  takeSigns(lines, now) {
    for (const one of lines) {
      const s = this.sessions.get(one.id);
      if (!s || s.ended !== null) continue;
      if (one.silent_s !== null && now - one.silent_s > s.heard) s.heard = now - one.silent_s;
      s.note = one.note || "";
      s.server = one.visual && one.visual !== this.classify({ ...s, server: null }, now) ? one.visual : null;
      this.look(s, now);
    }
    this.version++;
  }

  // ------------------------------------------------------------------------------------------------------ questions
  openCalls(s) {
    return (s.turns.at(-1)?.calls || []).filter((one) => one.end === null);
  }

  openPermission(s) {
    return s.turns.at(-1)?.permissions.find((one) => one.open) || null;
  }

  /** What a session does now, in a few words, with a tone for their colour. */
  doing(s) {
    if (s.ended !== null) {
      const note = s.outcome === "completed" ? "" : s.stop?.reason || s.error;
      return { text: note ? `${s.outcome}: ${line(note, 200)}` : s.outcome, tone: s.outcome === "completed" ? "past" : "bad" };
    }
    if (s.stage) {
      const below = s.children.filter((one) => one.ended === null).length;
      const agent = s.agents.at(-1);
      if (agent?.state === "dead" && below) return { text: `ending: waits for ${below} below`, tone: "ending" };
      return { text: `ending: ${s.stage.stage}`, tone: "ending" };
    }
    const permission = this.openPermission(s);
    if (permission) return { text: `asks: ${line(permission.title, 200)}`, tone: "asks" };
    if (s.task && this.tasks.get(s.task)?.state === "DONE") return { text: "its result is merged", tone: "" };
    if (s.task && this.tasks.get(s.task)?.state === "PENDING_APPROVAL") return { text: "its result waits for approval", tone: "asks" };
    switch (s.state) {
      case "Initializing": return { text: "prepares its workspace", tone: "soft" };
      case "BuildingPrompt": return { text: "prepares its prompt", tone: "soft" };
      case "Spawning": return { text: "starts its agent", tone: "soft" };
      case "CoolingDown": return { text: `waits for its next attempt${s.error ? `: ${line(s.error, 160)}` : ""}`, tone: "soft" };
      case "SessionComplete": return { text: "waits for a prompt", tone: "soft" };
      case "Interrupting": return { text: "its turn is interrupted", tone: "soft" };
    }
    const calls = this.openCalls(s);
    if (calls.length) return { text: line(calls.at(-1).title, 200) + (calls.length > 1 ? `  +${calls.length - 1}` : ""), tone: "", code: true };
    const turn = s.turns.at(-1);
    if (turn?.state === "VERIFYING") return { text: "its result is checked", tone: "soft" };
    if (turn?.state === "COMPACTING") return { text: "compacts its context", tone: "soft" };
    return { text: "thinks", tone: "soft" };
  }

  /** Whether nobody should count the silence of a session: it waits for a person, for work, or is ending. */
  mayBeSilent(s) {
    return s.ended !== null || ["IDLE", "DEAD"].includes(s.visual) || !!this.openPermission(s);
  }

  /** What waits for a person, the most urgent first. */
  waiting() {
    const found = [...this.permissions.values()].map((one) => ({ kind: "permission", id: one.id, t: one.t, due: one.due, one }));
    for (const task of this.tasks.values()) {
      if (task.state === "PENDING_APPROVAL") found.push({ kind: "approval", id: task.id, t: task.since, due: null, one: task });
      else if (task.state === "PLANNED") found.push({ kind: "start", id: task.id, t: task.since, due: null, one: task });
    }
    return found.sort((a, b) => (a.due ?? Infinity) - (b.due ?? Infinity) || a.t - b.t);
  }

  /** Aborts that have not ended all that they end, newest first, each with the ids that are left. */
  underway() {
    const found = [];
    for (const abort of this.aborts.values()) {
      const left = [...abort.nodes].filter((id) => !this.isOver(id));
      if (left.length) found.push({ abort, left });
    }
    return found.reverse();
  }

  isOver(id) {
    const s = this.sessions.get(sessionOf(id));
    if (!s || s.ended !== null) return true;
    if (!id.includes(":")) return false;
    const call = s.turns.flatMap((one) => one.calls).find((one) => one.id === id);
    return !call || call.end !== null;
  }

  /** Budget scopes that bound a session, each measure that is bounded with its share. */
  limits(scopeIds) {
    return scopeIds.flatMap((id) => {
      const scope = this.scopes.get(id);
      if (!scope) return [];
      return Object.entries(scope.limits).filter(([, limit]) => limit !== null).map(([measure, limit]) => {
        const used = measure === "tokens" ? tokensOf(scope.used) : scope.used[measure] || 0;
        return { id, measure, limit, used, share: limit ? Math.min(1, used / limit) : 1 };
      });
    });
  }
}

function newTurn(id, t, state) {
  return { id, start: t, end: null, state, since: t, calls: [], permissions: [], error: "", visits: {} };
}

function newCall(id, turn, t, meta) {
  const title = clean(meta.title);
  return { id, turn, call: meta.call_id ?? id, title, tool: clean(meta.tool_kind), status: gitStatus(title), start: t, end: null, outcome: "", reason: "", pid: null, abort: null };
}

/** Note the state that a record has moved an entity to. */
function enter(one, r, moves) {
  if (!moves || !r.to_status) return;
  if (r.to_status !== one.state || r.outcome === "born") {
    one.since = r.timestamp;
    one.visits[r.to_status] = (one.visits[r.to_status] || 0) + 1;
    one.last = { seq: r.seq, event: r.event, actor: r.actor || "", t: r.timestamp };
  }
  one.state = r.to_status;
}
