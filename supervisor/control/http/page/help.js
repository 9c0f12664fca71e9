// Keys, and what the shapes and colours mean.
import { html, Component } from "./vendor/preact-htm.js";
import { Indicator } from "./icon.js";
import { VISUAL } from "./model.js";

const KEYS = [
  ["j k ↓ ↑", "next, previous row"], ["J K, g G", "ten rows; first, last"], ["h l ← →", "fold, unfold"], ["H L", "fold, unfold everything"],
  ["n", "next in trouble"], ["i", "to what waits for you"], ["Enter, Esc", "into the details, and back"], ["a", "abort, with the dry run first"],
  ["w o", "why; output"], ["[ ]", "calls along the lane"], ["/", "filter"], ["e", "hide what has ended"],
  ["u", "cost, tokens, calls"], ["s p r", "sessions, plan, runs"], ["+ - 0 f", "zoom; everything; follow now"], ["Space , .", "play; one record back, on"], ["?", "this"],
];

export class Help extends Component {
  componentDidMount() {
    this.back = document.activeElement;
    this.dialog.showModal();
  }

  close = () => this.dialog.close();

  closed = () => {
    this.props.app.set({ dialog: null });
    this.back?.focus?.();
  };

  render() {
    return html`<dialog class="dialog help" ref=${(one) => (this.dialog = one)} aria-labelledby="help-title" onClose=${this.closed}><div class="dialog-in">
      <header><h2 id="help-title">Keys and signs</h2><button class="plain" aria-label="Close" onClick=${this.close}>×</button></header>
      <div class="dialog-body help-grid" tabindex="0" role="region" aria-label="Keys and signs">
        <section><h3>Keys</h3><dl class="keys-list">${KEYS.map(([keys, what]) => html`<div key=${keys}><dt><kbd>${keys}</kbd></dt><dd>${what}</dd></div>`)}</dl></section>
        <section><h3>States of an agent</h3><ul class="legend">${Object.entries(VISUAL).map(([state, { means }]) => html`<li key=${state}><${Indicator} state=${state} quiet /><b>${state}</b><span>${means}</span></li>`)}</ul>
          <h3>Timeline</h3><ul class="legend signs">
            <li><i class="k k-turn"></i><b>turn</b><span>with its tool calls; a red end is a call that did not complete</span></li>
            <li><i class="k k-perm"></i><b>permission</b><span>from the request to the answer</span></li>
            <li><i class="k k-end"></i><b>ending</b><span>from the order to the end; one dot for each stage</span></li>
            <li><i class="k k-strip"></i><b>strip</b><span>the state of the agent at each moment</span></li>
            <li><i class="k k-chain"></i><b>dashes</b><span>causes of the last change of what is selected</span></li></ul>
          <h3>Ages</h3><p class="small soft">After 30 s an age comes forward. After 120 s, or when the agent counts as stalled, it is orange, and what the agent does is in italics: that is how it was. When the supervisor is silent, the whole page loses its colours.</p></section>
      </div></div></dialog>`;
  }
}
