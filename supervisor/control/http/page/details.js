// Everything about what is selected: a session, a task or a run. One sentence first.
import { html } from "./vendor/preact-htm.js";
import { age, clock, clean, count, duration, line, moment, money, plural, tokensOf } from "./format.js";
import { Indicator } from "./icon.js";
import { MACHINES } from "./model.js";

const CALLS_SHOWN = 12;
const RECORDS_SHOWN = 30;

export function Details({ app, now }) {
  const { selected } = app.ui;
  const { model } = app;
  const found = selected === null ? null : model.sessions.get(selected) || model.tasks.get(selected) || model.runs.get(selected);
  if (!found) return html`<aside class="details" tabindex="-1" aria-label="Details"><p class="empty">${selected === null ? "Nothing is selected." : `Nothing is known about ${line(selected)} any more.`}</p></aside>`;
  const part = { session: SessionDetails, task: TaskDetails, run: RunDetails }[found.kind];
  return html`<aside class="details" tabindex="-1" aria-label=${`Details of ${found.id}`}>${part({ app, one: found, now })}</aside>`;
}

function Section({ id, title, note, children }) {
  return html`<section class="section" id=${`section-${id}`} tabindex="-1" aria-labelledby=${`title-${id}`}><header><h3 id=${`title-${id}`}>${title}</h3>${note && html`<span>${note}</span>`}</header>${children}</section>`;
}

const Link = ({ app, id, children }) => html`<button class="link" onClick=${() => app.select(id)}>${children || id}</button>`;

// ------------------------------------------------------------------------------------------------------------ sessions
function SessionDetails({ app, one: s, now }) {
  const { model } = app;
  const agent = s.agents.at(-1);
  const task = s.task && model.tasks.get(s.task);
  const doing = model.doing(s);
  const calls = model.openCalls(s);
  const ended = s.ended !== null;
  return html`
    <header class="d-head">
      <h2><${Indicator} state=${s.visual} quiet /><span>${s.id}</span></h2>
      <p class="d-sub"><b data-visual=${s.visual}>${s.visual}</b> · ${s.state}${s.agent && html` · agent ${line(s.agent)}`}${agent?.pid && !ended && html` · pid ${agent.pid}`}${task && html` · task <${Link} app=${app} id=${task.id} />`}</p>
      <div class="d-act">
        ${!ended && html`<button class="warn-button" disabled=${!app.canCommand()} onClick=${() => app.act("abort")}>Abort… <kbd aria-hidden="true">a</kbd></button>`}
        <button onClick=${() => app.section("why")}>Why <kbd aria-hidden="true">w</kbd></button><button onClick=${() => app.section("output")}>Output <kbd aria-hidden="true">o</kbd></button>
      </div>
    </header>
    <${Section} id="now" title="Now" note=${ended ? `ended ${age(now - s.ended)} ago` : `heard ${age(now - s.heard)} ago`}>
      <p class="doing" data-tone=${doing.tone}>${calls.length && !s.stage ? "" : doing.text}</p>
      ${!s.stage && calls.map((call) => html`<div class="call" key=${call.id} data-on=${app.ui.item === call.id}><code>${call.title}</code><span class="soft small">${call.id} · open for <b>${duration(now - call.start)}</b>${call.pid ? ` · pid ${call.pid}` : ""}</span>${!ended && html`<button class="small-button" disabled=${!app.canCommand()} aria-label=${`Abort call… ${call.id}`} onClick=${() => app.askAbort(s.id, call.id)}>Abort call…</button>`}</div>`)}
      ${s.note && !ended && app.isPresent() && html`<p class="soft small">${line(s.note)}</p>`}
      ${s.stage && html`<p class="soft small">Stage <b class="stage" data-stage=${s.stage.stage}>${s.stage.stage}</b> since ${duration(now - s.stage.since)}${s.stage.until ? `, until ${clock(s.stage.until)}` : ""}.</p>`}
      ${ended && html`<p class="soft small">${s.reached && html`Stage <b class="stage" data-stage=${s.reached}>${s.reached}</b>, `}${s.took !== null ? `${duration(s.took)} after it was told to end; ` : ""}<b data-bad=${s.survivors !== 0}>${s.survivors}</b> survivors.</p>`}
      ${s.turns.flatMap((turn) => turn.permissions).filter((one) => one.open).map((one) => html`<${Permission} key=${one.id} app=${app} one=${one} now=${now} />`)}
    <//>
    <${Why} app=${app} one=${s} now=${now} />
    <${Output} app=${app} s=${s} />
    <${Usage} app=${app} rows=${[["itself", s.own], ...(s.children.length ? [["with all below", s.total]] : [])]} scopes=${s.scopes} />
    <${Calls} app=${app} s=${s} now=${now} />
    <${Section} id="state" title="State" note=${`for ${duration((s.ended ?? now) - s.since)}`}>
      <${Machine} name="session" one=${s} /><${Machine} name="turn" one=${s.turns.at(-1)} /><${Machine} name="agent" one=${agent} />
    <//>
    <${Records} app=${app} id=${s.id} />`;
}

