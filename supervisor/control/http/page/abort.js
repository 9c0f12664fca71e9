// Abort: first the plan (what would end, by when, who is spared and why), then the button, then the receipt.
import { html, Component } from "./vendor/preact-htm.js";
import { post } from "./api.js";
import { clock, duration, line, plural } from "./format.js";
import { Indicator } from "./icon.js";
import { STAGES } from "./model.js";

const SCOPES = [
  ["tool", "Tool call", "that call ends; the session goes on"],
  ["sibling", "Siblings", "the sessions beside it; not itself"],
  ["session", "Session", "it, and everything below it"],
];

export class AbortDialog extends Component {
  constructor({ app }) {
    super();
    const s = app.model.sessions.get(app.ui.selected);
    const open = app.model.openCalls(s);
    this.session = s.id;
    this.call = open.find((one) => one.id === app.ui.item) || open.at(-1) || null;
    const isCall = this.call && app.ui.item === this.call.id;
    this.state = { scope: isCall ? "tool" : "session", now: false, reason: "", plan: null, changed: false, error: "", sent: false, receipt: null };
  }

  componentDidMount() {
    this.back = document.activeElement;
    this.dialog.showModal();
    this.dialog.querySelector("input:checked")?.focus();
    this.look();
    this.timer = setInterval(() => this.look(true), 2500);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
  }

  close = () => this.dialog.close();

  /** The dialog is closed, by a button or by the browser at Escape. */
  closed = () => {
    this.props.app.set({ dialog: null });
    (this.back?.isConnected && this.back !== document.body ? this.back : document.querySelector(".tree-body"))?.focus();
  };

  target() {
    return this.state.scope === "tool" ? this.call?.id : this.session;
  }

  /** Ask for the plan. *again*: only find out whether the plan that is shown is still the plan. */
  async look(again = false) {
    const { scope, now, sent, plan } = this.state;
    if (sent || !this.target() || (again && (!plan || !this.props.app.canCommand()))) return;
    const asked = `${scope} ${now}`;
    try {
      const found = (await post("/aborts", { id: this.target(), scope, now })).plan;
      if (`${this.state.scope} ${this.state.now}` !== asked || this.state.sent) return;
      if (again && this.state.plan) this.setState({ changed: found.id !== this.state.plan.id, error: "" });
      else this.setState({ plan: found, changed: false, error: "" });
    } catch (error) {
      if (!again) this.setState({ error: error.message });
    }
  }

  choose(patch) {
    this.setState({ ...patch, plan: null, changed: false, error: "" }, () => this.look());
  }

  async execute() {
    const { plan, reason } = this.state;
    this.setState({ sent: true, error: "" });
    try {
      const { receipt } = await post(`/aborts/${encodeURIComponent(plan.id)}`, { reason: reason || "aborted from the page" });
      this.setState({ receipt });
    } catch (error) {
      const isStale = error.status === 409 || error.status === 404;
      this.setState({ sent: false, error: error.message, changed: isStale });
    }
  }

  render({ app }, state) {
    return html`<dialog class="dialog abort" ref=${(one) => (this.dialog = one)} aria-labelledby="abort-title" onClose=${this.closed}>
      <div class="dialog-in">
        <header><h2 id="abort-title">Abort <code>${line(this.target() || this.session)}</code></h2><button class="plain" aria-label="Close" onClick=${this.close}>×</button></header>
        ${state.sent ? this.result(app, state) : this.plan(app, state)}
      </div>
    </dialog>`;
  }

  plan(app, { scope, now, reason, plan, changed, error }) {
    const n = plan?.nodes.length || 0;
    const processes = plan ? plan.nodes.reduce((sum, one) => sum + one.processes.length, 0) : 0;
    const word = scope === "tool" ? "tool call" : "session";
    const what = plural(n, n && plan.nodes.every((one) => one.kind === "tool") ? "tool call" : word);
    return html`<div class="dialog-body">
      <fieldset class="scopes"><legend>How far</legend>
        ${SCOPES.map(([one, name, means]) => html`<label key=${one} data-on=${scope === one} data-off=${one === "tool" && !this.call}><input type="radio" name="scope" value=${one} checked=${scope === one} disabled=${one === "tool" && !this.call} onChange=${() => this.choose({ scope: one })} /><b>${name}</b><span>${one === "tool" && !this.call ? "no call is open" : one === "tool" ? line(this.call.title, 60) : means}</span></label>`)}
      </fieldset>
      <section class="dry" aria-labelledby="dry-title" aria-live="polite">
        <h3 id="dry-title">Dry run <span>${plan ? (n ? `${what}, ${plural(processes, "process", "processes")}` : plan.already_ended ? "it has ended already" : "nothing would end") : error ? "" : "asking the supervisor…"}</span>${plan && html`<code>${plan.id.slice(0, 8)}</code>`}</h3>
        ${plan && n > 0 && html`<${Stages} due=${plan.nodes.find((one) => one.due)?.due} now=${plan.now} />
          <p class="soft small">Each goes through these stages only as far as it must. After ${duration(plan.deadline_s)} what is left is abandoned, and reported.</p>
          <ul class="ends" aria-label="Would end" tabindex="0">${plan.nodes.map((node) => html`<${Planned} key=${node.id} app=${app} node=${node} />`)}</ul>`}
        ${plan?.ending.length > 0 && html`<p class="soft small">Ending already: ${plan.ending.map((one) => one.id).join(", ")}</p>`}
        ${plan?.spared.length > 0 && html`<h4>Spared</h4><ul class="spared" aria-label="Would be spared">${plan.spared.map((one) => html`<li key=${one.id}><b>${one.id}</b><span>${line(one.reason)}</span></li>`)}</ul>`}
        ${plan?.uncrossed.length > 0 && html`<p class="soft small">Not reached, since a policy does not allow it: ${plan.uncrossed.map((one) => one.edge).join(", ")}</p>`}
      </section>
      <label class="reason"><span>Reason, for the record and for the agents</span><input type="text" value=${reason} onInput=${(e) => this.setState({ reason: e.target.value })} maxlength="500" /></label>
      <label class="check"><input type="checkbox" checked=${now} onChange=${(e) => this.choose({ now: e.target.checked })} /> Begin at the stage kill: ask nobody, wait for nobody</label>
      ${error && html`<p class="error" role="alert">${error}</p>`}
    </div>
    <footer>
      <span class="grow" role="status">${changed && html`<span class="warn">What it would do has changed.</span> <button onClick=${() => this.choose({})}>Look again</button>`}</span>
      <button onClick=${this.close}>Cancel</button>
      <button class="danger" disabled=${!n || changed || !app.canCommand()} onClick=${() => this.execute()}>End ${plan ? what : "…"}</button>
    </footer>`;
  }

