// Runs of plans, and what the supervisor knows about their quality and cost.
import { html } from "./vendor/preact-htm.js";
import { age as ageText, count, duration, line, moment, money } from "./format.js";

export function RunsView({ app, now }) {
  const stamp = [...app.model.runs.values()].reduce((sum, one) => sum + (one.last?.seq || 0), 0);
  const runs = app.remote.read("/runs?limit=200", 15, stamp);
  const quality = app.remote.read("/quality", 60, stamp);
  const dead = app.remote.read("/dead-letters", 30, stamp);
  const items = runs.value?.items || [];
  const total = quality.value?.total;
  const age = runs.at > 0 ? performance.now() / 1000 - runs.at : null;
  return html`<section class="runs" aria-label="Runs">
    <header><h2>Runs</h2><span class="soft small">${runs.error || (age === null ? "asking the supervisor…" : `${ageText(age)} old`)}</span></header>
    ${runs.value && !items.length && html`<p class="empty">No plan has been run here yet: <code>supervisor submit plan.yaml</code> gives one to a daemon.</p>`}
    ${items.length > 0 && html`<div class="scroll-x" tabindex="0" role="region" aria-label="Table of runs"><table class="wide"><thead><tr><th scope="col">Run</th><th scope="col">Plan</th><th scope="col">State</th><th scope="col">Tasks done</th><th scope="col">Began</th><th scope="col">Took</th><th scope="col">Tokens</th><th scope="col">Cost</th></tr></thead>
      <tbody>${items.map((one) => html`<tr key=${one.id} data-on=${app.ui.selected === one.id}><td><button class="link" onClick=${() => app.select(one.id, null, true)}>${one.id}</button></td><td>${line(one.plan, 80)}</td><td>${one.outcome || one.state}${one.supervised ? "" : " (interrupted)"}</td><td>${one.done} of ${one.tasks}</td><td>${moment(one.started_at)}</td><td>${duration(app.model.runs.get(one.id)?.ended === null && app.isPresent() ? now - one.started_at : one.took_s)}</td><td>${one.tokens ? count(one.tokens) : "–"}</td><td>${one.cost_usd ? `$${money(one.cost_usd)}` : "–"}</td></tr>`)}</tbody></table></div>`}
    ${total && html`<h3>Quality of all results</h3><dl class="facts row-facts">${[["completed", `${total.completed} of ${total.tasks}`], ["at the first attempt", total.first_time], ["attempts", total.attempts], ["retries", total.retries], ["results rejected", total.rejections], ["given up", total.given_up]].map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`}
    ${dead.value?.items.length > 0 && html`<h3>Given up</h3><ol class="calls">${dead.value.items.slice(-50).map((one) => html`<li key=${one.entity_id} data-outcome="failed"><button class="link" onClick=${() => app.select(one.entity_id, null, true)}>${one.entity_id}</button><span>${one.attempts} attempts</span><span></span><span class="soft wide">${line(one.last_error)}</span></li>`)}</ol>`}
  </section>`;
}