function Permission({ app, one, now }) {
  const asked = app.remotePermissions.get(one.id);
  const pending = app.pending.get(one.id);
  return html`<div class="permission">
    <p><b>Asks for permission</b> <span class="soft">${one.tool || asked?.kind || ""}</span></p>
    <pre class="said" tabindex="0">${one.title}${one.detail || asked?.detail ? `\n\n${clean(one.detail || asked.detail, 20000)}` : ""}</pre>
    <p class="soft small">The words are the agent's own. ${one.due ? html`Denied in ${duration(Math.max(0, one.due - now))}, if nobody answers.` : ""}</p>
    ${pending ? html`<p role="status">${pending}</p>` : html`<div class="d-act"><button class="primary" disabled=${!app.canCommand()} onClick=${() => app.answer(one, true)}>Allow</button><button disabled=${!app.canCommand()} onClick=${() => app.answer(one, false)}>Deny</button></div>`}
  </div>`;
}

function Output({ app, s }) {
  const entry = app.remote.transcript(s.id, s.ended !== null);
  const text = entry.text;
  const lines = text ? text.replace(/\n$/, "").split("\n").slice(-80) : [];
  return html`<${Section} id="output" title="Output" note=${entry.error ? "" : lines.length ? (entry.ended ? "complete" : app.isPresent() ? "live" : "as of now, not of this moment") : "nothing yet"}>
    ${entry.error && html`<p class="soft small">${entry.error}</p>`}
    ${lines.length > 0 && html`<pre class="said output" tabindex="0" aria-label="End of the transcript" ref=${stayAtEnd}>${lines.map((one, i) => outputLine(one, i))}</pre>`}
  <//>`;
}

function stayAtEnd(element) {
  if (!element) return;
  if (element.dataset.held !== "yes") element.scrollTop = element.scrollHeight;
  element.onscroll = () => (element.dataset.held = element.scrollTop + element.clientHeight < element.scrollHeight - 24 ? "yes" : "no");
}

/** A line of a transcript: time of day, source, text. */
function outputLine(text, i) {
  const found = /^(\d\d:\d\d:\d\d(?:\.\d+)?) ([^\s|]+)\|? ?(.*)$/s.exec(text.length > 4000 ? text.slice(0, 4000) : text);
  if (!found) return html`<span key=${i}>${clean(text)}${"\n"}</span>`;
  return html`<span key=${i} data-source=${found[2]}><i>${clean(found[2], 12)}</i>${clean(text.slice(found[0].length - found[3].length), 2000)}${"\n"}</span>`;
}

