// Indicators of the seven visual states: the characters of the specification, drawn as one set of equal size and weight.
import { html } from "./vendor/preact-htm.js";
import { VISUAL } from "./model.js";

const ring = (extra) => html`<circle cx="7" cy="7" r="5" fill="none" stroke="currentColor" stroke-width="1.5" ...${extra} />`;
const SHAPES = {
  SPAWNING: () => html`${ring()}<path d="M7 7V2a5 5 0 0 1 5 5z" fill="currentColor" />`,
  RUNNING: () => html`<circle cx="7" cy="7" r="5.4" fill="currentColor" />`,
  STALLED: () => html`${ring()}<path d="M7 2a5 5 0 0 0 0 10z" fill="currentColor" />`,
  MERGING: () => html`<path d="M2 4.8h9M8.6 2.4 11.2 4.8 8.6 7.2M12 9.4H3M5.4 7 2.8 9.4 5.4 11.8" fill="none" stroke="currentColor" stroke-width="1.5" />`,
  DEAD: () => ring({ "stroke-width": "1.3" }),
  IDLE: () => html`<rect x="2.6" y="2.6" width="8.8" height="8.8" fill="none" stroke="currentColor" stroke-width="1.5" />`,
  UNKNOWN: () => ring({ "stroke-dasharray": "2 1.93" }),
};

/** Indicator of a visual state; `quiet` where a word beside it says the same. */
export function Indicator({ state, quiet }) {
  const label = quiet ? { "aria-hidden": "true" } : { role: "img", "aria-label": state };
  return html`<svg class="ind" data-visual=${state} data-char=${VISUAL[state].indicator} viewBox="0 0 14 14" width="14" height="14" ...${label}>${SHAPES[state]()}</svg>`;
}
