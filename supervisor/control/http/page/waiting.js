// What waits for a person, sorted by deadline and answered in place; and the aborts that are under way.
import { html } from "./vendor/preact-htm.js";
import { age, countdown, line } from "./format.js";

const CARD_PX = 372;

export function Waiting({ app, now }) {
  const { model } = app;
  const cards = [...model.underway().map((one) => ({ kind: "abort", id: one.abort.id, ...one })), ...model.waiting()];
  if (!cards.length) return null;
  const isNarrow = innerWidth <= 760;
  if (isNarrow && app.ui.tab !== "tree") {
    return html`<section class="waiting brief" aria-label="Waits for you"><button class="card-brief" onClick=${() => app.set({ tab: "tree", view: "sessions" })}>${app.waitingText()}</button></section>`;
  }
  const columns = isNarrow ? 2 : Math.max(1, Math.floor((innerWidth - 24) / CARD_PX));
  const shown = app.ui.allWaiting || cards.length <= columns ? cards : cards.slice(0, Math.max(1, columns - 1));
  const more = cards.length - shown.length;
  return html`<section class="waiting" aria-label="Waits for you">
    ${shown.map((one) => (one.kind === "abort" ? html`<${AbortCard} key=${one.id} app=${app} one=${one} now=${now} />` : html`<${Card} key=${one.id} app=${app} one=${one} now=${now} />`))}
    ${(more > 0 || app.ui.allWaiting) && html`<button class="more" aria-expanded=${!!app.ui.allWaiting} onClick=${() => app.set({ allWaiting: !app.ui.allWaiting })}>${more > 0 ? `${more} more` : "Show fewer"}</button>`}
  </section>`;
}

function AbortCard({ app, one, now }) {
  const { abort, left } = one;
  const stages = [...new Set(left.map((id) => app.model.sessions.get(id)?.stage?.stage).filter(Boolean))];
  return html`<article class="card" data-kind="abort">
    <div class="card-text"><b>Abort of ${line(abort.target)}</b><span>${left.length} of ${abort.nodes.size} still ending${stages.length ? `, stage ${stages.join(", ")}` : ""} · since ${age(now - abort.t)}</span></div>
    <span class="card-act"><button onClick=${() => app.showAbort(abort)}>Show</button></span>
  </article>`;
}

function Card({ app, one, now }) {
  const subject = one.one;
  const left = one.due === null ? null : one.due - now;
  const level = left === null || left > 120 ? "fine" : left > 30 ? "near" : "soon";
  const isPermission = one.kind === "permission";
  const title = isPermission ? line(subject.title) : one.kind === "approval" ? `the result of ${subject.name}` : `the start of ${subject.name}`;
  const pending = app.pending.get(one.id);
  const where = isPermission ? subject.session : subject.id;
  const answer = (yes) => (isPermission ? app.answer(subject, yes) : app.approve(subject, yes));
  const open = () => app.select(isPermission ? subject.session : subject.id, isPermission ? subject.id : null, true);
  return html`<article class="card" data-kind=${one.kind}>
    <button class="card-text" onClick=${open} title="Show everything about it">
      <b>${title}</b><span>${isPermission ? "Permission" : "Approval"}${isPermission && subject.tool ? ` · ${subject.tool}` : ""} · ${where}${left === null ? "" : html` · denied in <i data-level=${level}>${countdown(left)}</i>`} · since ${age(now - one.t)}</span>
    </button>
    <span class="card-act">${pending
      ? html`<span class="soft" role="status">${pending}</span>`
      : html`<button class="primary" disabled=${!app.canCommand()} aria-label=${`${isPermission ? "Allow" : "Approve"}: ${title}`} onClick=${() => answer(true)}>${isPermission ? "Allow" : "Approve"}</button><button disabled=${!app.canCommand()} aria-label=${`${isPermission ? "Deny" : "Reject"}: ${title}`} onClick=${() => answer(false)}>${isPermission ? "Deny" : "Reject"}</button>`}</span>
  </article>`;
}