function Calls({ app, s, now }) {
  const calls = s.turns.slice(-3).flatMap((turn) => turn.calls).slice(-CALLS_SHOWN).reverse();
  if (!calls.length) return null;
  return html`<${Section} id="calls" title="Tool calls" note="newest first">
    <ol class="calls">${calls.map((call) => html`<li key=${call.id} data-on=${app.ui.item === call.id} data-outcome=${call.outcome || "open"}><code>${line(call.title, 200)}</code><span>${call.outcome || "open"}</span><span>${duration((call.end ?? now) - call.start)}</span>${call.reason && html`<span class="soft wide">${line(call.reason)}</span>`}</li>`)}</ol>
  <//>`;
}

// ---------------------------------------------------------------------------------------------------------------- why
function Why({ app, one }) {
  const stamp = one.last?.seq || 0;
  const entry = app.isPresent() ? app.remote.why(one.id, stamp) : null;
  const found = entry?.value;
  const steps = found ? found.steps.map((step) => ({ role: step.role, record: step.record, branches: step.branches || [] })) : app.isPresent() ? [] : app.localChain(one.id).map((record, i) => ({ role: i ? "cause" : "root", record, branches: [] }));
  const folded = fold(steps);
  return html`<${Section} id="why" title="Why" note=${steps.length ? `${plural(steps.length, "record")}, from the root` : ""}>
    ${found && html`<p class="sentence">${clean(found.sentence)}</p>`}
    ${!found && entry && html`<p class="soft small">${entry.error || "asking the supervisor…"}</p>`}
    ${found?.missing && html`<p class="soft small">The journal lacks record ${found.missing}.</p>`}
    <ol class="why">${folded.map(({ first, last, events }) => html`<li key=${last.record.seq} data-role=${first.role}>
      <span class="why-t">${clock(first.record.timestamp)}</span>
      <span class="why-what"><${Link} app=${app} id=${first.record.entity_id} /> <b>${events}</b>${first.role === "root" && first.record.actor ? html`<span class="soft"> by ${line(first.record.actor)}</span>` : ""}
        ${last.record.reason && html`<span class="soft block">${line(last.record.reason)}</span>`}
        ${last.branches.map((branch) => html`<span class="soft block" key=${branch.record.seq}>${branch.role === "rung" ? "stage" : branch.role}: ${branch.record.event}${branch.record.reason ? ` – ${line(branch.record.reason)}` : ""}</span>`)}</span>
      <span class="why-seq">${last.record.seq}</span></li>`)}</ol>
  <//>`;
}

/** Join steps of one entity that follow each other: the way through its states is one step. */
function fold(steps) {
  const found = [];
  for (const step of steps) {
    const before = found.at(-1);
    if (before && before.last.record.entity_id === step.record.entity_id && !before.last.branches.length && step.role === "cause") {
      before.n++;
      before.last = step;
      before.events = before.n === 2 ? `${before.first.record.event}, ${step.record.event}` : `${before.first.record.event} … ${step.record.event}`;
    } else found.push({ first: step, last: step, n: 1, events: step.record.event });
  }
  return found;
}

// ------------------------------------------------------------------------------------------------------------- states
function Machine({ name, one }) {
  if (!one) return null;
  const [way, beside] = MACHINES[name];
  const shown = [...way, ...beside.filter((state) => one.visits[state] || state === one.state)];
  return html`<div class="machine"><span class="machine-name">${name}</span><ol aria-label=${`States of the ${name}; now ${one.state}`}>${shown.map((state) => html`<li key=${state} data-now=${one.state === state} data-been=${!!one.visits[state]} data-beside=${beside.includes(state)} aria-current=${one.state === state ? "step" : undefined}>${state}${one.visits[state] > 1 ? html`<i> ×${one.visits[state]}</i>` : ""}</li>`)}</ol></div>`;
}

