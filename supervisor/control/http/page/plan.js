// The plan of a run as a graph: what each task waits for, where its result is merged, and in which order. dagre lays it out.
import { html, Component } from "./vendor/preact-htm.js";
import { Graph, layout } from "./vendor/dagre.js";
import { age, line } from "./format.js";
import { Indicator } from "./icon.js";
import { mergeText } from "./details.js";

const WIDTH = 176;
const HEIGHT = 64;
const GRAPH_MAX = 400;
const MERGES_MAX = 50;

export class PlanView extends Component {
  /** Places of the tasks; laid out again only when tasks or their dependencies have changed. */
  layout(tasks) {
    const key = tasks.map((one) => `${one.id}>${one.depends}`).join(" ");
    if (this.key === key) return this.found;
    const graph = new Graph().setGraph({ rankdir: "LR", nodesep: 18, ranksep: 64, marginx: 16, marginy: 16 }).setDefaultEdgeLabel(() => ({}));
    const known = new Set(tasks.map((one) => one.id));
    for (const one of tasks) graph.setNode(one.id, { width: WIDTH, height: HEIGHT });
    for (const one of tasks) for (const id of one.depends) if (known.has(id)) graph.setEdge(id, one.id);
    layout(graph);
    this.key = key;
    this.found = { width: tasks.length && graph.graph().width, height: tasks.length && graph.graph().height, nodes: new Map(tasks.map((one) => [one.id, graph.node(one.id)])), edges: graph.edges().map((one) => edgeOf(graph, one)) };
    return this.found;
  }

  key_(event, tasks) {
    const places = this.found?.nodes;
    const here = places?.get(this.props.app.ui.selected);
    const move = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!move || !here) return;
    event.preventDefault();
    let best = null;
    for (const task of tasks) {
      const there = places.get(task.id);
      const dx = there.x - here.x;
      const dy = there.y - here.y;
      const along = dx * move[0] + dy * move[1];
      const off = Math.abs(dx * move[1]) + Math.abs(dy * move[0]);
      if (along > 4 && (!best || along + 2 * off < best.cost)) best = { task, cost: along + 2 * off };
    }
    if (!best) return;
    this.props.app.select(best.task.id);
    requestAnimationFrame(() => document.querySelector('.task[aria-pressed="true"]')?.focus());
  }

  render({ app, now }) {
    const { model, ui } = app;
    const runs = [...model.runs.values()].reverse();
    const run = app.shownRun();
    if (!run) return html`<section class="plan" aria-label="Plan"><p class="empty">No plan has been run here yet: <code>supervisor submit plan.yaml</code> gives one to a daemon.</p></section>`;
    const tasks = run.tasks;
    const counts = new Map();
    for (const one of tasks) counts.set(one.state, (counts.get(one.state) || 0) + 1);
    const isList = innerWidth <= 760 || tasks.length > GRAPH_MAX;
    return html`<section class="plan" aria-label=${`Plan of ${run.id}`}>
      <div class="plan-sum"><label class="run-choice"><span class="vh">Run</span><select onChange=${(e) => app.set({ run: e.target.value, selected: e.target.value })}>${runs.map((one) => html`<option key=${one.id} value=${one.id} selected=${one === run}>${one.id} ${one.name}</option>`)}</select></label>
        <span>${run.state}</span>${[...counts].map(([state, n]) => html`<span key=${state}><b>${n}</b> ${state.toLowerCase().replaceAll("_", " ")}</span>`)}</div>
      ${isList ? html`<div class="plan-list">${tasks.map((task) => html`<${TaskBox} key=${task.id} app=${app} task=${task} now=${now} />`)}</div>` : this.graph(app, tasks, now, ui)}
      ${run.merges && html`<${Merges} app=${app} run=${run} />`}
    </section>`;
  }

  graph(app, tasks, now, ui) {
    const place = this.layout(tasks);
    const closed = new Set(tasks.filter((one) => one.state === "CLOSED").map((one) => one.id));
    return html`<div class="plan-scroll" onKeyDown=${(e) => this.key_(e, tasks)}><div class="plan-size" style=${{ width: `${place.width}px`, height: `${place.height}px` }}>
      <svg width=${place.width} height=${place.height} aria-hidden="true">${place.edges.map((one) => html`<path key=${`${one.from} ${one.to}`} d=${curve(one.points)} data-met=${closed.has(one.from)} data-lit=${ui.selected === one.from || ui.selected === one.to} />`)}</svg>
      ${tasks.map((task) => html`<${TaskBox} key=${task.id} app=${app} task=${task} now=${now} at=${place.nodes.get(task.id)} />`)}
    </div></div>`;
  }
}