  result(app, { receipt, plan }) {
    return html`<div class="dialog-body">${receipt ? html`<${Receipt} receipt=${receipt} />` : html`<p role="status">Ending ${plural(plan.nodes.length, "node")}: each stage waits for its budget, ${duration(plan.deadline_s)} in all at most.</p>
      <ul class="ends" aria-label="Is ending" tabindex="0">${plan.nodes.map((node) => html`<${Planned} key=${node.id} app=${app} node=${node} progress />`)}</ul>`}</div>
    <footer><span class="grow soft small">${receipt ? "" : "It goes on when this is closed."}</span><button class="primary" onClick=${this.close}>Close</button></footer>`;
  }
}

function Planned({ app, node, progress }) {
  const s = app.model.sessions.get(node.id);
  const isOver = progress && app.model.isOver(node.id);
  const call = !s && app.model.sessions.get(node.id.split(":")[0])?.turns.flatMap((one) => one.calls).find((one) => one.id === node.id);
  const text = progress ? (isOver ? "ended" : s?.stage ? `stage ${s.stage.stage}` : "ending") : s ? app.model.doing(s).text : call ? line(call.title, 160) : "";
  return html`<li>${s ? html`<${Indicator} state=${s.visual} />` : html`<span></span>`}<b>${line(node.id)}</b><span class="ends-what">${text}</span><span class="ends-pids">${node.processes.map((one) => one.pid).join(" ")}</span></li>`;
}

function Stages({ due, now }) {
  if (!due) return null;
  let before = 0;
  const shown = STAGES.slice(0, 4).filter((stage) => due[`${stage}_s`] !== null && due[`${stage}_s`] !== undefined && (!now || stage === "kill"));
  return html`<ol class="stages" aria-label="Stages and their deadlines">${shown.map((stage) => {
    const until = due[`${stage}_s`];
    const share = Math.max(0.2, until - before);
    before = until;
    return html`<li key=${stage} data-stage=${stage} style=${{ flexGrow: share }}><b>${stage}</b><span>≤ ${duration(until)}</span></li>`;
  })}</ol>`;
}

function Receipt({ receipt }) {
  const bad = receipt.survivors !== 0;
  return html`<section class="receipt" aria-label="Receipt">
    <p class="survivors" data-bad=${bad}><b>${bad ? receipt.survivors : "0"}</b> ${receipt.survivors === 1 ? "survivor" : "survivors"}${receipt.already_ended ? " · it had ended already, or was ending" : ""}</p>
    ${receipt.recorded_at === null && html`<p class="warn">Not on the disk yet.</p>`}
    <table><thead><tr><th>What</th><th>Outcome</th><th>Stage</th><th>After</th></tr></thead>
      <tbody>${receipt.nodes.map((one) => html`<tr key=${one.id}><td>${line(one.id)}</td><td>${one.outcome}${one.how ? html`<span class="soft"> ${line(one.how)}</span>` : ""}</td><td class="stage" data-stage=${one.rung}>${one.rung}</td><td>${duration(one.took_s)}</td></tr>`)}</tbody></table>
    ${receipt.processes.length > 0 && html`<table><thead><tr><th>Process</th><th>Ended by</th><th>Status</th><th>Survivors</th></tr></thead>
      <tbody>${receipt.processes.map((one) => html`<tr key=${`${one.owner} ${one.pid}`}><td>${one.pid} <span class="soft">${line(one.owner)}</span></td><td>${one.ended_by || "not ended"}</td><td>${one.status ?? "unknown"}</td><td>${one.survivors}</td></tr>`)}</tbody></table>`}
    ${receipt.killed_at !== null && html`<p class="soft small">The last of them had ended at ${clock(receipt.killed_at, 3)}.</p>`}
  </section>`;
}