function Usage({ app, rows, scopes }) {
  const limits = app.model.limits(scopes);
  if (!limits.length && rows.every(([, one]) => !tokensOf(one) && !one.cost_usd && !one.tool_calls && !one.turns)) return null;
  return html`<${Section} id="usage" title="Usage">
    <table class="usage"><thead><tr><th scope="col"><span class="vh">Of</span></th><th scope="col">Cost</th><th scope="col">Tokens</th><th scope="col">Turns</th><th scope="col">Calls</th></tr></thead>
      <tbody>${rows.map(([name, one]) => html`<tr key=${name}><th scope="row">${name}</th><td>${one.cost_usd ? `$${money(one.cost_usd)}` : "–"}</td><td>${tokensOf(one) ? count(tokensOf(one)) : "–"}</td><td>${one.turns || "–"}</td><td>${one.tool_calls || "–"}</td></tr>`)}</tbody></table>
    ${limits.map((one) => html`<div class="budget" key=${one.id + one.measure} data-level=${one.share >= 1 ? "spent" : one.share >= 0.8 ? "near" : "fine"}><span>${line(one.id)} · ${one.measure.replace("_usd", "").replace("_", " ")}</span><meter min="0" max="1" value=${one.share} aria-label=${`${one.measure} of the budget of ${one.id}`}></meter><span>${amount(one.measure, one.used)} of ${amount(one.measure, one.limit)}</span></div>`)}
  <//>`;
}

const amount = (measure, n) => (measure === "cost_usd" ? `$${n.toFixed(2)}` : measure === "wall_s" ? duration(n) : count(n));

function Records({ app, id }) {
  const found = app.recordsOf(id, RECORDS_SHOWN);
  if (!found.length) return null;
  return html`<${Section} id="records" title="Records" note="newest first">
    <ol class="records">${found.map((r) => html`<li key=${r.seq}><span class="why-t">${clock(r.timestamp)}</span><span>${r.entity_id === id ? "" : html`<span class="soft">${r.entity_id.slice(id.length)} </span>`}${r.event}${r.to_status && r.from_status !== r.to_status ? html`<span class="soft"> → ${r.to_status}</span>` : ""}</span><span class="why-seq">${r.seq}</span></li>`)}</ol>
  <//>`;
}

// ------------------------------------------------------------------------------------------------------ tasks and runs
function TaskDetails({ app, one: task, now }) {
  const { model } = app;
  const asks = task.state === "PENDING_APPROVAL" || task.state === "PLANNED";
  const pending = app.pending.get(task.id);
  const node = app.taskNode(task);
  const waits = task.depends.filter((id) => model.tasks.get(id)?.state !== "CLOSED");
  return html`
    <header class="d-head">
      <h2><span class="task-dot" data-state=${task.state}></span><span>${task.name}</span></h2>
      <p class="d-sub">task of <${Link} app=${app} id=${task.run} /> · ${task.state}${task.end !== null ? ` · ${task.outcome}` : ""}${model.runs.get(task.run)?.agents?.get(task.name) ? ` · agent ${line(model.runs.get(task.run).agents.get(task.name))}` : ""}</p>
      ${asks && html`<div class="d-act">${pending ? html`<span role="status">${pending}</span>` : html`<button class="primary" disabled=${!app.canCommand()} onClick=${() => app.approve(task, true)}>Approve</button><button disabled=${!app.canCommand()} onClick=${() => app.approve(task, false)}>Reject</button>`}</div>`}
    </header>
    <${Section} id="now" title="Now" note=${`for ${duration(now - task.since)}`}>
      <p class="doing">${task.reason || (waits.length ? `waits for ${waits.map((id) => model.tasks.get(id)?.name || id).join(", ")}` : task.state)}</p>
      ${node?.note && html`<p class="soft small">${line(node.note)}</p>`}
      ${task.depends.length > 0 && html`<p class="small">after ${task.depends.map((id, i) => html`${i ? ", " : ""}<${Link} app=${app} id=${id}>${model.tasks.get(id)?.name || id}<//>`)}</p>`}
      ${task.sessions.length > 0 && html`<p class="small">worked on by ${task.sessions.map((id, i) => html`${i ? ", " : ""}<${Link} app=${app} id=${id} />`)}</p>`}
    <//>
    <${Why} app=${app} one=${task} />
    <${Section} id="merge" title="Merge"><p class="small">${mergeText(task)}</p><//>
    <${Checks} app=${app} task=${task} />
    <${Section} id="state" title="State"><${Machine} name="task" one=${task} /><//>
    <${Records} app=${app} id=${task.id} />`;
}