function TaskBox({ app, task, now, at }) {
  const { model } = app;
  const s = task.sessions.length ? model.sessions.get(task.sessions.at(-1)) : null;
  const waits = task.depends.filter((id) => model.tasks.get(id)?.state !== "CLOSED").map((id) => model.tasks.get(id)?.name || id);
  const isOver = task.end !== null;
  const note = task.state === "PENDING_APPROVAL" || task.state === "PLANNED" ? `waits for you, ${age(now - task.since)}` : task.state === "CLOSED" ? mergeText(task) : isOver ? task.reason : s && s.ended === null ? model.doing(s).text : waits.length ? `after ${waits.join(", ")}` : task.reason;
  const style = at ? { left: `${at.x - WIDTH / 2}px`, top: `${at.y - HEIGHT / 2}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` } : {};
  return html`<button class="task" data-state=${task.state} aria-pressed=${app.ui.selected === task.id} style=${style} onClick=${() => app.select(task.id, null, true)}>
    <span class="task-name"><b>${task.name}</b>${s && s.ended === null && html`<${Indicator} state=${s.visual} />`}</span>
    <span class="task-state">${isOver && task.outcome ? task.outcome : task.state.toLowerCase().replaceAll("_", " ")}${task.failures && !isOver ? html` <i>· attempt ${task.failures + 1}</i>` : ""}</span>
    <span class="task-note">${line(note, 120)}</span></button>`;
}

/** The order in which results are merged: of those that are, the order of their records; of those to come, the stages of
 * the plan, in which each task comes after those that it depends on. */
function mergeOrder(tasks) {
  const stages = new Map();
  const known = new Map(tasks.map((one) => [one.id, one]));
  const stageOf = (task) => {
    if (!stages.has(task.id)) {
      stages.set(task.id, 0); // dependencies have no circle; a forged journal may
      stages.set(task.id, 1 + Math.max(0, ...task.depends.map((id) => (known.has(id) ? stageOf(known.get(id)) : 0))));
    }
    return stages.get(task.id);
  };
  const merged = tasks.filter((one) => one.state === "CLOSED").sort((a, b) => (a.last?.seq || 0) - (b.last?.seq || 0));
  const coming = tasks.filter((one) => one.end === null).sort((a, b) => (b.state === "DONE") - (a.state === "DONE") || stageOf(a) - stageOf(b));
  return { merged, coming };
}

function Merges({ app, run }) {
  const { merged, coming } = mergeOrder(run.tasks);
  const item = (task) => html`<li key=${task.id} data-state=${task.state}><button class="link" onClick=${() => app.select(task.id, null, true)}>${task.name}</button> <span class="soft">${line(mergeText(task), 120)}</span></li>`;
  return html`<section class="merges" aria-label="Order of merges" tabindex="0"><h3>Merges</h3>
    ${!merged.length && !coming.length ? html`<p class="soft small">Nothing is merged.</p>` : ""}
    <ol>${merged.map(item)}${coming.slice(0, MERGES_MAX).map(item)}</ol>
    ${coming.length > MERGES_MAX && html`<p class="soft small">${coming.length - MERGES_MAX} more to come</p>`}</section>`;
}

/** An edge leaves a task at its right side, and enters the next one at its left side. */
function edgeOf(graph, { v, w }) {
  const [from, to] = [graph.node(v), graph.node(w)];
  const between = graph.edge(v, w).points.slice(1, -1).filter((one) => one.x > from.x + WIDTH / 2 && one.x < to.x - WIDTH / 2);
  return { from: v, to: w, points: [{ x: from.x + WIDTH / 2, y: from.y }, ...between, { x: to.x - WIDTH / 2, y: to.y }] };
}

function curve(points) {
  const [first, ...rest] = points;
  const last = rest.at(-1);
  const mid = (first.x + last.x) / 2;
  if (points.length <= 3) return `M${first.x} ${first.y}C${mid} ${first.y} ${mid} ${last.y} ${last.x} ${last.y}`;
  let path = `M${first.x} ${first.y}`;
  let before = first;
  for (const one of rest) {
    const half = (before.x + one.x) / 2;
    path += `C${half} ${before.y} ${half} ${one.y} ${one.x} ${one.y}`;
    before = one;
  }
  return path;
}