export function mergeText(task) {
  switch (task.state) {
    case "CLOSED": return task.reason || "closed";
    case "DONE": return "The result is checked and merged now.";
    case "PENDING_APPROVAL": return "The result is merged when it is approved.";
    case "CANCELLED": return "Nothing is merged: the task was ended.";
    case "FAILED": return "Nothing is merged: the task has failed.";
    default: return "The result is merged when the task is done, after the tasks that it depends on.";
  }
}

function Checks({ app, task }) {
  const entry = app.isPresent() ? app.remote.read(`/quality?run=${task.run}`, 60, task.last?.seq || 0) : null;
  const found = entry?.value?.items.find((one) => one.id === task.id);
  if (!found) return null;
  return html`<${Section} id="checks" title="Quality" note=${`${plural(found.attempts, "attempt")}, ${found.rejections} rejected`}>
    ${found.checks.length === 0 && html`<p class="soft small">No check has judged a result yet.</p>`}
    <ol class="calls">${found.checks.map((one) => html`<li key=${one.seq} data-outcome=${one.passed ? "completed" : "failed"}><span>${one.kind}</span><span>${one.passed ? "passed" : "not passed"}</span><span>${clock(one.at)}</span>${one.text && html`<span class="soft wide">${line(one.text)}</span>`}</li>`)}</ol>
  <//>`;
}

function RunDetails({ app, one: run, now }) {
  const quality = app.isPresent() ? app.remote.read(`/quality?run=${run.id}`, 60, run.last?.seq || 0) : null;
  const total = quality?.value?.total;
  const scopes = [...app.model.scopes.keys()].filter((id) => id === `workstream:${run.id}` || id === run.id);
  const states = new Map();
  for (const task of run.tasks) states.set(task.state, (states.get(task.state) || 0) + 1);
  return html`
    <header class="d-head"><h2><span>${run.id}</span> <span class="soft">${run.name}</span></h2>
      <p class="d-sub">run · ${run.state} · began ${moment(run.born)}</p>
      <div class="d-act"><button onClick=${() => app.set({ view: "plan", run: run.id })}>Plan <kbd aria-hidden="true">p</kbd></button></div></header>
    <${Section} id="now" title="Now" note=${`for ${duration((run.ended ?? now) - run.born)}`}>
      <p class="doing">${[...states].map(([state, n]) => `${n} ${state.toLowerCase().replaceAll("_", " ")}`).join(", ") || "no task"}</p>
      ${app.taskNodes(run)?.note && html`<p class="soft small">${line(app.taskNodes(run).note)}</p>`}
    <//>
    <${Why} app=${app} one=${run} />
    <${Usage} app=${app} rows=${[["all tasks", run.used]]} scopes=${scopes} />
    ${total && html`<${Section} id="quality" title="Quality"><dl class="facts">${[["completed", `${total.completed} of ${total.tasks}`], ["at the first attempt", total.first_time], ["attempts", total.attempts], ["retries", total.retries], ["results rejected", total.rejections], ["given up", total.given_up]].map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><//>`}
    <${Section} id="tasks" title="Tasks" note=${run.tasks.length}>
      <ol class="records tasks">${run.tasks.slice(0, 200).map((task) => html`<li key=${task.id}><span class="task-dot" data-state=${task.state}></span><span><${Link} app=${app} id=${task.id}>${task.name}<//></span><span class="soft">${task.outcome || task.state.toLowerCase().replaceAll("_", " ")}</span></li>`)}</ol>
    <//>
    <${Records} app=${app} id=${run.id} />`;
}
